"""An English-French corpus from a hand-written grammar: small, correct, and full of what makes translation hard.

Adjectives change places, agree with nouns some words away and elide; verbs have tenses, negations and objects that
move; words such as "bank", "know", "miss" and "spring" mean different things in different company.  Every English
sentence has one translation, a function of the sentence alone, so a model can in principle learn all of it.
"""

from __future__ import annotations

import dataclasses
import random
import re
import zlib

from jaxformer.data.grammar import ambiguous, lexicon, sentences
from jaxformer.data.grammar.phrases import POSSESSIVES
from jaxformer.data.grammar.sentences import Pair as Pair

CONSTRUCTIONS = {  # how often each is drawn
    sentences.action: 6, sentences.state: 4, sentences.relative: 5, sentences.institution: 5, sentences.pronoun: 4,
    sentences.question: 3, sentences.motion: 3, sentences.activity: 3, sentences.existence: 2, sentences.comparison: 2,
    ambiguous.eat_and_drink: 2, ambiguous.play: 1, ambiguous.know: 2, ambiguous.miss: 2, ambiguous.bank: 1,
    ambiguous.light: 1, ambiguous.spring: 1, ambiguous.owner: 2, ambiguous.someone_likes: 1,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Splits:
    """The corpus in four parts that share no sentence.

    `seen` are sentences of the constructions and combinations of the training part; `unseen` are made of
    combinations that never occur there: an adjective with a noun, a name of an institution, a relative clause with
    a negation in the past.
    """

    train: tuple[Pair, ...]
    validation: tuple[Pair, ...]
    seen: tuple[Pair, ...]
    unseen: tuple[Pair, ...]


def generate(num_pairs: int, *, seed: int = 0) -> list[Pair]:
    """`num_pairs` pairs, no English sentence twice; a prefix of what a larger number gives."""
    pick = random.Random(seed)  # noqa: S311 - a corpus, not a secret
    makers, weights = list(CONSTRUCTIONS), list(CONSTRUCTIONS.values())
    found: dict[str, Pair] = {}
    while len(found) < num_pairs:
        pair = pick.choices(makers, weights)[0](pick)
        found.setdefault(pair.english, pair)
    return list(found.values())


def splits(*, seed: int = 0, num_train: int = 24_000, num_test: int = 500) -> Splits:
    """The parts that the demonstration trains on and is tested on."""
    held = {pair.english for pair in EXAMPLES}
    pool = [pair for pair in generate(num_train + 12 * num_test, seed=seed) if pair.english not in held]
    unseen = [pair for pair in pool if _held_out(pair)]
    rest = [pair for pair in pool if not _held_out(pair)]
    # A French sentence may translate several English ones; a test sentence's must not be in training either.
    test, train = rest[: 2 * num_test], rest[2 * num_test :]
    french = {pair.french for pair in (*test, *unseen[:num_test])}
    train = [pair for pair in train if pair.french not in french][:num_train]
    if len(train) < num_train or len(unseen) < num_test:
        raise ValueError(f"the grammar gave {len(train)} training and {len(unseen)} unseen pairs; draw more")
    return Splits(tuple(train), tuple(test[num_test:]), tuple(test[:num_test]), tuple(unseen[:num_test]))


def _held_out(pair: Pair) -> bool:
    if ("relative clause", "past not") in pair.features:
        return True
    return any(zlib.crc32(f"{a} {b}".encode()) % 25 == 0 for a, b in pair.features)


def dictionary_baseline(english: str) -> str:
    """The sentence word for word through a dictionary of base forms: what translation is without grammar."""
    words = re.findall(r"\w+|[^\w\s]", english)
    text = " ".join(_DICTIONARY.get(word.lower(), word) for word in words)
    text = re.sub(r" ([.,])", r"\1", text)
    return text[:1].upper() + text[1:]


def _dictionary() -> dict[str, str]:
    words = {
        "the": "le", "a": "un", "an": "un", "this": "ce", "these": "ces", "of": "de", "to": "à", "at": "à", "in": "dans",
        "on": "sur", "and": "et", "not": "pas", "never": "jamais", "that": "que", "it": "le", "them": "les", "him": "le",
        "is": "est", "are": "sont", "was": "était", "were": "étaient", "am": "suis", "there": "là", "will": "va",
        "do": "fait", "does": "fait", "did": "fait", "than": "que", "more": "plus", "why": "pourquoi", "when": "quand",
        "where": "où", "yesterday": "hier", "tomorrow": "demain", "today": "aujourd'hui", "bank": "banque",
        "light": "léger", "spring": "printemps", "river": "rivière", "lake": "lac", "i": "je", "we": "nous", "you": "vous",
        "he": "il", "she": "elle", "they": "ils", "look": "regarder", "for": "pour",
    }  # fmt: skip
    for english, (masculine, _, _) in POSSESSIVES.items():
        words[english] = masculine
    for noun in lexicon.NOUNS:
        words[noun.english], words[noun.english_plural] = noun.french, noun.french_plural
    for adjective in lexicon.ADJECTIVES:
        words[adjective.english.lower()] = adjective.masculine
    for english, comparative in sentences.COMPARABLE.items():
        words.setdefault(
            comparative.split()[-1], f"plus {words[english]}" if " " not in comparative else words[english]
        )
    verbs = (*lexicon.TRANSITIVE, *lexicon.INTRANSITIVE, *lexicon.MOTION, lexicon.PLAY, lexicon.KNOW_PERSON,
             lexicon.MISS_TRAIN, lexicon.DRINK, lexicon.HAVE)  # fmt: skip
    for verb in verbs:
        base, third, past, participle, ing = (form.split()[0] for form in verb.english)
        for form, french in ((base, verb.infinitive), (third, verb.present[1]), (ing, verb.infinitive),
                             (past, verb.participle), (participle, verb.participle)):  # fmt: skip
            words.setdefault(form, french)
    for table in (lexicon.MONTHS, lexicon.NUMBERS):
        words.update({english.lower(): french for english, french in table.items()})
    for english, (french, *_) in (lexicon.MASSES | lexicon.INSTRUMENTS | lexicon.SPORTS).items():
        words[english] = french
    for english, french, *_ in (*lexicon.INSTITUTIONS, *lexicon.OUTER, *lexicon.DOCUMENTS, *lexicon.PASSIVES):
        words.setdefault(english.lower(), french)
    for english, forms in lexicon.INNER:
        words[english.lower()] = forms.partition("/")[0]
    return words


_DICTIONARY = _dictionary()

EXAMPLES = (
    Pair("The agreement on the European Economic Area was signed in August 1992.",
         "L'accord sur la zone économique européenne a été signé en août 1992.", "institution"),
    Pair("The white Italian dresses that my aunt bought were beautiful.",
         "Les robes italiennes blanches que ma tante a achetées étaient belles.", "relative clause"),
    Pair("Why did the old actress hide her keys?", "Pourquoi est-ce que la vieille actrice a caché ses clés ?", "question"),
    Pair("The girl finds the orange and eats it.", "La fille trouve l'orange et la mange.", "object pronoun"),
    Pair("The tired farmer misses his brother.", "Son frère manque au fermier fatigué.", "miss"),
)  # fmt: skip
"""Sentences to show, none of them in `splits`' training part."""
