"""Constructions of two clauses: agreement across the clause boundary."""

import re

import pytest

from jaxformer.demo import clauses
from tests.demo.drawing import drawn


@pytest.mark.parametrize(
    ("maker", "english", "french"),
    [
        (clauses.relative_object, r"The \w+s that she broke (is|are) \w+\.", r"Les \w+ qu'elle a cassée?s sont \w+\."),
        (
            clauses.object_pronoun,
            r"She finds the \w+ and she \w+ it\.",
            r"Elle trouve (le|la|l').* et elle (le |la |l').*",
        ),
        (clauses.know, r"\w+ knows where .*", r".* sait où (est|sont) .*"),
        (clauses.know, r"She knows that .*", r"Elle sait qu(e |').*"),
        (clauses.know, r"She knows the \w+\.", r"Elle connaît (le|la|l').*"),
        (clauses.because, r"She loves this house because it is \w+\.", r"Elle aime cette maison parce qu'elle est .*"),
    ],
)
def test_constructions(maker, english, french):
    pair = drawn(maker, english)
    assert re.fullmatch(french, pair.french), pair
