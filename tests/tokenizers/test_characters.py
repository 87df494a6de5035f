"""Text survives encoding and decoding by characters."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.errors import DataError
from jaxformer.tokenizers.characters import CharacterTokenizer
from jaxformer.tokenizers.special_tokens import SpecialTokens


def test_decoding_inverts_encoding():
    tokenizer = CharacterTokenizer.train(["The cat\n", "sat.\r\n"])
    assert tokenizer.vocab_size == 4 + len(set("The cat\nsat.\r\n"))
    for text in ("", "Thecat\n\n", "\r\n sat", "a"):
        ids = tokenizer.encode([text])[0]
        assert ids.dtype == np.int32
        assert len(ids) == len(text)
        assert tokenizer.decode(ids) == text
        assert not np.isin(ids, list(tokenizer.special.ids)).any()
    assert tokenizer.encode(["sXt"])[0][1] == tokenizer.special.unk
    assert tokenizer.decode(tokenizer.encode(["sXt"])[0]) == "st"
    assert tokenizer.pieces([*tokenizer.encode(["a t\n"])[0], 0, 2]) == ["a", "\u2581", "t", "\n", "<pad>", "<eos>"]


@settings(max_examples=50, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.permutations(range(5)))
def test_any_characters_and_any_special_tokens(text, ids):
    special = SpecialTokens(*ids[:4])
    tokenizer = CharacterTokenizer.train([text, "ab"], special=special)
    assert tokenizer.decode(tokenizer.encode([text])[0]) == text
    assert special.ids | set(tokenizer.encode([text + "ab"])[0].tolist()) == set(range(tokenizer.vocab_size))


def test_refusals():
    with pytest.raises(DataError, match="text without characters"):
        CharacterTokenizer.train([""])
    with pytest.raises(ValueError, match="distinct ids below 7"):
        CharacterTokenizer("abc", SpecialTokens(pad=7))
