"""Constructions of one clause, drawn until they show their difficulty."""

import re

import pytest

from jaxformer.demo import statements
from tests.demo.drawing import drawn


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
        (statements.nothing, r"He saw nobody\.", r"Il n'a vu personne\."),
        (statements.nothing, r"Nobody eats the .*", r"Personne ne mange .*"),
        (statements.birth, r"She was born in May 1962\.", r"Elle est née en mai 1962\."),
        (statements.motion, r"She went to the market yesterday\.", r"Elle est allée au marché hier\."),
        (statements.existence, r"There is not a \w+ in the kitchen\.", r"Il n'y a pas (de |d')\w+ dans la cuisine\."),
        (statements.dative, r"I gave her the \w+\.", r"Je lui ai donné (le |la |l').*"),
    ],
)
def test_constructions(maker, english, french):
    pair = drawn(maker, english)
    assert re.fullmatch(french, pair.french), pair
