"""Batches mark padding when they are made, with the tokenizer's special tokens."""

import jax
import numpy as np
import pytest

from jaxformer.data.batch import Batch, by_length, pad
from jaxformer.data.token_cache import Ragged
from jaxformer.tokenizers.special_tokens import SpecialTokens

SPECIAL = SpecialTokens()


def test_too_long_for_the_shape():
    with pytest.raises(ValueError, match="6 tokens, eos included, does not fit length 5"):
        Batch.from_tokens([np.arange(4, 9)], [np.arange(4, 6)], (1, 5, 5), SPECIAL)


def test_more_pairs_than_rows():
    with pytest.raises(ValueError, match="2 sources and 2 targets do not fit 1 rows"):
        Batch.from_tokens([np.arange(4, 6)] * 2, [np.arange(4, 6)] * 2, (1, 5, 5), SPECIAL)


def test_every_array():
    special = SpecialTokens(pad=9, bos=7, eos=8, unk=0)
    batch = Batch.from_tokens([np.array([1, 2])], [np.array([3])], (2, 4, 3), special)
    np.testing.assert_array_equal(batch.source.ids, [[1, 2, 8, 9], [9] * 4])
    np.testing.assert_array_equal(batch.source.valid, [[True, True, True, False], [False] * 4])
    np.testing.assert_array_equal(batch.target.ids, [[7, 3, 9], [9] * 3])
    np.testing.assert_array_equal(batch.labels, [[3, 8, 9], [9] * 3])
    np.testing.assert_array_equal(batch.target.valid, [[True, True, False], [False] * 3])
    assert {array.dtype for array in (batch.source.ids, batch.target.ids, batch.labels)} == {np.dtype(np.int32)}


def test_tokens_equal_to_padding_stay_valid():
    """Only masks decide: the id of padding may occur in a sentence."""
    tokens = pad([np.array([0, 5])], (1, 4), SPECIAL)
    np.testing.assert_array_equal(tokens.ids, [[0, 5, 2, 0]])
    np.testing.assert_array_equal(tokens.valid, [[True, True, True, False]])


def test_concatenated_sequences_are_padded_like_a_list():
    lists = [np.array(ids, np.uint16) for ids in ([], [7], [5, 6, 7], [9])]
    both = pad(Ragged.join(lists), (6, 4), SPECIAL), pad(lists, (6, 4), SPECIAL)
    jax.tree.map(np.testing.assert_array_equal, *both)
    expected = [[2, 0, 0, 0], [7, 2, 0, 0], [5, 6, 7, 2], [9, 2, 0, 0], [0] * 4, [0] * 4]
    np.testing.assert_array_equal(both[1].ids, expected)
    with pytest.raises(ValueError, match="4 tokens, eos included, does not fit length 3"):
        pad(Ragged.join(lists), (4, 3), SPECIAL)


@pytest.mark.parametrize("seed", range(3))
def test_texts_of_similar_length_share_a_batch(seed):
    """Each is in one batch, and none is padded to more than four times its length."""
    lengths = (np.exp(np.random.default_rng(seed).normal(4, 2, 300)) + 1).astype(int).tolist()
    batches = list(by_length(lengths, 64))
    assert sorted(i for batch in batches for i in batch) == list(range(300))
    for batch in batches:
        longest = max(lengths[i] for i in batch)
        assert longest <= 4 * max(32, min(lengths[i] for i in batch))
        assert len(batch) <= (64 if longest <= 256 else 16 if longest <= 1024 else 4 if longest <= 4096 else 1)
    ordered = [lengths[i] for batch in batches for i in batch]
    assert ordered == sorted(lengths)


def test_a_long_text_leaves_its_neighbors_alone():
    assert list(by_length([7, 17_820, 5, 128, 5], 64)) == [[2, 4, 0, 3], [1]]
    assert list(by_length([200, 10, 12], 64)) == [[1, 2], [0]]  # by the ratio of lengths alone
    assert list(by_length([100] * 5, 2)) == [[0, 1], [2, 3], [4]]
    assert list(by_length([900] * 5, 8)) == [[0, 1], [2, 3], [4]]
    assert list(by_length([900] * 3, 8, usual=1000)) == [[0, 1, 2]]
    assert list(by_length([], 8)) == []
