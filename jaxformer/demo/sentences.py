"""An English-French corpus from a hand-written grammar: small, correct, and full of the difficulties of translation.

Adjectives change places and agree with nouns that are some words away; verbs have tenses, negations and objects that
move; words such as "bank", "know", "miss" and "spring" have different translations in different contexts. Every English
sentence has one translation, a function of the sentence alone, so a model can in principle learn the whole corpus.
"""

from __future__ import annotations

import collections
import functools
import importlib.resources
import itertools
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from jaxformer.demo import lexicon
from jaxformer.demo.lexicon import ADJECTIVES, BE, HAVE, NOUNS, VERBS, Noun, Verb
from jaxformer.demo.phrases import Clause, Pair, Phrase, noun_phrase, said, sentence, tie, words
from jaxformer.digests import short_digest

PRONOUNS = {  # English subject, English object, French subject, direct and indirect object, index of the verb
    "I": ("me", "je", "me", "me", 0), "he": ("him", "il", "le", "lui", 1), "she": ("her", "elle", "la", "lui", 1),
    "we": ("us", "nous", "nous", "nous", 2), "you": ("you", "vous", "vous", "vous", 3), "they": ("them", "ils", "les", "leur", 4),
}  # fmt: skip
SUBJECTS = {
    name: replace(said(name, il), index=index, feminine=name == "she", plural=index > 1)
    for name, (_, il, _, _, index) in PRONOUNS.items()
}
PAST, SIMPLE = ("present", "past", "past", "progressive"), ("present", "past", "past", "future")
ANY, KNOWN, THERE = "the the the a a a this my two", "the the the this my", "the the the this"  # determiners
THINGS, SOME, FEW = "animal building vehicle thing clothes text food", "0001112", "001"  # kinds; numbers of adjectives


@functools.cache
def nouns_of(kinds: str) -> tuple[Noun, ...]:
    """Returns the nouns of any of these kinds."""
    return tuple(noun for noun in NOUNS if noun.kinds & set(kinds.split()))


verbs_of = functools.cache(lambda flags: tuple(verb for verb in VERBS if verb.flags & set(flags.split())))
adjectives_of = functools.cache(lambda kinds: tuple(a for a in ADJECTIVES if a.suits & kinds))


def be(subject: Phrase, tense: str, negation: str = "") -> Phrase:
    """Returns a form of "be"."""
    return Clause(BE, subject, tense, negation).group()


class Sentences(random.Random):
    """Draws phrases and, for each construction, a sentence such as the one beside its name."""

    def noun(self, nouns: Sequence[Noun], of: str = ANY, adjectives: str = FEW, negated: bool = False) -> Phrase:
        """Draws one of the nouns, a determiner ("my" is any possessive, "two" any number), and a number of adjectives."""
        noun = self.choice(nouns)
        fixed = [kind for kind in noun.kinds if kind in ("part", "the", "all")]
        plural = not fixed and of != THERE and "one" not in noun.kinds and self.random() < 0.3
        options = [d for d in of.split() if {"two": plural, "my": "public" not in noun.kinds}.get(d, True)]
        owned = [d for d in options if "family" in noun.kinds and d in ("my", "two")]
        determiner, tables = self.choice(fixed or owned or options), {"my": lexicon.POSSESSIVES, "two": lexicon.NUMBERS}
        determiner = self.choice(list(tables.get(determiner, [determiner])))
        chosen = []
        for _ in range(int(self.choice(adjectives))):
            kinds = {a.before or a.kind for a in chosen}
            fit = [a for a in adjectives_of(noun.kinds) if (a.before or a.kind) not in kinds]
            chosen += [self.choice(fit)] if fit else []
        return noun_phrase(noun, chosen, determiner, plural, negated)

    def clause(self, verbs: Sequence[Verb], tenses: Sequence[str], no: float = 0, by: Phrase | None = None) -> Clause:
        """Draws a verb, its subject unless given, a tense, and a negation with this probability.

        The past replaces a present that looks the same ("they read"): each sentence has one meaning. With "être", the
        subject shows its gender and number, so that the participle can agree with it.
        """
        verb, tense = self.choice(verbs), self.choice(tenses)
        if by is None and self.random() < 0.25:
            by = SUBJECTS[self.choice(("he", "she", "they") if "être" in verb.flags else tuple(SUBJECTS))]
        animal = "animal" in verb.flags and len(verbs) > 1 and self.random() < 0.3
        subject = by or self.noun(nouns_of("animal" if animal else "person"), ANY, SOME)
        same = tense == "present" and verb.english[0] == verb.english[2] and subject.index != 1
        tense = "past" if same or (tense == "progressive" and not verb.english[3]) else tense
        rare = "not" if tense == "progressive" else "no_longer" if "state" in verb.flags else "never"
        return Clause(verb, subject, tense, self.choice(("not", rare)) if self.random() < no else "")

    def object(self, clause: Clause, of: str = "", adjectives: str = FEW) -> Phrase:
        """Draws the object of a verb; that of a verb of state is definite."""
        verb, negated = clause.verb, bool(clause.negation)
        usual = ("a" if negated else "a two") if verb is HAVE else KNOWN if "state" in verb.flags else ANY
        found = self.noun(nouns_of(verb.object), of or usual, adjectives, negated)
        counted = [found.noun] if found.noun and not found.noun.kinds & {"part", "the", "all"} else []
        return replace(found, features=found.features.union((verb.english[0], noun.english) for noun in counted))

    def rest(self, clause: Clause, of: str = "", places: str = "") -> list[Phrase]:
        """Draws what follows a verb: a place, a destination, an object, or an object and a person."""
        if clause.verb.flags & {"place", "goal"}:
            place = self.noun(nouns_of(places or clause.verb.object), THERE)
            at, sur, to = place.noun.place if place.noun else ("", "", "")
            return [said("to", to) if "goal" in clause.verb.flags else said(at, sur), place]
        given = [said("to", "à"), self.noun(nouns_of("person"))] if "dative" in clause.verb.flags else []
        return [self.object(clause, of), *given]

    def adjective(self, subject: Phrase) -> Phrase:
        """Draws an adjective that says something new of a noun phrase, and agrees with it."""
        noun, used = subject.noun or lexicon.NOUNS[0], {english for english, _ in subject.features}
        kinds = {"look" if "person" in noun.kinds else ""} | {a.kind for a in ADJECTIVES if a.english in used}
        fit = [a for a in adjectives_of(noun.kinds) if a.english not in (*used, "new")]  # neuf, not nouveau
        found = self.choice([a for a in fit if a.kind not in kinds] or fit)
        form = found.form(feminine=subject.feminine, plural=subject.plural)
        return said(found.english, form, (found.english, noun.english))

    def statement(self, verbs: Sequence[Verb], places: str = "") -> Phrase:  # The man does not see the white houses.
        clause = self.clause(verbs, (*PAST, "present", "future"), 0.2)
        return tie([clause.subject, clause.group(), *self.rest(clause, places=places)])

    def state(self) -> Phrase:  # The doors of the old man are not green.
        subject = self.noun(nouns_of(f"{THINGS} person"), KNOWN, SOME)
        if self.random() < 0.5:
            head = self.noun(nouns_of("animal vehicle thing clothes text"), "the")
            owned = tie([head, said("of", "de"), self.noun(nouns_of("person"), KNOWN)])
            subject = replace(owned, feminine=head.feminine, plural=head.plural, index=head.index, noun=head.noun)
        verb = be(subject, self.choice(("present", "past")), self.choice(("", "", "not")))
        return tie([subject, verb, self.adjective(subject)])

    def institution(self) -> Phrase:  # The agreement on the European Economic Area was signed in August 1992.
        subject = noun_phrase(self.choice(nouns_of("document")), [], "the", False, False)
        outer, inner = (self.choice([a for a in ADJECTIVES if a.kind == kind]) for kind in ("outer", "inner"))
        name = noun_phrase(noun := self.choice(nouns_of("institution")), [outer, inner], "the", False, False)
        name = replace(name, features=frozenset({(outer.english, f"{inner.english} {noun.english}")}))
        (done, fait), (month, mois) = self.choice(lexicon.PASSIVES), self.choice(lexicon.MONTHS)
        mark, ne, pas = self.choice((("not", "ne", "pas"), *[("", "", "")] * 4))
        verb = said(f"was/t {mark}/n {done}/v", f"{ne}/n a/t {pas}/n été/t {fait}{subject.ending}/v")
        date = said(f"in/i {month}/m {(year := self.choice(lexicon.YEARS))}/y", f"en/i {mois}/m {year}/y")
        return tie([subject, said("on", "sur"), name, verb, date])

    def someone(self, who: str, qui: str, closing: str | None) -> Phrase:  # Who broke the window?
        clause = self.clause(VERBS, SIMPLE, by=SUBJECTS["he"])
        verb = said(f"{who}/n {clause.english()}", f"{qui}/n {clause.french(closing)}")
        return tie([verb, *self.rest(replace(clause, negation="" if closing is None else "not"), KNOWN)])

    def relative_clause(self) -> Phrase:  # The houses that the old man buys are white.
        clause = self.clause(verbs_of("thing love"), PAST, 0.2)
        head = self.object(clause, "the", "0012")
        that = said("that/o", "que/o", *([("that", f"{clause.tense} {clause.negation}")] if clause.negation else []))
        done = replace(clause, pronoun=("", "", head.ending)).group()
        verb = be(head, "present" if clause.tense == "present" else self.choice(PAST[:2]))
        return tie([head, that, clause.subject, done, verb, self.adjective(head)])

    def relative_subject(self) -> Phrase:  # The women who sell the apples are happy.
        head = self.noun(nouns_of("adult child"), "the")
        clause = self.clause(VERBS, PAST, 0.2, head)
        verb = be(head, "present" if clause.tense == "present" else self.choice(PAST[:2]))
        return tie([head, said("who", "qui"), clause.group(), *self.rest(clause), verb, self.adjective(head)])

    def pronoun(self) -> Phrase:  # They were not waiting for us.
        clause = self.clause(verbs_of("human"), (*PAST, "future"), 0.3)
        own = {0: ("I", "we"), 2: ("I", "we"), 3: ("you",)}.get(clause.subject.index, ())
        name = self.choice([name for name in PRONOUNS if name not in own])
        me, _, french, *_ = PRONOUNS[name]
        tense = "future" if clause.tense == "past" and name in ("I", "we", "you") else clause.tense  # no gender shown
        return tie([clause.subject, replace(clause, tense=tense, pronoun=(me, french, SUBJECTS[name].ending)).group()])

    def object_pronoun(self) -> Phrase:  # The boy buys the apple and eats it.
        noun = self.choice(nouns_of(f"{THINGS} person"))
        verbs = [verb for verb in verbs_of("thing human") if set(verb.object.split()) & noun.kinds]
        first, second = sorted(self.sample(verbs, 2), key=VERBS.index)  # one gets things before one uses them
        clause, found = self.clause([first], SIMPLE), self.noun([noun], "the the this a my")
        him = ("her" if noun.feminine else "him") if "person" in noun.kinds else "it"
        it, le = ("them", "les") if found.plural else (him, "la" if noun.feminine else "le")
        again = [] if clause.subject.noun else [replace(clause.subject)]
        then = replace(clause, verb=second, pronoun=(it, le, found.ending)).group()
        return tie([clause.subject, clause.group(), found, said("and", "et"), *again, then])

    def because(self) -> Phrase:  # The girl loves this house because it is old.
        clause = self.clause(verbs_of("thing love"), PAST[:3])
        found = self.object(clause, "the this", "0")
        it = said("they" if found.plural else "it", ("elle" if found.feminine else "il") + "s" * found.plural)
        link, verb = said(*self.choice((("because", "parce que"), ("but", "mais")))), be(found, clause.tense)
        return tie([clause.subject, clause.group(), found, link, it, verb, self.adjective(found)])

    def know(self) -> Phrase:  # She knows my uncle. She knows that he is tired. She knows where the key is.
        which = self.choice(("", "that", "where"))
        clause = self.clause([lexicon.KNOW_FACT if which else lexicon.KNOW_PERSON], PAST[:2], 0.3)
        known = self.noun(nouns_of("keep" if which == "where" else "person"), KNOWN, SOME)
        start, finite, where = [clause.subject, clause.group()], be(known, clause.tense), said("where", "où")
        if which == "where":
            return tie([*start, where, known, finite], [*start, where, finite, known])
        return tie([*start, said("that", "que"), known, finite, self.adjective(known)] if which else [*start, known])

    def question(self) -> Phrase:  # Why does the girl read the letter? Where did he work?
        clause = self.clause(verbs_of("thing human bare dative place goal"), SIMPLE)
        do, base, rest = f"{clause.auxiliary()}/t", f"{clause.verb.english[0]}/v", self.rest(clause)
        if clause.subject.noun or clause.subject.french == ("je",):
            asked = tie([do, clause.subject, base], ["est-ce_que/t", clause.subject, clause.french()])
        else:
            asked = said(f"{do} {clause.subject.english[0]}/s {base}", clause.french(inverted=True))
        where = ("where", "où") if "place" in clause.verb.flags else ("", "")
        why = said(*self.choice((("", ""), ("why", "pourquoi"), ("when", "quand"), where)))
        return tie([why, asked, *([] if why.english == ("where",) else rest)])

    def miss(self) -> Phrase:  # He misses the train. He misses his brother, in French: his brother "lacks to him".
        if self.random() < 0.4:
            return self.statement(verbs_of("miss"))
        clause, missed = self.clause([lexicon.MISS_PERSON], SIMPLE), self.noun(nouns_of("family"))
        english, french = clause.english(), replace(clause, subject=missed).french()
        if clause.subject.noun:
            return tie([clause.subject, verb := said(english, french), missed], [missed, verb, clause.subject])
        name = clause.subject.english[0]
        verb = said(f"{name}/o {english}", f"{PRONOUNS[name][3]}/o {french.replace('à/v', '')}")
        return tie([verb, missed], [missed, verb])


CONSTRUCTIONS: dict[str, tuple[float, Callable[[Sentences], Phrase]]] = {  # weight, maker
    "action": (8, lambda draw: draw.statement(verbs_of("thing human love"))), "bare": (3, lambda draw: draw.statement(verbs_of("bare"))),
    "possession": (2, lambda draw: draw.statement([HAVE])), "activity": (4, lambda draw: draw.statement(verbs_of("place"))),
    "motion": (4, lambda draw: draw.statement(verbs_of("goal"))), "dative": (3, lambda draw: draw.statement(verbs_of("dative"))),
    "state": (6, Sentences.state), "institution": (6, Sentences.institution), "who": (2, lambda draw: draw.someone("who", "qui", None)),
    "nobody": (2, lambda draw: draw.someone("nobody", "personne", "")), "relative clause": (7, Sentences.relative_clause),
    "relative subject": (3, Sentences.relative_subject), "pronoun": (4, Sentences.pronoun), "object pronoun": (3, Sentences.object_pronoun),
    "because": (3, Sentences.because), "know": (3, Sentences.know), "question": (6, Sentences.question), "miss": (2, Sentences.miss),
    "bank": (1, lambda draw: draw.statement(verbs_of("place"), "shore money")),
    "spring": (1, lambda draw: draw.statement(verbs_of("place"), "season source")),
}  # fmt: skip
EXAMPLES = (
    Pair("The agreement on the European Economic Area was signed in August 1992.", "L'accord sur la zone économique européenne a été signé en août 1992.", "institution"),
    Pair("The white Italian dresses that my aunt sold were beautiful.", "Les robes italiennes blanches que ma tante a vendues étaient belles.", "relative clause"),
    Pair("Why did the old actress hide her keys?", "Pourquoi est-ce que la vieille actrice a caché ses clés ?", "question"),
    Pair("The girl finds the old watch and hides it.", "La fille trouve la vieille montre et la cache.", "object pronoun"),
    Pair("The tired farmer misses his brother.", "Son frère manque au fermier fatigué.", "miss"),
)  # fmt: skip
"""Example sentences; none of them is in the training part of `splits`."""


@dataclass(frozen=True)
class GrammarSplits:
    """The corpus in four parts that share no sentence.

    The sentences of `seen` have the constructions and combinations of the training part. Those of `unseen` have others:
    of an adjective or a verb with a noun, or a relative clause with a negation in the past.
    """

    train: tuple[Pair, ...]
    validation: tuple[Pair, ...]
    seen: tuple[Pair, ...]
    unseen: tuple[Pair, ...]


def generate(num_pairs: int, *, seed: int = 0) -> list[Pair]:
    """Returns `num_pairs` pairs with distinct English sentences; a larger number adds pairs at the end."""
    return list(itertools.islice(_distinct(seed), num_pairs))


def _distinct(seed: int) -> Iterator[Pair]:
    """Yields pairs with distinct English sentences, without end."""
    draw, names, weights = Sentences(seed), list(CONSTRUCTIONS), [weight for weight, _ in CONSTRUCTIONS.values()]
    french: dict[str, str] = {}
    while True:
        (name,) = draw.choices(names, weights)
        mark = "?" if name in ("who", "question") else "."
        pair = sentence(name, tie([CONSTRUCTIONS[name][1](draw), said(mark, mark)]))
        if pair.english not in french:
            french[pair.english] = pair.french
            yield pair
        assert french[pair.english] == pair.french, f"{pair.english} means {french[pair.english]} and {pair.french}"


def text(num_sentences: int = 20_000, *, seed: int = 0) -> str:
    """Returns distinct English sentences, one per line, as a text for a language model; 0.8 MB by default."""
    return "".join(f"{pair.english}\n" for pair in generate(num_sentences, seed=seed))


@functools.cache
def version() -> str:
    """Returns a hash of the grammar: the files of this package."""
    files = importlib.resources.files("jaxformer.demo").iterdir()
    return short_digest(file.read_bytes() for file in sorted(files, key=str) if file.name.endswith(".py"))


@functools.cache  # it takes some seconds, and the result is immutable
def splits(*, num_train: int = 72_000, num_test: int = 500) -> GrammarSplits:
    """Returns the training, validation and test parts of the demonstration."""
    drawn, rest, unseen = _distinct(seed=0), list[Pair](), list[Pair]()
    while len(rest) < 2 * num_test or len(unseen) < num_test:
        pair = next(drawn)
        (unseen if _held_out(pair) else rest).append(pair)
    test, unseen = rest[: 2 * num_test], unseen[:num_test]
    # Several English sentences may have the same translation; that of a test sentence must not be in training either.
    tested = (*test, *unseen, *EXAMPLES)
    english, french = ({getattr(pair, side) for pair in tested} for side in ("english", "french"))
    others = itertools.chain(rest[2 * num_test :], (pair for pair in drawn if not _held_out(pair)))
    train = (pair for pair in others if pair.french not in french and pair.english not in english)
    taken = tuple(itertools.islice(train, num_train))
    return GrammarSplits(taken, tuple(test[num_test:]), tuple(test[:num_test]), tuple(unseen))


def _held_out(pair: Pair) -> bool:
    # Only pairs with its noun tell if "big" is "gros" or "grand".
    used = [f"{a} {b}" for a, b in pair.features if a != "big"]
    return "that past not" in used or any(zlib.crc32(both.encode()) % 25 == 0 for both in used)


@functools.cache
def _dictionary() -> dict[str, str]:
    """Returns the French word that is most often linked with each English word."""
    texts = [(words(pair.english.lower()), words(pair.french.lower()), pair.alignment) for pair in generate(20_000)]
    links = collections.Counter((english[i], french[j]) for english, french, alignment in texts for i, j in alignment)
    return {english: french for (english, french), _ in reversed(links.most_common())}


def dictionary_baseline(english: str) -> str:
    """Translates a sentence word for word, each by its most frequent translation: a baseline without grammar."""
    found = " ".join(_dictionary().get(word, word) for word in words(english.lower()))
    return found[:1].upper() + found[1:].replace(" .", ".")
