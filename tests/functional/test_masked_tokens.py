"""The corruption of tokens: their number, their choice and their replacements."""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.functional import mask_tokens, num_masked
from tests.modules.small import quick

V, MASK, SPECIAL = 50, 50, (0, 1, 2, 3)
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, V, (2048, 64)), jnp.int32)
VALID = jnp.asarray(np.arange(64)[None] < np.random.default_rng(1).integers(0, 65, (2048, 1)))


@quick
def masked(tokens, valid, key):
    return mask_tokens(tokens, key, mask=MASK, vocab_size=V, special=SPECIAL, where=valid)


SEEN, CHOSEN = map(np.asarray, masked(TOKENS, VALID, jax.random.key(0)))
MAY = np.asarray(VALID) & ~np.isin(TOKENS, SPECIAL)


def test_fifteen_percent_of_each_row_are_chosen():
    assert [num_masked(n, 0.15) for n in (0, 1, 3, 20, 64)] == [0, 1, 1, 3, 10]
    np.testing.assert_array_equal(CHOSEN.sum(1), [num_masked(n, 0.15) for n in MAY.sum(1).tolist()])


def test_special_tokens_and_padding_do_not_change():
    """They are neither chosen nor changed, and no random token is special."""
    assert not (CHOSEN & ~MAY).any()
    np.testing.assert_array_equal(SEEN[~CHOSEN], np.asarray(TOKENS)[~CHOSEN])
    assert not np.isin(SEEN[CHOSEN], SPECIAL).any()


def test_eighty_ten_ten():
    """Within four deviations; a random token is the old one in 1 of 46 draws."""
    seen, old = SEEN[CHOSEN], np.asarray(TOKENS)[CHOSEN]
    n = len(seen)
    for share, got in ((0.8, seen == MASK), (0.1 + 0.1 / 46, seen == old)):
        assert abs(got.mean() - share) < 4 * (share * (1 - share) / n) ** 0.5
    drawn = seen[(seen != MASK) & (seen != old)]
    assert set(drawn.tolist()) == set(range(4, V))


def test_every_position_is_equally_likely():
    """The frequency of each position of full rows, over many keys; a bias to early ones would show."""
    tokens, keys = jnp.full((64, 20), 7, jnp.int32), jax.random.split(jax.random.key(1), 64)
    draw = lambda key: mask_tokens(tokens, key, mask=MASK, vocab_size=V)[1]
    chosen = np.asarray(quick(jax.vmap(draw))(keys)).reshape(-1, 20)
    assert np.abs(chosen.mean(0) - 0.15).max() < 4 * (0.15 * 0.85 / len(chosen)) ** 0.5


def test_a_function_of_the_key():
    same, other = (masked(TOKENS, VALID, jax.random.key(seed)) for seed in (0, 1))
    np.testing.assert_array_equal(same[0], SEEN)
    assert (np.asarray(other[1]) != CHOSEN).any()


def test_the_same_on_a_mesh():
    mesh = jax.make_mesh((4, 2), ("data", "length"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data", "length"))
    found = masked(jax.device_put(TOKENS, place), jax.device_put(VALID, place), jax.random.key(0))
    chex.assert_trees_all_equal(found, (SEEN, CHOSEN))


def test_a_rate_of_0_chooses_none():
    assert num_masked(64, 0.0) == 0
    assert not np.asarray(mask_tokens(TOKENS, jax.random.key(0), mask=MASK, vocab_size=V, rate=0.0)[1]).any()


def test_a_special_id_outside_the_vocabulary_changes_nothing():
    """Such as -100, the ignored label of other libraries: no random token was 0."""
    key, options = jax.random.key(0), {"mask": MASK, "vocab_size": V, "rate": 0.5}
    got, expected = (mask_tokens(TOKENS, key, special=ids, **options)[0] for ids in ((3, -100), (3,)))
    np.testing.assert_array_equal(got, expected)
