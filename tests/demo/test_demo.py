"""The built-in corpus: correct French, one translation a sentence, no test sentence in training."""

import os
import random
import re
import subprocess
import sys
import time

import pytest
import sacrebleu

from jaxformer import demo
from jaxformer.demo import clauses, dictionary, lexicon, phrases, questions, statements, verbs
from jaxformer.demo.phrases import Pair


@pytest.fixture(scope="module")
def parts():
    return demo.splits()


@pytest.fixture(scope="module")
def corpus(parts):
    return (*parts.train, *parts.validation, *parts.seen, *parts.unseen)


def test_size_speed_and_determinism(parts):
    begin = time.process_time()
    pairs = demo.generate(10_000, seed=3)
    assert time.process_time() - begin < 5
    assert len({pair.english for pair in pairs}) == 10_000
    assert len({pair.english for pair in parts.train}) == len(parts.train) >= 20_000
    assert demo.generate(300) == demo.generate(600)[:300] != demo.generate(300, seed=1)


def test_the_same_in_every_process():
    """Sets of strings come in another order in every process; none may reach the corpus."""
    code = "from jaxformer import demo; print([ascii(p.french) for p in demo.generate(1000)])"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "12"
    }
    assert len(found) == 1


def test_no_test_sentence_in_training(parts):
    english, french = ({getattr(p, side) for p in parts.train} for side in ("english", "french"))
    for part in (parts.validation, parts.seen, parts.unseen, demo.EXAMPLES):
        assert not english & {p.english for p in part}
        assert not french & {p.french for p in part}
    others = [{p.english for p in part} for part in (parts.validation, parts.seen, parts.unseen)]
    assert sum(map(len, others)) == len(set.union(*others))


def test_combinations_are_unseen(parts):
    seen = {feature for pair in parts.train for feature in pair.features}
    assert all(pair.features - seen for pair in parts.unseen)
    assert {feature for pair in parts.unseen for feature in pair.features} >= {("that", "past not")}
    assert ("that", "past not") not in seen
    assert ("that", "progressive not") in seen
    assert len({pair.construction for pair in parts.unseen}) > 15
    assert {p.construction for p in parts.unseen} <= {p.construction for p in parts.train}


def test_words_of_the_tests_are_trained_on(parts):
    """Every English word; every French form but for a rare one."""

    def words(part, side):
        return [word for pair in part for word in re.findall(r"\w+", getattr(pair, side).lower())]

    english, french = (set(words(parts.train, side)) for side in ("english", "french"))
    for part in (parts.seen, parts.unseen):
        assert set(words(part, "english")) <= english
        assert sum(word not in french for word in words(part, "french")) <= 3


def test_one_translation_a_sentence():
    """Drawn again with other seeds, a sentence has the translation it had."""
    first: dict[str, str] = {}
    again = 0
    for seed in (1, 2):
        for pair in demo.generate(10_000, seed=seed):
            again += pair.english in first
            assert first.setdefault(pair.english, pair.french) == pair.french
    assert again > 100


def test_a_second_translation_is_refused(monkeypatch):
    drawn = iter([Pair("It is a test.", "C'est un test.", ""), Pair("It is a test.", "C'est un essai.", "")])
    monkeypatch.setattr(demo, "CONSTRUCTIONS", {lambda pick: next(drawn): 1})
    with pytest.raises(AssertionError, match=r"un test.*un essai"):
        demo.generate(2)


def test_examples_are_what_the_grammar_says():
    known = {pair.english: pair.french for pair in demo.generate(60_000, seed=0)}
    assert len(demo.EXAMPLES) == 5
    assert all(known.get(pair.english, pair.french) == pair.french for pair in demo.EXAMPLES)


def test_dictionary_is_no_translator(parts):
    for part in (parts.seen, parts.unseen):
        found = [demo.dictionary_baseline(pair.english) for pair in part]
        assert 10 < sacrebleu.corpus_bleu(found, [[pair.french for pair in part]]).score < 30
    assert demo.dictionary_baseline("The old man sees the white houses.") == "Le vieux homme voit le blanc maisons."


def test_dictionary_knows_every_word(parts):
    words = {word for pair in parts.train for word in re.findall(r"[a-z]+", pair.english.lower())}
    assert not words - set(dictionary.WORDS)


def test_vocabulary_and_lengths(corpus):
    words = {word for pair in corpus for word in re.findall(r"[a-z]+", pair.english.lower())}
    assert 300 < len(words) < 700
    lengths = [len(pair.english.split()) for pair in corpus]
    assert max(lengths) <= 20
    assert 6 < sum(lengths) / len(lengths) < 10
    assert len({pair.construction for pair in corpus}) >= 30


UNLINKED = re.compile(  # the form before a consonant, before a vowel
    r"\b((ma|sa) (école|église|orange|écharpe|histoire|île|assiette)|(ce|beau|vieux|nouveau) "
    r"(acteur|ami|avocat|étudiant|enfant|homme|oiseau|oncle|hôtel|hôpital|ordinateur|arbre|article))\b"
)
HIATUS = re.compile(r"\b(le|la|de|ne|je|que|me|ce|au|du) (\w+)", re.IGNORECASE)


def test_no_sentence_lacks_an_elision_or_a_contraction(corpus):
    aspirated = ("héros", "hibou", "hiboux", "haricot", "haricots")
    for pair in corpus:
        for word, following in HIATUS.findall(pair.french):
            vowel = following[0] in "aeiouyéèêàâôûîïœh" and following not in aspirated
            assert not vowel or (word.lower() in ("au", "du") and following[0] == "h") or following == "y", pair
        assert not re.search(r"\b([Dd]e les?|[Àà] les?)\b", pair.french), pair
        assert not re.search(r"(l|d|n|j|qu|m|c)'([bcdfgjklmnpqrstvwxz]|héros|hibou|haricot)", pair.french.lower()), pair
        assert not UNLINKED.search(pair.french), pair
        assert "  " not in pair.french


CLOSINGS = re.compile(r"\b(pas|jamais|rien|personne)\b|(?<! est)(?<! sont)(?<! était)(?<! étaient) plus\b")


def test_negation_has_both_halves(corpus):
    for pair in corpus:
        opened = len(re.findall(r"\b(?:ne |n')", pair.french.lower()))
        closed = len(CLOSINGS.findall(pair.french.lower()))
        assert opened <= 1
        if opened:
            assert closed >= 1, pair
        elif re.search(r"\b(not|never|cannot|no longer|nothing|nobody)\b", pair.english.lower()):
            pytest.fail(f"no negation: {pair}")


def phrase(english, negated=False):
    """A noun phrase from its English words."""
    determiner, *adjectives, noun = english.split()
    found = next(n for n in lexicon.NOUNS if noun in (n.english, n.english_plural))
    chosen = [next(a for a in phrases.adjectives_for(found) if a.english == word) for word in adjectives]
    determiner = {"these": "this", "an": "a", "some": "a", "any": "a"}.get(determiner, determiner)
    built = phrases.build(found, chosen, determiner=determiner, plural=noun != found.english, negated=negated)
    assert " ".join(built.english) == english
    return built


@pytest.mark.parametrize(
    ("english", "expected"),
    [
        ("the old man", "le vieil homme"),
        ("the old men", "les vieux hommes"),
        ("the old woman", "la vieille femme"),
        ("the old heroes", "les vieux héros"),
        ("the old hero", "le vieux héros"),
        ("an owl", "un hibou"),
        ("this owl", "ce hibou"),
        ("the new lawyer", "le nouvel avocat"),
        ("the new nurses", "les nouvelles infirmières"),
        ("this child", "cet enfant"),
        ("a beautiful bird", "un bel oiseau"),
        ("the beautiful castles", "les beaux châteaux"),
        ("this church", "cette église"),
        ("my friend", "mon ami"),
        ("her orange", "son orange"),
        ("his sister", "sa sœur"),
        ("my scarf", "mon écharpe"),
        ("her red scarf", "son écharpe rouge"),
        ("my beautiful scarf", "ma belle écharpe"),
        ("their watches", "leurs montres"),
        ("the white Italian dresses", "les robes italiennes blanches"),
        ("the old black cars", "les vieilles voitures noires"),
        ("a small white house", "une petite maison blanche"),
        ("the brown shoes", "les chaussures marron"),
        ("the tired English doctors", "les médecins anglais fatigués"),
        ("a big dog", "un gros chien"),
        ("a big house", "une grande maison"),
        ("some white horses", "des chevaux blancs"),
        ("some old houses", "de vieilles maisons"),
        ("some flowers", "des fleurs"),
        ("six expensive hats", "six chapeaux chers"),
        ("the sad queens", "les reines tristes"),
        ("the grey mice", "les souris grises"),
        ("an interesting story", "une histoire intéressante"),
        ("the light boxes", "les boîtes légères"),
        ("the ripe pear", "la poire mûre"),
        ("the proud princesses", "les princesses fières"),
        ("her brave grandmothers", "ses grands-mères courageuses"),
    ],
)
def test_noun_phrases(english, expected):
    assert phrases.french_text(phrase(english).french) == expected[0].upper() + expected[1:] + "."


def test_negation_turns_an_article_into_de():
    for english, expected in (
        ("an egg", "D'œuf."),
        ("any dogs", "De chiens."),
        ("any owls", "De hiboux."),
        ("any oranges", "D'oranges."),
    ):
        assert phrases.french_text(phrase(english, negated=True).french) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("la", "école", "de", "le", "ami"), "L'école de l'ami."),
        (("le", "livre", "de", "le", "roi"), "Le livre du roi."),
        (("le", "livre", "de", "les", "héros"), "Le livre des héros."),
        (("je", "aime", "le", "héros"), "J'aime le héros."),
        (("il", "va", "à", "le", "marché"), "Il va au marché."),
        (("il", "va", "à", "la", "hôpital"), "Il va à l'hôpital."),
        (("il", "parle", "à", "les", "enfants"), "Il parle aux enfants."),
        (("la", "maison", "que", "elle", "ne", "aime", "pas"), "La maison qu'elle n'aime pas."),
        (("il", "la", "a", "vue"), "Il l'a vue."),
        (("ce", "est", "le", "hibou", "de", "un", "ami"), "C'est le hibou d'un ami."),
        (("le", "haricot", "et", "le", "hibou"), "Le haricot et le hibou."),
        (("il", "ne", "y", "a", "pas", "de", "haricots"), "Il n'y a pas de haricots."),
    ],
)
def test_elision_and_contraction(words, expected):
    assert phrases.french_text(words) == expected
    assert phrases.french_text(words, "?") == expected[:-1] + " ?"


def drawn(maker, wanted, *, tries=40_000):
    """The first sentence of a construction whose English matches."""
    pick = random.Random(0)
    for _ in range(tries):
        pair = maker(pick)
        if re.fullmatch(wanted, pair.english):
            return pair
    raise AssertionError(f"never drawn: {wanted}")


@pytest.mark.parametrize(
    ("maker", "english", "french"),
    [
        (
            statements.institution,
            r"The agreement on the European Economic Area was \w+ in \w+ \d+\.",
            r"L'accord sur la zone économique européenne a été \w+ en \w+ \d+\.",
        ),
        (
            statements.institution,
            r"The law on the \w+ Public Council was not adopted in .*",
            r"La loi sur le conseil public .* n'a pas .*",
        ),
        (clauses.relative_object, r"The \w+s that she broke (is|are) \w+\.", r"Les \w+ qu'elle a cassée?s sont \w+\."),
        (
            clauses.object_pronoun,
            r"She finds the \w+ and she \w+ it\.",
            r"Elle trouve (le|la|l').* et elle (le |la |l').*",
        ),
        (clauses.know, r"\w+ knows where .*", r".* sait où (est|sont) .*"),
        (clauses.know, r"She knows that .*", r"Elle sait qu(e |').*"),
        (clauses.know, r"She knows the \w+\.", r"Elle connaît (le|la|l').*"),
        (questions.what, r"What is she reading\?", r"Que lit-elle \?"),
        (questions.what, r"What did he eat\?", r"Qu'a-t-il mangé \?"),
        (questions.how_many, r"How many apples did she eat\?", r"Combien de pommes a-t-elle mangées \?"),
        (questions.where_does, r"Where does he work\?", r"Où travaille-t-il \?"),
        (statements.nothing, r"He saw nobody\.", r"Il n'a vu personne\."),
        (statements.nothing, r"Nobody eats the .*", r"Personne ne mange .*"),
        (statements.birth, r"She was born in May 1962\.", r"Elle est née en mai 1962\."),
        (demo.ambiguous.miss, r"We miss you\.", r"Vous nous manquez\."),
        (demo.ambiguous.miss, r"The queen misses him\.", r"Il manque à la reine\."),
        (demo.ambiguous.miss, r"The \w+ missed the trains\.", r".* a raté les trains\."),
        (demo.ambiguous.play, r"We play the piano\.", r"Nous jouons du piano\."),
        (demo.ambiguous.play, r"We play chess\.", r"Nous jouons aux échecs\."),
        (demo.ambiguous.bank, r"I sing on the bank of the lake\.", r"Je chante sur la rive du lac\."),
        (demo.ambiguous.bank, r"I work at the bank\.", r"Je travaille à la banque\."),
        (demo.ambiguous.eat_and_drink, r"We do not drink water\.", r"Nous ne buvons pas d'eau\."),
        (demo.ambiguous.eat_and_drink, r"We drink water\.", r"Nous buvons de l'eau\."),
        (demo.ambiguous.spring, r"She sings in spring\.", r"Elle chante au printemps\."),
        (demo.ambiguous.spring, r"The spring of the watch is broken\.", r"Le ressort de la montre est cassé\."),
        (
            demo.ambiguous.light,
            r"I see the red light of the \w+\.",
            r"Je vois la lumière rouge (du |de la |de l').*",
        ),
        (statements.motion, r"She went to the market yesterday\.", r"Elle est allée au marché hier\."),
        (statements.existence, r"There is not a \w+ in the kitchen\.", r"Il n'y a pas (de |d')\w+ dans la cuisine\."),
        (clauses.because, r"She loves this house because it is \w+\.", r"Elle aime cette maison parce qu'elle est .*"),
        (statements.dative, r"I gave her the \w+\.", r"Je lui ai donné (le |la |l').*"),
    ],
)
def test_constructions(maker, english, french):
    pair = drawn(maker, english)
    assert re.fullmatch(french, pair.french), pair


def test_words_make_one_sense():
    """No noun takes two adjectives of one English word, no English form is two verbs with the same objects."""
    for noun in lexicon.NOUNS:
        words = [adjective.english for adjective in phrases.adjectives_for(noun)]
        assert len(words) == len(set(words)), noun
    assert len({noun.english for noun in lexicon.NOUNS}) == len(lexicon.NOUNS)
    assert len({noun.english_plural for noun in lexicon.NOUNS}) == len(lexicon.NOUNS)
    assert not {noun.english for noun in lexicon.NOUNS} & {noun.english_plural for noun in lexicon.NOUNS}
    assert all(phrases.nouns_of(verb.object) and phrases.nouns_of(verb.subject) for verb in verbs.TRANSITIVE)
