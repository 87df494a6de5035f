"""Words with several translations, determined by their context."""

import re

import pytest

from jaxformer.demo import ambiguous
from tests.demo.drawing import drawn


@pytest.mark.parametrize(
    ("maker", "english", "french"),
    [
        (ambiguous.miss, r"We miss you\.", r"Vous nous manquez\."),
        (ambiguous.miss, r"The queen misses him\.", r"Il manque à la reine\."),
        (ambiguous.miss, r"The \w+ missed the trains\.", r".* a raté les trains\."),
        (ambiguous.play, r"We play the piano\.", r"Nous jouons du piano\."),
        (ambiguous.play, r"We play chess\.", r"Nous jouons aux échecs\."),
        (ambiguous.bank, r"I sing on the bank of the lake\.", r"Je chante sur la rive du lac\."),
        (ambiguous.bank, r"I work at the bank\.", r"Je travaille à la banque\."),
        (ambiguous.eat_and_drink, r"We do not drink water\.", r"Nous ne buvons pas d'eau\."),
        (ambiguous.eat_and_drink, r"We drink water\.", r"Nous buvons de l'eau\."),
        (ambiguous.spring, r"She sings in spring\.", r"Elle chante au printemps\."),
        (ambiguous.spring, r"The spring of the watch is broken\.", r"Le ressort de la montre est cassé\."),
        (
            ambiguous.light,
            r"I see the red light of the \w+\.",
            r"Je vois la lumière rouge (du |de la |de l').*",
        ),
    ],
)
def test_constructions(maker, english, french):
    pair = drawn(maker, english)
    assert re.fullmatch(french, pair.french), pair
