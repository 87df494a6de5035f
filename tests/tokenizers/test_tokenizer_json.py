"""A vocabulary trained here, as ``tokenizer.json``: the package tokenizers gives the same tokens."""

import pytest
from tokenizers import Tokenizer

from jaxformer import demo
from jaxformer.errors import ConfigError
from jaxformer.tokenizers.characters import CharacterTokenizer
from jaxformer.tokenizers.normalization import TextNormalizer
from jaxformer.tokenizers.subwords import SubwordTokenizer
from jaxformer.tokenizers.tokenizer_json import MASK, tokenizer_json

LINES = [pair.french for pair in demo.generate(300)]
TEXTS = [*LINES[:100], "", " ", "  two  spaces ", "l\u2019\u4e00 \u2581 caf\u00e9\tend\nnext", "aaaaaaaaaa" * 3]


def trained(kind):
    if kind == "characters":
        return CharacterTokenizer.train(LINES)
    return SubwordTokenizer.train(LINES, vocab_size=420, kind=kind)


@pytest.mark.parametrize("kind", ["unigram", "bpe", "characters"])
def test_the_tokens_of_a_text_are_the_same(kind):
    tokenizer = trained(kind)
    theirs = Tokenizer.from_str(tokenizer_json(tokenizer))
    for text in TEXTS:
        (ids,) = tokenizer.encode([text])
        assert theirs.encode(text).ids == ids.tolist()
        assert theirs.decode(ids.tolist()) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", ["bpe", "characters"])
def test_a_text_is_framed(kind):
    tokenizer = trained(kind)
    special, (ids,) = tokenizer.special, tokenizer.encode(["la"])
    for frame, before in (("end", []), ("both", [special.bos])):
        theirs = Tokenizer.from_str(tokenizer_json(tokenizer, frame=frame, mask=True))
        assert theirs.encode("la").ids == [*before, *ids, special.eos]
        assert theirs.encode(f"la{MASK}", add_special_tokens=False).ids == [*ids, tokenizer.vocab_size]


@pytest.mark.parametrize("kind", ["unigram", "bpe", "characters"])
def test_a_mask_takes_the_space_before_it(kind):
    """The space is part of the first token of a word; with characters, it is a token of its own."""
    tokenizer = trained(kind)
    theirs = Tokenizer.from_str(tokenizer_json(tokenizer, mask=True))
    before, after = tokenizer.encode(["la " if kind == "characters" else "la", " maison"])
    assert theirs.encode(f"la {MASK} maison").ids == [*before, tokenizer.vocab_size, *after]


def test_words_are_refused():
    normalizer = TextNormalizer(lowercase=True)
    tokenizer = SubwordTokenizer.train(["a b c"] * 9, vocab_size=265, normalizer=normalizer)
    with pytest.raises(ConfigError, match=r"cannot express the normalization data\.lowercase True"):
        tokenizer_json(tokenizer)
