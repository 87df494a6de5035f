"""Blockwise attention keeps the contract, in blocks far smaller than the sequence."""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks
from jaxformer.functional.attention import blockwise
from jaxformer.functional.attention.base import make_request
from jaxformer.functional.attention.blockwise import attention
from tests.contracts import numpy_attention
from tests.contracts.attention import CASES, AttentionContract, arrays, bias, coin
from tests.contracts.biases import BiasContract


@pytest.mark.full
class TestBlockwise(AttentionContract):
    implementation = "blockwise"


class TestSmallBlocks(AttentionContract, BiasContract):
    """Two by three: every case has whole, partial and skipped blocks."""

    implementation = "blockwise"

    @classmethod
    def attend(cls, query, key, value, **options):
        return attention(make_request(query, key, value, **options), query_block=2, key_block=3)


@pytest.fixture(
    params=[2, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 4))], ids=lambda heads: f"{heads} at a time"
)
def parts(request, monkeypatch):
    """A class as on a CPU with one device, which works on so many heads at a time; new, for programs are kept by it."""
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    monkeypatch.setattr(blockwise, "HEADS", request.param)
    return type("Parts", (TestSmallBlocks,), {})()


def part(query, key, value, *_, **options):
    return blockwise.make_plan(make_request(query, key, value, **options), (2, 3), whole=False).part


class TestParts:
    """Rows of the batch and key heads a few at a time: each part finds what is said of its own rows and heads."""

    def test_sizes(self, monkeypatch):
        """As many key heads as keep within `HEADS` query heads, at least one; rows, once all heads fit."""
        monkeypatch.setattr(blockwise, "HEADS", 4)
        given = lambda batch, heads, key_heads: [jnp.ones((batch, 3, n, 4)) for n in (heads, key_heads, key_heads)]
        assert part(*given(6, 8, 8)) == (6, 8)  # eight devices
        monkeypatch.setattr(jax, "device_count", lambda: 1)
        assert [part(*given(6, 8, k)) for k in (8, 4, 2, 1)] == [(1, 4), (1, 2), (1, 1), (1, 1)]
        assert [part(*given(6, n, n)) for n in (6, 4, 2, 1)] == [(1, 3), (1, 4), (2, 2), (3, 1)]
        assert part(*given(6, 8, 8), bias=functional.alibi(8)) == (6, 8)
        assert part(*given(6, 8, 8), bias=jnp.ones((6, 8, 3, 3))) == (1, 4)

    @pytest.mark.parametrize("name", CASES)
    def test_agrees_with_numpy(self, parts, name):
        """Output and all gradients; arrays of biases of each broadcast shape, masks of rows and heads, dropout."""
        given, ours, _ = parts.request(name)
        batch, _, num_heads, _ = given[0].shape
        is_cut = part(*given, **ours) != (batch, given[1].shape[2])
        assert is_cut == (batch * num_heads > blockwise.HEADS)
        parts.test_agrees_with_numpy(name)

    @pytest.mark.parametrize("shape", [(4, 2, 5, 7), (4, 1, 1, 7), (1, 2, 5, 1), (1, 1, 5, 7)], ids=str)
    def test_more_rows(self, parts, shape):
        """Four rows of two heads, two rows at a time where four heads are worked on."""
        given = arrays(2, 2, batch=4)
        dropout, mask, array = functional.Dropout(0.3, jax.random.key(2)), coin(4, 2, 5, 7), bias(*shape)
        options = {"mask": masks.dense(mask), "bias": array, "dropout": dropout}
        assert part(*given, **options) == {1: (1, 1), 2: (1, 2), 4: (2, 2)}[blockwise.HEADS]
        kept = numpy_attention.kept(jax.random.key_data(dropout.key), 0.3, (4, 2, 5, 7))
        theirs = {"allowed": mask, "bias": array, "rate": 0.3, "kept": kept}
        output, found = parts.gradients(*given, **options)
        np.testing.assert_allclose(output, numpy_attention.attention(*given[:3], **theirs)[0], atol=3e-6)
        *expected, d_bias = numpy_attention.gradients(*given, **theirs)
        expected.append(d_bias.sum(tuple(dim for dim, size in enumerate(shape) if size == 1), keepdims=True))
        for got, want in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, want, atol=2e-5)

    def test_drops_the_same_weights(self, parts):
        """To the bit: values that are unit vectors show which."""
        query, key, _, _ = arrays()
        eye = jnp.broadcast_to(jnp.eye(7)[None, :, None], (2, 7, 2, 7))
        dropout = functional.Dropout(0.4, jax.random.key(3))
        plain = functools.partial(functional.attention, implementation="reference")
        dropped = [attend(query, key, eye, dropout=dropout) == 0 for attend in (parts.attend, plain)]
        np.testing.assert_array_equal(*dropped)
        assert 0.3 < dropped[0].mean() < 0.5

    def test_keeps_the_contract(self, parts):
        """Empty rows, unseen keys and forbidden pairs of a part are those of its own rows and heads."""
        parts.test_a_empty_query_rows(np.nan, jnp.float32)
        parts.test_b_unseen_keys_are_inert(np.nan, jnp.float32, True)
        parts.test_c_masked_weights_are_exactly_zero(jnp.float32)


class Counting(masks.Mask):
    """A window that counts the tiles it is asked for, when the program runs."""

    def __init__(self, before, tiles):
        self.window, self.tiles = masks.window(before), tiles

    def tile(self, query_index, key_index):
        jax.debug.callback(lambda: self.tiles.append(None))
        return self.window.tile(query_index, key_index)

    def key_range(self, query_start, query_stop):
        return self.window.key_range(query_start, query_stop)


jax.tree_util.register_pytree_node(Counting, lambda mask: ((), mask), lambda mask, _: mask)


def test_window_visits_only_its_blocks():
    """Restricted attention costs O(T W): a block of queries meets the same few blocks of keys at every length."""
    visited = {}
    for length in (64, 256):
        tiles = []
        query = jnp.ones((1, length, 1, 4))
        request = make_request(query, query, query, mask=Counting(8, tiles))
        attention(request, query_block=8, key_block=8).block_until_ready()
        jax.effects_barrier()
        visited[length] = len(tiles)
    # The block itself and the one before; the first has none.
    assert visited == {64: 2 * 8 - 1, 256: 2 * 32 - 1}


@pytest.mark.parametrize("mask", [None, masks.causal(), masks.window(512)], ids=["full", "causal", "window"])
def test_memory_and_compile_time_at_16384(mask):
    """8 heads of 64: the weights alone would be 8 GiB."""
    length = 16_384
    shapes = [jax.ShapeDtypeStruct((1, length, 8, 64), jnp.float32)] * 3
    loss = lambda q, k, v: functional.attention(q, k, v, mask=mask, implementation="blockwise").sum()
    began = time.perf_counter()
    forward = jax.jit(loss).lower(*shapes).compile().memory_analysis()
    backward = jax.jit(jax.grad(loss, (0, 1, 2))).lower(*shapes).compile().memory_analysis()
    assert forward.temp_size_in_bytes < 256 << 20
    assert backward.temp_size_in_bytes < 768 << 20
    assert time.perf_counter() - began < 40  # 10 s on an idle machine


@pytest.mark.parametrize(
    ("length", "mask"), [(255, masks.causal()), (256, masks.window(30)), (600, masks.causal() & masks.lengths([250]))]
)
def test_agrees_with_reference_around_whole_blocks(length, mask):
    query, key, value = jax.random.normal(jax.random.key(length), (3, 1, length, 2, 8))
    pull = lambda name: jax.vjp(
        functools.partial(functional.attention, mask=mask, implementation=name), query, key, value
    )
    (one, one_pull), (other, other_pull) = pull("reference"), pull("blockwise")
    np.testing.assert_allclose(one, other, atol=2e-6)
    for a, b in zip(one_pull(one), other_pull(one), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_chosen_for_long_sequences():
    """A program for 16,384 positions holds no [T, S] array, without anybody asking for blocks."""
    shapes = [jax.ShapeDtypeStruct((1, 16_384, 1, 8), jnp.float32)] * 3
    memory = jax.jit(functional.attention).lower(*shapes).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 64 << 20
