"""Questions: est-ce que, and the verb before its subject."""

import re

import pytest

from jaxformer.demo import questions
from tests.demo.drawing import drawn


@pytest.mark.parametrize(
    ("maker", "english", "french"),
    [
        (questions.what, r"What is she reading\?", r"Que lit-elle \?"),
        (questions.what, r"What did he eat\?", r"Qu'a-t-il mangé \?"),
        (questions.how_many, r"How many apples did she eat\?", r"Combien de pommes a-t-elle mangées \?"),
        (questions.where_does, r"Where does he work\?", r"Où travaille-t-il \?"),
    ],
)
def test_constructions(maker, english, french):
    pair = drawn(maker, english)
    assert re.fullmatch(french, pair.french), pair
