"""Windows: training batches are a function of seed and step, evaluation predicts every token exactly once."""

import functools
import itertools

import chex
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer import demo
from jaxformer.data.pipeline import batches, prepare_tokenizer
from jaxformer.data.text import Text, split_text
from jaxformer.data.windows import OrderedWindows, RandomWindows, TextBatch, TokenStream, prepare_text
from jaxformer.errors import ConfigError, DataError
from jaxformer.tokenizers.special_tokens import SpecialTokens

SPECIAL = SpecialTokens(pad=1000, bos=0, eos=1001, unk=1002)


def counting(num_tokens):
    """A stream whose tokens are their positions."""
    return TokenStream(np.arange(num_tokens + 1, dtype=np.uint16), SPECIAL)


def test_a_training_batch_is_a_function_of_seed_and_step():
    windows, again = (RandomWindows(counting(500), length=16, batch_size=4, seed=3) for _ in range(2))
    for step in (0, 700, 13, 0, 99):  # any order, any start
        chex.assert_trees_all_equal(windows.batch(step), again.batch(step))
    other = RandomWindows(counting(500), length=16, batch_size=4, seed=4)
    assert (other.batch(0).tokens.ids != windows.batch(0).tokens.ids).any()
    assert (windows.batch(1).tokens.ids != windows.batch(0).tokens.ids).any()


def test_training_windows_are_inside_the_text():
    windows = RandomWindows(counting(20), length=16, batch_size=8, seed=0)
    starts = set()
    for step in range(50):
        batch = windows.batch(step)
        assert batch.tokens.valid.all()
        assert (batch.labels == batch.tokens.ids + 1).all()
        assert batch.tokens.ids.dtype == batch.labels.dtype == np.int32
        starts |= set(batch.tokens.ids[:, 0].tolist())
    assert starts == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("start", [0, 5])
def test_streams_can_start_at_any_step(start):
    windows = RandomWindows(counting(500), length=16, batch_size=4, seed=3)
    for step, batch in zip(range(start, start + 6), batches(windows.batch, start=start), strict=False):
        assert isinstance(batch, TextBatch)
        chex.assert_trees_all_equal(batch, windows.batch(step))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200), st.integers(1, 20), st.integers(1, 9))
def test_every_token_is_predicted_exactly_once(num_tokens, length, batch_size):
    windows = OrderedWindows(counting(num_tokens), length=length, batch_size=batch_size)
    predicted = []
    for step in range(windows.steps_per_epoch):
        batch = windows.batch(step)
        ids, valid = batch.tokens.ids, batch.tokens.valid
        assert ids.shape == batch.labels.shape == valid.shape == (batch_size, length)
        assert (batch.labels == ids + 1)[valid].all()
        assert (ids[~valid] == SPECIAL.pad).all()
        assert (batch.labels[~valid] == SPECIAL.pad).all()
        predicted += batch.labels[valid].tolist()
    assert predicted == list(range(1, num_tokens + 1))
    assert not windows.batch(windows.steps_per_epoch).tokens.valid.any()


@pytest.mark.parametrize(
    "windows",
    [
        RandomWindows(counting(500), length=16, batch_size=6, seed=3),
        OrderedWindows(counting(500), length=16, batch_size=6),
    ],
)
def test_rows_of_several_hosts_form_the_batch(windows):
    """Six rows padded to eight, for two hosts: together they have all rows, and two empty ones."""
    hosts = [np.array([0, 1, 4, 5]), np.array([2, 3, 6, 7])]
    for step in range(windows.steps_per_epoch):
        expected = windows.batch(step)
        parts = [windows.batch(step, rows={6: mine}.__getitem__) for mine in hosts]  # asked for rows of 6
        joined = jax.tree.map(lambda a, b: np.concatenate([a[:2], b[:2], a[2:], b[2:]]), *parts)
        chex.assert_trees_all_equal(jax.tree.map(lambda x: x[:6], joined), expected)
        assert not joined.tokens.valid[6:].any()
        assert (joined.tokens.ids[6:] == SPECIAL.pad).all()


@pytest.mark.parametrize("kind", ["characters", "unigram", "bpe"])
def test_the_built_in_text(tmp_path, kind):
    train, held_out = split_text(Text(demo.text(600)))
    tokenizer = prepare_tokenizer(train, tmp_path, kind=kind, vocab_size=400)
    stream = prepare_text(held_out, tokenizer, tmp_path)
    assert stream.tokens[0] == tokenizer.special.bos
    assert tokenizer.decode(stream.tokens) == held_out.characters
    windows = OrderedWindows(stream, length=32, batch_size=8)
    stream_of_batches = batches(windows.batch, stop=windows.steps_per_epoch)
    labels = np.concatenate([batch.labels[batch.tokens.valid] for batch in stream_of_batches])
    assert len(labels) == stream.num_labels
    assert tokenizer.decode(labels) == held_out.characters
    random = RandomWindows(prepare_text(train, tokenizer, tmp_path), length=32, batch_size=8, seed=0)
    rows = functools.partial(random.batch, rows=lambda n: np.arange(n // 2))
    for whole, half in itertools.islice(zip(batches(random.batch), batches(rows), strict=True), 3):
        chex.assert_trees_all_equal(jax.tree.map(lambda x: x[:4], whole), half)
        assert all(tokenizer.decode(row) in train.characters for row in whole.tokens.ids)


def test_text_is_tokenized_once(tmp_path):
    text = Text(demo.text(50))
    tokenizer = prepare_tokenizer(text, tmp_path, kind="characters")
    first = prepare_text(text, tokenizer, tmp_path)
    (folder,) = tmp_path.iterdir()
    before = {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}
    np.testing.assert_array_equal(prepare_text(text, tokenizer, tmp_path).tokens, first.tokens)
    assert {p.name: p.stat().st_mtime_ns for p in folder.iterdir()} == before
    prepare_text(Text(text.characters[:-1]), tokenizer, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_batches_cross_jit():
    batch = OrderedWindows(counting(9), length=4, batch_size=2).batch(0)
    assert isinstance(jax.jit(lambda x: x)(batch), TextBatch)
    assert [leaf.dtype for leaf in jax.tree.leaves(batch)] == [np.int32, np.bool_, np.int32]


def test_refusals():
    with pytest.raises(DataError, match="the text has 7 tokens, fewer than a window of 8"):
        RandomWindows(counting(7), length=8, batch_size=1, seed=0)
    assert RandomWindows(counting(8), length=8, batch_size=1, seed=0).batch(0).tokens.shape == (1, 8)
    with pytest.raises(DataError, match="no tokens"):
        OrderedWindows(counting(0), length=8, batch_size=1)
    for windows in (functools.partial(RandomWindows, seed=0), OrderedWindows):
        with pytest.raises(ConfigError, match="length must be at least 1, got 0"):
            windows(counting(9), length=0, batch_size=1)
        with pytest.raises(ConfigError, match="batch_size must be at least 1, got -1"):
            windows(counting(9), length=1, batch_size=-1)
