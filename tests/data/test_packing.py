"""Packed texts: each once, complete or cut, never across two rows, the same at every read."""

import numpy as np
import pytest

from jaxformer.data.packing import PackedTexts
from jaxformer.data.token_cache import Ragged
from jaxformer.errors import ConfigError, DataError
from jaxformer.tokenizers.special_tokens import SpecialTokens

LENGTHS = np.random.default_rng(0).integers(0, 25, 200)
OFFSETS = np.concatenate([[0], np.cumsum(LENGTHS)])
TEXTS = Ragged(np.arange(4, 4 + OFFSETS[-1]), OFFSETS)  # every token once
SPECIAL = SpecialTokens()


def packed(**changes):
    return PackedTexts(**{"texts": TEXTS, "special": SPECIAL, "length": 16, "batch_size": 8, "seed": 3} | changes)


def texts_of(batch):
    """The segments of a batch as lists of tokens, without class token and end."""
    found = []
    packed = batch.tokens
    for tokens, segments, positions in zip(packed.ids, packed.segments, packed.positions, strict=True):
        for number in range(1, segments.max() + 1):
            chosen = segments == number
            text = tokens[chosen].tolist()
            assert np.diff(np.flatnonzero(chosen)).tolist() == [1] * (len(text) - 1)
            assert positions[chosen].tolist() == list(range(len(text)))
            assert (text[0], text[-1]) == (SPECIAL.bos, SPECIAL.eos)
            found.append(text[1:-1])
        assert (tokens[segments == 0] == SPECIAL.pad).all()
    return found


def test_every_token_once_per_epoch():
    """In any order; a text of more than 14 tokens is cut into parts of 14, an empty one is left out."""
    data = packed()
    for epoch in (0, 1):
        batches = [data.batch(epoch * data.steps_per_epoch + step) for step in range(data.steps_per_epoch)]
        found = sorted(text for batch in batches for text in texts_of(batch))
        parts = [TEXTS[i][start : start + 14].tolist() for i in range(200) for start in range(0, LENGTHS[i], 14)]
        assert found == sorted(parts)
    assert data.num_cut == (LENGTHS > 14).sum()
    assert data.num_rows <= 1.35 * (sum(map(len, parts)) + 2 * len(parts)) / 16
    assert data.fill == pytest.approx((sum(map(len, parts)) + 2 * len(parts)) / (16 * data.num_rows))


def test_a_batch_is_a_function_of_seed_and_step():
    first, again, other = packed().batch(5), packed().batch(5), packed(seed=4).batch(5)
    np.testing.assert_array_equal(first.tokens.ids, again.tokens.ids)
    assert (first.tokens.ids != other.tokens.ids).any()
    assert (packed().batch(0).tokens.ids != packed().batch(packed().steps_per_epoch).tokens.ids).any()
    still = packed(shuffle=False)
    np.testing.assert_array_equal(still.batch(0).tokens.ids, still.batch(still.steps_per_epoch).tokens.ids)


def test_rows_of_a_process():
    """A process makes only its rows of a batch; rows beyond the batch, or the data, are empty."""
    data = packed()
    whole, last = data.batch(2), data.batch(data.steps_per_epoch - 1)
    some = data.batch(2, rows=lambda count: np.array([5, 1, count + 3]))
    np.testing.assert_array_equal(some.tokens.ids[:2], whole.tokens.ids[[5, 1]])
    assert not some.tokens.segments[2].any()
    assert (last.tokens.segments.max(1) > 0).sum() == data.num_rows - 8 * (data.steps_per_epoch - 1)


def test_invalid_sizes_are_refused():
    with pytest.raises(ConfigError, match="length must be at least 3, got 2"):
        packed(length=2)
    with pytest.raises(ConfigError, match="batch_size must be at least 1, got 0"):
        packed(batch_size=0)
    with pytest.raises(DataError, match="the text has no tokens"):
        packed(texts=Ragged(np.zeros(0, int), np.zeros(3, int)))
