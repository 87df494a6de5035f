"""The key-value cache is a value, and a map of lanes gives the past of each hypothesis."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.functional.cache import (
    MOST_LANES,
    empty_cache,
    first_lanes,
    seen_positions,
    seen_slots,
    slots_of,
    take_lanes,
    write,
)
from tests.modules.small import int32, quick

B, K, L = 2, 3, 5


def test_write_sets_slots_of_each_row_and_drops_later_ones():
    cache = empty_cache(2, 4, num_kv_heads=1, head_dim=2, dtype=jnp.dtype("bfloat16"))
    assert cache.key.shape == cache.value.shape == (2, 1, 4, 2)
    key, value = jnp.ones((2, 3, 1, 2)), jnp.full((2, 3, 1, 2), 2.0)
    written = jax.jit(write)(cache, key, value, int32([[0, 3, 4], [1, 2, 5]]))
    assert written.key.dtype == jnp.bfloat16
    expected = np.zeros((2, 1, 4, 2))
    expected[[0, 0, 1, 1], :, [0, 3, 1, 2]] = 1
    np.testing.assert_array_equal(np.asarray(written.key, np.float32), expected)
    np.testing.assert_array_equal(np.asarray(written.value, np.float32), 2 * expected)
    assert not np.asarray(cache.key, np.float32).any()


def test_write_keeps_earlier_values():
    """Each place gets its own values, in an order of each row; nothing is lost or swapped."""
    draw = np.random.default_rng(0)
    keys, values = draw.standard_normal((2, 4, 2, 3, 2, 5)).astype(np.float32)  # [T, B, Q, N, H]
    order = np.stack([draw.permutation(12).reshape(4, 3) for _ in range(2)], 1)  # [T, B, Q]
    cache = empty_cache(2, 12, num_kv_heads=2, head_dim=5, dtype=jnp.dtype("float32"))
    for t in range(4):
        cache = quick(write)(cache, keys[t], values[t], int32(order[t]))
    key, value = map(np.asarray, (cache.key, cache.value))
    for (t, b, q), place in np.ndenumerate(order):
        np.testing.assert_array_equal(key[b, :, place], keys[t, b, q])
        np.testing.assert_array_equal(value[b, :, place], values[t, b, q])


def test_few_hypotheses_share_a_cache():
    assert first_lanes(2, 1, L) is None
    assert first_lanes(2, MOST_LANES + 1, L) is None
    np.testing.assert_array_equal(first_lanes(1, 2, 3), [[[0, 0, 0], [1, 1, 1]]])


def test_a_window_ends_with_the_position_itself():
    seen = seen_positions(int32([1, 3]), L, window=2)
    np.testing.assert_array_equal(seen, [[1, 1, 0, 0, 0], [0, 0, 1, 1, 0]])


@pytest.mark.full
@pytest.mark.parametrize("ragged", [False, True])
def test_each_hypothesis_reads_its_own_past(ragged):
    """Random steps of one or more tokens, reordering and, if ragged, positions of their own that go back.

    With a window it finds the last tokens of its past, and nothing beyond the end of the cache.
    """
    draw = np.random.default_rng(ragged)
    jitted = jax.jit(take_lanes, static_argnums=2)
    for _ in range(3):
        lanes, position = first_lanes(B, K, L), np.zeros((B, K), int)
        held = np.full((B, K * L), -1)  # the token in each place
        past = [[[] for _ in range(K)] for _ in range(B)]  # the tokens of each hypothesis
        for step in range(8):
            count = draw.integers(1, 3)
            positions = position[..., None] + np.arange(count)
            lanes = jitted(lanes, int32(position), int(count))
            slots = np.asarray(slots_of(lanes, int32(positions))).reshape(B, K, count)
            for (b, k, t), place in np.ndenumerate(slots):
                token = 100 * step + 10 * k + t
                past[b][k] = [*past[b][k][: positions[b, k, t]], token]
                if place < K * L:
                    held[b, place] = token
            seen = np.asarray(seen_slots(lanes, int32(positions))).reshape(B, K, count, K * L)
            near = np.asarray(seen_slots(lanes, int32(positions), 2)).reshape(seen.shape)
            for b, k, t in np.ndindex(B, K, count):
                end = positions[b, k, t] + 1
                assert held[b, seen[b, k, t]].tolist() == past[b][k][: min(end, L)]
                assert held[b, near[b, k, t]].tolist() == past[b][k][max(end - 2, 0) : min(end, L)]
            position = position + count
            if ragged:
                position = np.maximum(1, position - draw.integers(0, 2, (B, K)))
            parents = draw.integers(0, K, (B, K))
            past = [[list(past[b][p][: position[b, p]]) for p in parents[b]] for b in range(B)]
            lanes = jnp.take_along_axis(lanes, int32(parents)[..., None], 1)
            position = np.take_along_axis(position, parents, 1)
