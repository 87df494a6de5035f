"""Text survives encoding and decoding by characters, and damaged files are refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer import demo
from jaxformer.errors import DataError
from jaxformer.tokenizers.characters import CharacterTokenizer
from jaxformer.tokenizers.loading import load_tokenizer
from jaxformer.tokenizers.special_tokens import SpecialTokens

LINES = [text for pair in demo.generate(100) for text in (pair.english, pair.french)]


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


def test_characters_are_saved(tmp_path):
    tokenizer = CharacterTokenizer.train(LINES, special=SpecialTokens(pad=7, bos=0, eos=1, unk=2))
    tokenizer.save(tmp_path / "t.model")
    loaded = load_tokenizer(tmp_path / "t.model")
    assert isinstance(loaded, CharacterTokenizer)
    assert (loaded.fingerprint, loaded.special) == (tokenizer.fingerprint, tokenizer.special)
    assert loaded.decode(loaded.encode(LINES[:1])[0]) == LINES[0]
    assert [p.name for p in tmp_path.iterdir()] == ["t.model"]
    assert CharacterTokenizer.train(LINES).fingerprint != tokenizer.fingerprint


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-9],
        lambda data: data.replace(b'"pad": 0', b'"pad": 9'),
        lambda data: data.replace(b'"pad": 0', b'"pad": 1'),
        lambda data: data.replace(b'"pad": 0', b'"pad": -1'),
        lambda data: data.replace(b'"characters": "abc"', b'"characters": "abd"'),
        lambda data: data.replace(b'"characters": "abc"', b'"characters": "cba"'),
        lambda data: data.replace(b'"characters": "abc"', b'"characters": 5'),
        lambda data: data.replace(b'"special"', b'"sp\xffcial"'),
        lambda data: data.replace(b'"fingerprint"', b'"footprint"'),
    ],
)
def test_damaged_characters_are_refused(tmp_path, change):
    path = tmp_path / "tokenizer.model"
    CharacterTokenizer("abc").save(path)
    assert change(path.read_bytes()) != path.read_bytes()
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=r"tokenizer\.model is damaged"):
        load_tokenizer(path)


def test_refusals():
    with pytest.raises(DataError, match="text without characters"):
        CharacterTokenizer.train([""])
    with pytest.raises(ValueError, match="distinct ids below 7"):
        CharacterTokenizer("abc", SpecialTokens(pad=7))
