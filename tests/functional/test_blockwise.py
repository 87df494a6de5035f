"""Blockwise attention keeps the contract, in blocks far smaller than the sequence."""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks
from jaxformer.functional.attention.base import make_request
from jaxformer.functional.attention.blockwise import attention
from tests.contracts.attention import AttentionContract
from tests.contracts.biases import BiasContract


class TestBlockwise(AttentionContract):
    implementation = "blockwise"


class TestSmallBlocks(AttentionContract, BiasContract):
    """Two by three: every case has whole, partial and skipped blocks."""

    implementation = "blockwise"

    @classmethod
    def attend(cls, query, key, value, **options):
        return attention(make_request(query, key, value, **options), query_block=2, key_block=3)


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
