"""Sentences in two languages, composed together with the links between words that translate each other.

Gold alignments follow one convention, by which every word has a link:

- A word is linked to its translation; of an expression of several words (``look for``, ``parce que``), each word is.
- If one language has one word where the other has two, the word has two links: ``du`` to ``of the``, ``saw`` to
  ``a vu``, ``not`` to ``ne ... pas``. ``more`` and ``smaller`` are linked to ``plus``.
- The auxiliary of an English verb is linked to the finite French verb, and ``do`` in a question also to ``est-ce que``.
- A word without a counterpart is linked to the translation of the word that requires it: an article to that of its noun
  (``chess``, ``les échecs``), a preposition to that of its verb (``misses``, ``manque à``).
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Sequence

Words = tuple[str, ...]
Links = frozenset[tuple[int, int]]


def words(text: str) -> Words:
    """Splits a sentence into the words that alignments count: elided words and punctuation marks are words.

    >>> words("L'école est-elle fermée ?")
    ("L'", 'école', 'est-elle', 'fermée', '?')
    """
    return tuple(re.findall(r"\w+(?:-\w+)*'?|[^\w\s]", text))


class Word(str):
    """A word and its roles in a group of words: words of the two languages that share a role are linked."""

    roles: frozenset[str]

    def __new__(cls, text: str, *roles: str) -> Word:
        """Returns the word; a text of several words stands for several words with the same roles."""
        word = super().__new__(cls, text)
        word.roles = frozenset(roles)
        return word


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """Words of both languages, and the links (English index, French index) between them; equal only to itself."""

    english: Words
    french: Words
    links: Links


def said(english: str, french: str) -> Part:
    """Returns a part in which every word is linked with every word of the other language."""
    first, second = tuple(english.split()), tuple(french.split())
    return Part(first, second, frozenset(itertools.product(range(len(first)), range(len(second)))))


def tie(english: Sequence[Word | Part], french: Sequence[Word | Part]) -> Part:
    """Composes a part of words, linked by their roles, and of parts, which keep their links in any order.

    >>> white, house = said("white", "blanche"), said("house", "maison")
    >>> sorted(tie([white, house], [house, white]).links)
    [(0, 1), (1, 0)]
    """
    first, begins, roles = _lay(english, 0)
    second, places, others = _lay(french, 1)
    assert begins.keys() == places.keys(), "a part must stand in both languages"
    links = {(begins[part] + i, places[part] + j) for part in begins for i, j in part.links}
    links.update((i, j) for i, role in roles for j, other in others if not role.isdisjoint(other))
    return Part(first, second, frozenset(links))


def _lay(
    items: Sequence[Word | Part], language: int
) -> tuple[Words, dict[Part, int], list[tuple[int, frozenset[str]]]]:
    """Returns the words of one language, where each part begins, and the places and roles of the other words."""
    found: list[str] = []
    begins: dict[Part, int] = {}
    roles: list[tuple[int, frozenset[str]]] = []
    for item in items:
        if isinstance(item, Part):
            assert item not in begins, "a part must stand once"
            begins[item] = len(found)
            found += item.french if language else item.english
        else:
            for word in item.split():
                roles.append((len(found), item.roles))
                found.append(word)
    return tuple(found), begins, roles
