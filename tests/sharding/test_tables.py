"""Copies of a table, one for each group of rows, give the same results and gradients as the table."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, sharding
from jaxformer.sharding import tables
from tests.modules.small import quick

TABLE = jax.random.normal(jax.random.key(0), (7, 3))
TOKENS = jax.random.randint(jax.random.key(1), (6, 4), 0, 7)
WEIGHTS = jax.random.normal(jax.random.key(2), (6, 4, 3))


def looked_up(table, groups, parts=1, dtype="float32"):
    """Looks up six rows of four tokens on `groups` times `parts` devices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "num_shards", lambda name: {"batch": groups, "length": parts}[name])
        copies = sharding.table_copies(table, rows=6, length=4, dtype=jnp.dtype(dtype))
    return copies, sharding.lookup(copies, TOKENS)


@pytest.mark.parametrize(
    ("groups", "parts", "copies"), [(1, 1, (1, 1)), (2, 1, (2, 1)), (3, 2, (3, 2)), (1, 4, (1, 4)), (4, 3, (1, 1))]
)
def test_groups_change_nothing(groups, parts, copies):
    """Four devices do not divide six rows, nor three four tokens: one copy."""
    found, x = looked_up(TABLE, groups, parts)
    assert found.shape == (*copies, 7, 3)
    np.testing.assert_array_equal(x, TABLE[TOKENS])
    slope = quick(jax.grad(lambda table: (looked_up(table, groups, parts)[1] * WEIGHTS).sum()))(TABLE)
    expected = quick(jax.grad(lambda table: (table[TOKENS] * WEIGHTS).sum()))(TABLE)
    np.testing.assert_allclose(slope, expected, atol=1e-6)


def test_values_are_rounded_and_gradients_are_not():
    """A token seen a thousand times: in bfloat16 its sum would stop at 256."""
    copies, _ = looked_up(TABLE, 2, dtype="bfloat16")
    np.testing.assert_array_equal(copies[1, 0], TABLE.astype(jnp.bfloat16).astype(jnp.float32))
    often = jnp.zeros((6, 1000), jnp.int32)

    def total(table):
        copies = sharding.table_copies(table, rows=6, dtype=jnp.dtype("bfloat16"))
        return sharding.lookup(copies, often).astype(jnp.bfloat16).astype(jnp.float32).sum()

    slope = quick(jax.grad(total))
    assert float(slope(TABLE)[0, 0]) == 6000
    assert slope(TABLE.astype(jnp.bfloat16)).dtype == jnp.bfloat16


def test_ids_beyond_the_table_are_refused_in_every_group():
    copies, _ = looked_up(TABLE, 2)
    with pytest.raises(ValueError, match=r"must be in \[0, V = 7\), the rows of their table, got 9$"):
        sharding.lookup(copies, TOKENS.at[5, 3].set(9).at[0, 0].set(7))
    counts = jnp.ones(TOKENS.shape, bool).at[5, 3].set(False)
    np.testing.assert_array_equal(sharding.lookup(copies, TOKENS.at[5, 3].set(9), where=counts)[:5], TABLE[TOKENS][:5])


@pytest.mark.full
@pytest.mark.parametrize("parts", [1, 2])
def test_the_loss_of_shared_copies(parts):
    """Lookup and output of one table: value and gradient are those of the table itself, which the loss may be given."""

    @jax.jit
    def shared(table):
        copies, x = looked_up(table, 3, parts)
        return functional.linear_loss(x, copies, TOKENS, functional.CrossEntropy(0.1), chunk=12)[0]

    direct = lambda table: functional.cross_entropy(table[TOKENS] @ table.T, TOKENS, smoothing=0.1)[0]
    found, slope = jax.value_and_grad(shared)(TABLE)
    expected, expected_slope = jax.jit(jax.value_and_grad(direct))(TABLE)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(slope, expected_slope, atol=1e-5)
    np.testing.assert_allclose(shared(TABLE), expected, rtol=1e-6)  # without a gradient, another program


def test_the_count_is_sent_with_the_gradient():
    """Separately it would take longer and, on simulated devices, could deadlock with an exchange in a loop."""
    placement = sharding.Placement(sharding.mesh("data=8"))
    batch = placement.assemble({"x": np.ones((8, 4, 3), np.float32), "labels": np.ones((8, 4), np.int32)})

    def loss(table, batch):
        labels = batch["labels"]
        return sharding.linear_loss(batch["x"], table, labels, functional.CrossEntropy(), where=labels > 0)

    step = jax.jit(jax.value_and_grad(placement.with_axis_rules(loss), has_aux=True))
    assert step.lower(TABLE, batch).compile().as_text().count(" all-reduce(") == 1
