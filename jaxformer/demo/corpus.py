"""An English-French corpus from a hand-written grammar: small, correct, and full of the difficulties of translation.

Adjectives change places and agree with nouns that are some words away; verbs have tenses, negations and objects that
move; words such as "bank", "know", "miss" and "spring" have different translations in different contexts. Every English
sentence has one translation, a function of the sentence alone, so a model can in principle learn the whole corpus.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import zlib

from jaxformer.demo import ambiguous, clauses, questions, statements
from jaxformer.demo.phrases import Pair

CONSTRUCTIONS = {  # weights of the draws
    statements.action: 8, statements.state: 6, statements.institution: 4, statements.birth: 1, statements.motion: 4,
    statements.activity: 4, statements.existence: 2, statements.comparison: 3, statements.possession: 2,
    statements.identity: 2, statements.modal: 3, statements.dative: 3, statements.nothing: 2,
    clauses.relative_object: 7, clauses.relative_subject: 3, clauses.object_pronoun: 4, clauses.pronoun_object: 3,
    clauses.because: 3, clauses.know: 3,
    questions.do_question: 3, questions.works_there: 1, questions.what: 1, questions.be_question: 2, questions.who: 1,
    questions.how_many: 1, questions.where_does: 1,
    ambiguous.eat_and_drink: 2, ambiguous.play: 1, ambiguous.miss: 2, ambiguous.bank: 1, ambiguous.light: 1, ambiguous.spring: 1,
}  # fmt: skip

EXAMPLES = (
    Pair("The agreement on the European Economic Area was signed in August 1992.",
         "L'accord sur la zone économique européenne a été signé en août 1992.", "institution"),
    Pair("The white Italian dresses that my aunt sold were beautiful.",
         "Les robes italiennes blanches que ma tante a vendues étaient belles.", "relative clause"),
    Pair("Why did the old actress hide her keys?", "Pourquoi est-ce que la vieille actrice a caché ses clés ?", "question"),
    Pair("The girl finds the old watch and hides it.", "La fille trouve la vieille montre et la cache.", "object pronoun"),
    Pair("The tired farmer misses his brother.", "Son frère manque au fermier fatigué.", "miss"),
)  # fmt: skip
"""Example sentences; none of them is in the training part of `splits`."""


@dataclasses.dataclass(frozen=True)
class GrammarSplits:
    """The corpus in four parts that share no sentence.

    The sentences of `seen` have the constructions and combinations of the training part. Those of `unseen` have
    combinations that never occur there: an adjective or a verb with a noun, a name of an institution, or a relative
    clause with a negation in the past.
    """

    train: tuple[Pair, ...]
    validation: tuple[Pair, ...]
    seen: tuple[Pair, ...]
    unseen: tuple[Pair, ...]


def generate(num_pairs: int, *, seed: int = 0) -> list[Pair]:
    """Returns `num_pairs` pairs with distinct English sentences; a larger number adds pairs at the end."""
    pick = random.Random(seed)  # noqa: S311 - a corpus, not a secret
    makers, weights = list(CONSTRUCTIONS), list(CONSTRUCTIONS.values())
    pairs: dict[str, Pair] = {}
    while len(pairs) < num_pairs:
        pair = pick.choices(makers, weights)[0](pick)
        first = pairs.setdefault(pair.english, pair)
        assert first.french == pair.french, f"{pair.english} means {first.french} and {pair.french}"
    return list(pairs.values())


def text(num_sentences: int = 20_000, *, seed: int = 0) -> str:
    """Returns distinct English sentences, one per line, as a text for a language model; 0.8 MB by default."""
    return "".join(f"{pair.english}\n" for pair in generate(num_sentences, seed=seed))


@functools.cache  # it takes some seconds, and the result is immutable
def splits(*, num_train: int = 72_000, num_test: int = 500) -> GrammarSplits:
    """Returns the training, validation and test parts of the demonstration."""
    # One pair in 17 has a held-out combination. A larger pool adds pairs at the end, so the parts stay the same.
    pool = generate(max(num_train * 5 // 4 + 12 * num_test, 20 * num_test))
    unseen = [pair for pair in pool if _held_out(pair)]
    rest = [pair for pair in pool if not _held_out(pair)]
    # Several English sentences may have the same translation; that of a test sentence must not be in training either.
    test, train = rest[: 2 * num_test], rest[2 * num_test :]
    tested = (*test, *unseen[:num_test], *EXAMPLES)
    english, french = ({getattr(pair, side) for pair in tested} for side in ("english", "french"))
    train = [pair for pair in train if pair.french not in french and pair.english not in english][:num_train]
    if len(train) < num_train or len(unseen) < num_test:
        raise ValueError(f"the grammar gave {len(train)} training and {len(unseen)} unseen pairs; draw more")
    return GrammarSplits(tuple(train), tuple(test[num_test:]), tuple(test[:num_test]), tuple(unseen[:num_test]))


def _held_out(pair: Pair) -> bool:
    if ("that", "past not") in pair.features:
        return True
    return any(zlib.crc32(f"{a} {b}".encode()) % 25 == 0 for a, b in pair.features)
