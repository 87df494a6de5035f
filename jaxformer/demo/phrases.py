"""Phrases in two languages at once: their words, the links between them, and what other words agree with.

Gold alignments follow one convention, by which every word has a link:

- A word is linked to its translation; of an expression of several words (``look for``, ``parce que``), each word is.
- One word for two of the other language has two links: ``du`` to ``of the``, ``saw`` to ``a vu``, ``not`` to ``ne ... pas``.
- The auxiliary of an English verb is linked to the finite French verb, and ``do`` in a question also to ``est-ce que``.
- A word without a counterpart is linked to the translation of the word that requires it: an article to that of its noun
  (``chess``, ``les échecs``), a preposition to that of its verb (``misses``, ``manque à``).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxformer.demo import lexicon
from jaxformer.demo.lexicon import ADJECTIVES, BE, HAVE, Adjective, Noun, Verb

Items = Sequence["str | Phrase"]
ELIDED = {"le": "l'", "la": "l'", "de": "d'", "ne": "n'", "je": "j'", "que": "qu'", "me": "m'"}
CONTRACTED = {("de", "le"): "du", ("de", "les"): "des", ("à", "le"): "au", ("à", "les"): "aux"}
DETERMINERS = {"the": "le la les", "this": "ce cette ces", "a": "un une des", **lexicon.POSSESSIVES, **lexicon.NUMBERS,
               "all": "le la les", "part": "de+le de+la de+les"}  # no English word: "jouer au tennis", "boire du thé"  # fmt: skip
NEGATIONS = {"not": "pas", "never": "jamais", "no_longer": "plus"}


@dataclass(frozen=True)
class Pair:
    """A sentence and its translation, the construction they show, and the combinations by which the corpus is split.

    `alignment` is gold: the links (English index, French index) between the `words` of the two sentences, all sure.
    """

    english: str
    french: str
    construction: str
    features: frozenset[tuple[str, str]] = frozenset()
    alignment: tuple[tuple[int, int], ...] = ()
    tags: tuple[str, ...] = ()  # the part of speech of each English word, of Universal Dependencies


@dataclass(eq=False)
class Phrase:
    """Words of both languages, the links between them, the combinations they use, and what other words agree with."""

    english: tuple[str, ...]
    french: tuple[str, ...]
    links: frozenset[tuple[int, int]]
    tags: tuple[str, ...] = ()  # of the English words
    features: frozenset[tuple[str, str]] = frozenset()
    feminine: bool = False
    plural: bool = False
    index: int = 1  # of its verb in a conjugation: je, il, nous, vous, ils
    noun: Noun | None = None

    @property
    def ending(self) -> str:
        """The ending of a participle that agrees with it."""
        return "e" * self.feminine + "s" * self.plural


def words(text: str) -> tuple[str, ...]:
    """Splits a sentence into the words that alignments count: ``L'|école|est-elle|fermée|?``."""
    return tuple(re.findall(r"\w+(?:-\w+)*'?|[^\w\s]", text))


def tagged(pair: Pair) -> str:
    """Returns the English sentence as rows of a word, a tab and its part of speech, and a blank line.

    >>> tagged(Pair("She sings.", "Elle chante.", "action", tags=("PRON", "VERB", "PUNCT")))
    'She\\tPRON\\nsings\\tVERB\\n.\\tPUNCT\\n\\n'
    """
    rows = zip(words(pair.english), pair.tags, strict=True)
    return "".join(f"{word}\t{tag}\n" for word, tag in rows) + "\n"


def tie(english: Items, french: Items | None = None) -> Phrase:
    """Composes a phrase of words and of phrases, which keep their links; French has the English order unless given.

    Words that share a letter after the slash are linked, as are words without; ``_`` joins words with the same letters.
    """
    sides, tags = [], ()
    for side, items in enumerate((english, english if french is None else french)):
        found, begins, roles = [], {}, []
        for item in items:
            if isinstance(item, Phrase):
                assert item not in begins, "a phrase must stand once"
                begins[item] = len(found)
                found += item.french if side else item.english
                tags += () if side else item.tags
            else:
                for token, _, letters in (token.partition("/") for token in item.split() if token[0] != "/"):
                    roles += [(len(found) + i, set(letters or "-")) for i in range(token.count("_") + 1)]
                    found += token.split("_")
                    tags += () if side else tuple(part_of_speech(word, letters) for word in token.split("_"))
        sides.append((tuple(found), begins, roles))
    (first, begins, roles), (second, places, others) = sides
    assert begins.keys() == places.keys(), "a phrase must stand in both languages"
    links = {(begins[phrase] + i, places[phrase] + j) for phrase in begins for i, j in phrase.links}
    links |= {(i, j) for i, role in roles for j, other in others if role & other}
    return Phrase(first, second, frozenset(links), tags, frozenset().union(*(phrase.features for phrase in begins)))


def part_of_speech(word: str, letters: str = "") -> str:
    """Returns the part of speech of an English word with these letters of `tie`: v for a verb, o for an object; or "X".

    >>> [part_of_speech("open", "tv"), part_of_speech("open"), part_of_speech("her", "o"), part_of_speech("her")]
    ['VERB', 'ADJ', 'PRON', 'DET']
    """
    if "o" in letters and word in ("her", "that"):
        return "PRON"
    return lexicon.CLOSED.get(word) or ("VERB" if "v" in letters else lexicon.OPEN.get(word, "X"))


def said(english: str, french: str, *features: tuple[str, str]) -> Phrase:
    """Returns a phrase of words alone: without letters, every word is linked with every word of the other language."""
    phrase = _said(english, french)
    return Phrase(phrase.english, phrase.french, phrase.links, phrase.tags, frozenset(features))


@functools.cache
def _said(english: str, french: str) -> Phrase:
    return tie([english], [french])


def begins_with_vowel(word: str) -> bool:
    """Returns True if the preceding word elides: before a vowel, or an h that is not aspirated."""
    return word[0] in "aeiouyâàéèêëîïôûœh" and word not in ("héros", "hibou", "hiboux", "haricot", "haricots")


def noun_phrase(noun: Noun, adjectives: list[Adjective], determiner: str, plural: bool, negated: bool) -> Phrase:
    """Returns a determiner, adjectives and a noun; as the object of a negation, French has "de" for "a" and "some"."""
    forms = DETERMINERS[determiner].split()
    le = forms[-1 if plural or "les" in noun.kinds else 1 if noun.feminine and len(forms) > 1 else 0].replace("+", " ")
    if determiner in ("all", "part"):
        whole = said(noun.english, f"{'de' if negated and determiner == 'part' else le} {noun.french}")
        return replace(whole, feminine=noun.feminine, noun=noun)
    link = not plural and not noun.feminine and begins_with_vowel(noun.french)
    form = lambda a: a.forms[3] if a.before and link else a.form(feminine=noun.feminine, plural=plural)
    of = {a: said(a.english, form(a)) for a in sorted(adjectives, key=ADJECTIVES.index)}
    named = said(noun.english_plural, noun.french_plural) if plural else said(noun.english, noun.french)
    before = [of[a] for a in of if a.before]
    english, french = [*of.values(), named], [*before, named, *(of[a] for a in reversed(of) if not a.before)]
    if not plural and begins_with_vowel(french[0].french[0]):
        le = {"ma": "mon", "sa": "son", "ce": "cet"}.get(le, le)
    the = "these" if plural and determiner == "this" else determiner
    if determiner == "a":
        le = "de" if negated or (plural and before) else le
        the = ("any" if negated else "some") if plural else "an" if english[0].english[0][0] in "aeiouAEIOU" else "a"
    article, features = said(the, le), frozenset((a.english, noun.english) for a in of)
    whole = tie([article, *english], [article, *french])
    return replace(whole, features=features, feminine=noun.feminine, plural=plural, index=1 + 3 * plural, noun=noun)


@dataclass(frozen=True)
class Clause:
    """A verb with its subject, tense and negation, and an object pronoun: English, French, what its participle ends in.

    Its words have letters for `tie`: t for what bears the tense, v for the verb, n for the negation, o for the object.
    """

    verb: Verb
    subject: Phrase
    tense: str  # present, past, progressive past, or future
    negation: str = ""  # a key of NEGATIONS
    pronoun: tuple[str, str, str] = ("", "", "")

    def group(self) -> Phrase:
        """Returns the verbs of both languages, with their negation and object pronoun."""
        return said(self.english(), self.french(NEGATIONS.get(self.negation)))

    def english(self) -> str:
        """Returns the English verb."""
        base, third, past, ing = self.verb.english
        negation = f"{self.negation}/n"
        found = f"{negation} {past if self.tense == 'past' else third if self.subject.index == 1 else base}/tv"
        if self.verb is BE:
            found = f"{self.auxiliary()}/tv {negation}"
        elif self.tense in ("progressive", "future") or self.negation == "not":
            found = f"{self.auxiliary()}/t {negation} {ing if self.tense == 'progressive' else base}/v"
        return f"{found} {self.pronoun[0]}/o"

    def auxiliary(self) -> str:
        """Returns the English word before the subject of a question: "did", "will", or a form of "be"."""
        if self.verb is BE or self.tense == "progressive":
            forms = ("am", "is", "are") if self.tense == "present" else ("was", "was", "were")
            return forms[min(self.subject.index, 2)]
        return {"past": "did", "future": "will"}.get(self.tense, "does" if self.subject.index == 1 else "do")

    def french(self, closing: str | None = None, *, inverted: bool = False) -> str:
        """Returns the French verb; `closing` closes a negation ("" if another word does), `inverted` appends the subject."""
        verb, index, done, letters = self.verb, self.subject.index, "", "tv"
        if self.tense == "past" and "state" not in verb.flags:
            moves = "être" in verb.flags
            finite, letters = (BE if moves else HAVE).present[index], "t"
            done = f"{verb.participle}{self.subject.ending if moves else self.pronoun[2]}/v"
        elif self.tense == "present":
            finite = verb.present[index]
        elif self.tense == "future":
            finite = verb.future + ("ai", "a", "ons", "ez", "ont")[index]
        else:
            stem = verb.imperfect[:-1] if verb.imperfect.endswith("ge") and index in (2, 3) else verb.imperfect
            finite = stem + ("ais", "ait", "ions", "iez", "aient")[index]
        if inverted:
            bridge = "-t-" if finite[-1] in "ae" and index == 1 else "-"
            finite, letters = f"{finite}{bridge}{self.subject.french[0]}", letters + "s"
        ne, particle = "" if closing is None else "ne/n", "".join(verb.flags & {"à", "de"})
        return f"{ne} {self.pronoun[1]}/o {finite}/{letters} {closing or ''}/n {done} {particle}/v"


def sentence(construction: str, whole: Phrase) -> Pair:
    """Returns the two sentences as text, with their alignment, after elision and contraction."""
    joined: list[tuple[str, list[int]]] = []  # a word, and the indices of the words that it is made of
    for i, (word, following) in enumerate(zip(whole.french, (*whole.french[1:], "."), strict=True)):
        spelled = ELIDED[word] if word in ELIDED and begins_with_vowel(following) else word
        if joined and (joined[-1][0], spelled) in CONTRACTED:
            joined[-1] = CONTRACTED[joined[-1][0], spelled], [*joined[-1][1], i]
        else:
            joined.append((spelled, [i]))
    position = {i: place for place, (_, indices) in enumerate(joined) for i in indices}
    links = sorted({(i, position[j]) for i, j in whole.links})
    assert {i for i, _ in links} == set(range(len(whole.english))), "an English word has no link"
    assert {j for _, j in links} == set(range(len(joined))), "a French word has no link"
    english = re.sub(r" ([.?])", r"\1", " ".join(whole.english))
    french = " ".join(word for word, _ in joined).replace("' ", "'").replace(" .", ".")
    english, french = (text[0].upper() + text[1:] for text in (english, french))
    return Pair(english, french, construction, whole.features, tuple(links), whole.tags)
