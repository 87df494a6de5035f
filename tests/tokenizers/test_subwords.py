"""Decoding restores exactly the encoded text."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer import demo
from jaxformer.errors import ConfigError
from jaxformer.tokenizers.special_tokens import SpecialTokens
from jaxformer.tokenizers.subwords import SubwordTokenizer

LINES = [text for pair in demo.generate(800) for text in (pair.english, pair.french)]


UNIGRAM = SubwordTokenizer.train(LINES, vocab_size=400)


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_characters="\ue000", exclude_categories=["Cs"])))
def test_any_text_is_restored(text):
    ids = UNIGRAM.encode([text])[0]
    assert UNIGRAM.decode(ids) == text
    assert not np.isin(ids, list(UNIGRAM.special.ids)).any()


UNUSUAL = ["", "  two  spaces ", "<s> </s> <pad>", "\u2581literal\u2581", "日本 🎉", "\ttab"]
BREAKS = ["\n", "\n\n", "a\n", "\na", "a\n\n\r\nb\n", "a\0b", "\u2581\n\u2581"]


@pytest.mark.parametrize("text", UNUSUAL + BREAKS)
def test_unusual_text_is_restored(text):
    assert UNIGRAM.decode(UNIGRAM.encode([text])[0]) == text


def test_sampled_segmentations_differ_and_decode_to_the_text():
    first, second, again = (UNIGRAM.sample(LINES[:50], seed=seed, alpha=0.2) for seed in (1, 2, 1))
    assert [UNIGRAM.decode(ids) for ids in first] == LINES[:50]
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert any(len(a) != len(b) or (a != b).any() for a, b in zip(first, second, strict=True))


@pytest.mark.full
def test_all_of_multi30k_is_restored(data_directory):
    lines = [
        line
        for part in ("train", "val", "test_2016")
        for language in ("en", "de", "fr")
        for line in (data_directory / "multi30k" / f"{part}.{language}").read_text(encoding="utf-8").split("\n")
    ]
    tokenizer = SubwordTokenizer.train(lines, vocab_size=8000)
    assert [tokenizer.decode(ids) for ids in tokenizer.encode(lines)] == lines


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_lines_are_independent(kind):
    """A line break is its own token: the tokens of a text are those of its lines; so is a vocabulary."""
    tokenizer = SubwordTokenizer.train(LINES, vocab_size=400, kind=kind)
    text = "".join(f"{line}\n" for line in LINES[:50])
    expected = [token for line in tokenizer.encode(LINES[:50]) for token in (*line, tokenizer.encode(["\n"])[0][0])]
    assert tokenizer.encode([text])[0].tolist() == expected
    assert tokenizer.decode(expected) == text
    joined = SubwordTokenizer.train(["\n".join(LINES), "\n"], vocab_size=400, kind=kind)
    assert joined.fingerprint == tokenizer.fingerprint


def test_special_tokens_have_the_ids_that_are_asked_for():
    special = SpecialTokens(pad=1, bos=0, eos=2, unk=3)
    other = SubwordTokenizer.train(LINES, vocab_size=400, special=special)
    for one, names in ((UNIGRAM, ["<pad>", "<s>", "</s>", "<unk>"]), (other, ["<s>", "<pad>", "</s>", "<unk>"])):
        assert one.pieces([0, 1, 2, 3]) == names
        ids = one.encode(LINES[:1])[0]
        assert one.decode([one.special.bos, *ids, one.special.eos, one.special.pad]) == LINES[0]
    assert (UNIGRAM.special, other.special) == (SpecialTokens(0, 1, 2, 3), special)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_the_largest_and_the_smallest_vocabulary_of_a_corpus_are_named(kind):
    """Both can be trained."""
    for size, side in ((9000, "most"), (265, "least")):
        with pytest.raises(
            ConfigError, match=rf"^vocab_size must be at {side} \d+ for this corpus.*, got {size}$"
        ) as error:
            SubwordTokenizer.train(LINES[:40], vocab_size=size, kind=kind)
        named = int(re.findall(rf"at {side} (\d+)", str(error.value))[0])
        assert SubwordTokenizer.train(LINES[:40], vocab_size=named, kind=kind).vocab_size == named


@pytest.mark.parametrize(
    ("lines", "vocab_size", "message"),
    [
        (["a b"], 3, "must be at least 260 and less than 2**31, got 3"),
        (["a b"], 2**40, f"must be at least 260 and less than 2**31, got {2**40}"),
        (["", "x" * 5000], 300, "each line of the corpus is empty or longer than 4,192 bytes"),
    ],
)
def test_a_vocabulary_that_no_corpus_can_fill_is_refused(lines, vocab_size, message):
    with pytest.raises(ConfigError) as caught:
        SubwordTokenizer.train(lines, vocab_size=vocab_size)
    assert str(caught.value).endswith(message)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_no_text_spells_the_token_of_a_language(kind):
    """Not even one whose words are its name, in training or later; decoding leaves it out."""
    lines = ["ab ba the <2de> text <2fr>abc"] * 30 + ["<2de>"] * 5
    tokenizer = SubwordTokenizer.train(lines, vocab_size=273, kind=kind, languages=["de", "fr"])
    assert tokenizer.tags == {"de": 4, "fr": 5}
    assert SubwordTokenizer(tokenizer._file()).tags == tokenizer.tags
    for text in lines[::30]:
        (ids,) = tokenizer.encode([text])
        assert not {4, 5} & {*ids.tolist()}
        assert tokenizer.decode([4, *ids, 5]) == text
    with pytest.raises(ConfigError, match="at least 270 for this corpus"):
        SubwordTokenizer.train(lines, vocab_size=266, kind=kind, languages=["de", "fr"])
