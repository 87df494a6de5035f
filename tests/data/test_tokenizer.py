"""The tokenizer gives back exactly what it was given."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer import demo
from jaxformer.data.tokenizer import BEGIN, END, PAD, UNKNOWN, Tokenizer

LINES = [text for pair in demo.generate(800) for text in (pair.english, pair.french)]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(LINES, vocab_size=500)


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_characters="\n\r\0\ue000", exclude_categories=["Cs"])))
def test_any_text_comes_back(text):
    tokenizer = test_any_text_comes_back.tokenizer
    ids = tokenizer.encode([text])[0]
    assert tokenizer.decode(ids) == text
    assert not np.isin(ids, [PAD, BEGIN, END, UNKNOWN]).any()


test_any_text_comes_back.tokenizer = Tokenizer.train(LINES, vocab_size=400)


@pytest.mark.parametrize("text", ["", "  two  spaces ", "<s> </s> <pad>", "\u2581literal\u2581", "日本 🎉", "\ttab"])
def test_awkward_text_comes_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode([text])[0]) == text


def test_training_is_deterministic(tokenizer):
    assert Tokenizer.train(LINES, vocab_size=500).fingerprint == tokenizer.fingerprint


def test_samples_differ_and_come_back(tokenizer):
    first, second, again = (tokenizer.sample(LINES[:50], seed=seed, alpha=0.2) for seed in (1, 2, 1))
    assert [tokenizer.decode(ids) for ids in first] == LINES[:50]
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert any(len(a) != len(b) or (a != b).any() for a, b in zip(first, second, strict=True))


def test_save_and_load(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "t.model")
    loaded = Tokenizer.load(tmp_path / "t.model")
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.vocab_size == 500
    assert [p.name for p in tmp_path.iterdir()] == ["t.model"]


def test_corpus_too_small():
    with pytest.raises(ValueError, match="9000 pieces"):
        Tokenizer.train(LINES, vocab_size=9000)


@pytest.mark.full
def test_all_of_multi30k_comes_back(data_directory):
    lines = [
        line
        for part in ("train", "val", "test_2016")
        for language in ("en", "de", "fr")
        for line in (data_directory / "multi30k" / f"{part}.{language}").read_text(encoding="utf-8").split("\n")
    ]
    tokenizer = Tokenizer.train(lines, vocab_size=8000)
    assert [tokenizer.decode(ids) for ids in tokenizer.encode(lines)] == lines


@pytest.mark.parametrize("data", [b"", b"garbage"])
def test_a_damaged_file_is_named(tmp_path, data):
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(ValueError, match=r"tokenizer\.model is damaged"):
        Tokenizer.load(tmp_path / "tokenizer.model")
