"""The pairs of Tatoeba, split so that nothing of a held-out sentence, in either language, is in the training."""

from __future__ import annotations

import hashlib
import pathlib
import random
from collections.abc import Iterable, Mapping

from experiments import command
from jaxformer.data.lines import read_lines
from jaxformer.errors import DataError

TABLE = "tatoeba/eng-deu.tsv"
HELD_OUT = {"val": 1500, "test": 3000}
"""The English sentences of each part that is held out; a hash chooses them."""
JOINED = 12
"""There is one line of two to four joined training pairs for this many pairs."""


def read_pairs(table: pathlib.Path) -> list[tuple[str, str]]:
    """Reads a table of two columns.

    Raises:
      DataError: it is missing, or a line has another number of columns.
    """
    pairs = []
    for number, line in enumerate(read_lines(table), 1):
        columns = line.split("\t")
        if len(columns) != 2 or not all(map(str.strip, columns)):
            raise DataError(f"{table}, line {number}: it must have two columns with text, got {len(columns)}")
        pairs.append((columns[0].strip(), columns[1].strip()))
    return pairs


def split(pairs: Iterable[tuple[str, str]], held_out: Mapping[str, int]) -> dict[str, list[tuple[str, str]]]:
    """Returns training pairs, and held-out pairs by part, with nothing of these, of either language, in the training.

    A held-out English sentence keeps its first translation. Lines of joined pairs are added to the training pairs.

    >>> parts = split([("a", "x"), ("a", "y"), ("b", "x"), ("c", "z")], {"test": 1})
    >>> parts["test"], parts["train"]
    ([('c', 'z')], [('b', 'x'), ('a', 'x'), ('a', 'y')])
    """
    translations: dict[str, list[str]] = {}
    for english, german in pairs:
        translations.setdefault(english, []).append(german)
    ordered = sorted(translations, key=lambda text: hashlib.sha256(text.encode()).digest())
    parts: dict[str, list[tuple[str, str]]] = {}
    taken = 0
    for name, number in held_out.items():
        parts[name] = [(english, translations[english][0]) for english in ordered[taken : taken + number]]
        taken += number
    known = {german for english in ordered[:taken] for german in translations[english]}
    kept = [(english, german) for english in ordered[taken:] for german in translations[english] if german not in known]
    draw = random.Random(0)  # noqa: S311 - a corpus, not a secret
    groups = [draw.sample(kept, draw.randint(2, 4)) for _ in range(len(kept) // JOINED)]
    joined = [tuple(" ".join(pair[side] for pair in group) for side in (0, 1)) for group in groups]
    return {"train": kept + [(english, german) for english, german in joined], **parts}


def write_parts(parts: Mapping[str, list[tuple[str, str]]], directory: pathlib.Path) -> None:
    """Writes each part as a file for each language; a file that holds it is left as it is.

    Raises:
      ConfigError: a file holds other lines, as of the smoke version.
    """
    for name, pairs in parts.items():
        for side, language in enumerate(("en", "de")):
            command.write_once(directory / f"{name}.{language}", "".join(f"{pair[side]}\n" for pair in pairs))
