"""Gold alignments: true in sentences checked by hand, within range and complete in all."""

import re

import pytest

from jaxformer.demo.alignment import Word, said, tie, words
from jaxformer.demo.phrases import make_pair


@pytest.mark.parametrize(
    ("english", "expected"),
    [  # each French word, _ for any, and the numbers of the English words that it translates
        (r"The agreement on the \w+ Economic Area was \w+ in \w+ \d+\.",
         "L':0 accord:1 sur:2 la:3 zone:6 économique:5 _:4 a:7 été:7 _:8 en:9 _:10 _:11 .:12"),
        (r"The law on the \w+ Scientific Union was not \w+ in \w+ \d+\.",
         "La:0 loi:1 sur:2 l':3 union:6 scientifique:5 _:4 n':8 a:7 pas:8 été:7 _:9 en:10 _:11 _:12 .:13"),
        (r"You did not \w+ the \w+s\.", "Vous:0 n':2 avez:1 pas:2 _:3 les:4 _:5 .:6"),
        (r"\w+ looked for \w+ \w+\.", "_:0 _:1+2 cherché:1+2 _:3 _:4 .:5"),
        (r"They will never \w+ the big cake\.", "Ils:0 _:2 _:1+3 jamais:2 le:4 gros:5 gâteau:6 .:7"),
        (r"They return to the museum every day\.",
         "Ils:0 retournent:1 au:2+3 musée:4 tous:5 les:5 jours:6 .:7"),
        (r"There is not a \w+ in the \w+\.",
         "Il:0 n':2 y:0 a:1 pas:2 _:3 _:4 dans:5 _:6 _:7 .:8"),
        (r"The \w+ is older than the \w+\.", "_:0 _:1 est:2 plus:3 _:3 que:4 _:5 _:6 .:7"),
        (r"\w+ cannot \w+ the \w+s\.", "_:0 ne:1 _:1 pas:1 _:2 les:3 _:4 .:5"),
        (r"I gave her the apple\.", "Je:0 lui:2 ai:1 donné:1 la:3 pomme:4 .:5"),
        (r"Nobody \w+s the \w+s\.", "Personne:0 _:0 _:1 les:2 _:3 .:4"),
        (r"He saw nobody\.", "Il:0 n':2 a:1 vu:1 personne:2 .:3"),
        (r"The \w+ \w+ the \w+ because it is \w+\.",
         "_:0 _:1 _:2 _:3 _:4 parce:5 qu':5 _:6 est:7 _:8 .:9"),
        (r"He finds the \w+s and he \w+s them\.", "Il:0 trouve:1 les:2 _:3 et:4 il:5 les:7 _:6 .:8"),
        (r"\w+ knows? where the \w+s are\.", "_:0 _:1 où:2 sont:5 les:3 _:4 .:6"),
        (r"Why did the happy heroes sell a Japanese dress\?",
         "Pourquoi:0 est-ce:1 que:1 les:2 héros:4 heureux:3 ont:1 vendu:5 une:6 robe:8 japonaise:7 ?:9"),
        (r"What is she \w+ing\?", "_:0 _:1+2+3 ?:4"),
        (r"How many \w+s did she \w+\?", "Combien:0+1 _:0+1 _:2 a-t-elle:3+4 _:5 ?:6"),
        (r"Were the \w+s \w+\?", "Les:1 _:2 _:0 _:3 ?:4"),
        (r"The queen misses him\.", "Il:3 manque:2 à:2 la:0 reine:1 .:4"),
        (r"\w+ miss you\.", "Vous:2 _:0 manquez:1 .:3"),
        (r"We play chess\.", "Nous:0 jouons:1 aux:1+2 échecs:2 .:3"),
        (r"\w+ plays? the piano\.", "_:0 _:1 du:1+2 piano:3 .:4"),
        (r"We drink water\.", "Nous:0 buvons:1 de:2 l':2 eau:2 .:3"),
        (r"\w+ \w+s in spring\.", "_:0 _:1 au:2+3 printemps:3 .:4"),
    ],
)  # fmt: skip
def test_alignments_equal_hand_checked_ones(corpus, english, expected):
    """R5: along the diagonal, but "zone économique européenne" in reverse."""
    pair = next(pair for pair in corpus if re.fullmatch(english, pair.english))
    entries = [entry.split(":") for entry in expected.split()]
    found = words(pair.french)
    assert [word for word, _ in entries] == ["_" if word == "_" else found[j] for j, (word, _) in enumerate(entries)]
    assert len(found) == len(entries)
    assert set(pair.alignment) == {(int(i), j) for j, (_, of) in enumerate(entries) for i in of.split("+")}


def test_every_link_is_within_range_and_every_word_has_one(corpus):
    for pair in corpus:
        source, target = words(pair.english), words(pair.french)
        assert {i for i, _ in pair.alignment} == set(range(len(source))), pair
        assert {j for _, j in pair.alignment} == set(range(len(target))), pair


def test_words_are_all_of_a_sentence(corpus):
    for pair in corpus:
        for text in (pair.english, pair.french):
            assert "".join(words(text)) == text.replace(" ", "")


def test_most_words_have_one_link(corpus):
    """The best alignment with one link per French word has an error rate of at most 3 %."""
    links, targets = (
        sum(map(len, lists)) for lists in zip(*((p.alignment, words(p.french)) for p in corpus), strict=True)
    )
    assert targets <= links < 1.07 * targets


def test_parts_are_used_once_in_each_language():
    the, dog = said("the", "le"), said("dog", "chien")
    with pytest.raises(AssertionError, match="both languages"):
        tie([the, dog], [the])
    with pytest.raises(AssertionError, match="once"):
        tie([the, dog, the], [the, dog])


@pytest.mark.parametrize(("language", "lonely"), [("English", 0), ("French", 1)])
def test_a_word_without_a_link_is_refused(language, lonely):
    dog = said("dog", "chien")
    sides = [[dog], [dog]]
    sides[lonely] = [Word("oh", "sigh"), dog]
    with pytest.raises(AssertionError, match=f"{language} word"):
        make_pair("test", sides[0], french=sides[1])
