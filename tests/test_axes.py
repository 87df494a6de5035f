"""Placement of activations: the identity until a table is active, then exactly the placement of the table."""

import contextlib

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxformer import axes


def test_constrain_is_the_identity():
    x = jnp.ones((2, 3))
    assert axes.constrain(x, "batch", None) is x


def test_constrain_counts_the_names():
    with pytest.raises(ValueError, match=r"got \('batch',\) for shape \(2, 3\)"):
        axes.constrain(jnp.ones((2, 3)), "batch")


def test_placing_decides_inside_only_and_nests():
    seen = []

    def outer(x, names):
        seen.append(("outer", x.shape, names))
        return x

    def inner(x, names):
        seen.append(("inner", x.shape, names))
        return x + 1

    x = jnp.zeros(2)
    with axes.placing(outer):
        axes.constrain(x, "batch")
        with contextlib.suppress(KeyError), axes.placing(inner):
            assert float(axes.constrain(x, "model")[0]) == 1
            raise KeyError
        axes.constrain(x, None)
    axes.constrain(x, "heads")
    assert seen == [("outer", (2,), ("batch",)), ("inner", (2,), ("model",)), ("outer", (2,), (None,))]


def test_placing_acts_while_a_function_is_traced():
    """Entered inside the jitted function, the table is part of the program."""

    @jax.jit
    def doubled(x):
        with axes.placing(lambda y, names: y * 2):
            return axes.constrain(x, "batch")

    assert float(doubled(jnp.ones(1))[0]) == 2


def test_placed_is_true_if_a_table_is_active():
    assert not axes.placed()
    with axes.placing(lambda x, names: x):
        assert axes.placed()
    assert not axes.placed()


def test_names_of_parameters_end_before_the_value_of_a_variable():
    """A dict may have a parameter "value", such as the projection of attention's values."""
    names = lambda tree: [axes.parameter_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    params = {"attention": {"value": jnp.ones(1)}, "value": jnp.ones(1)}
    assert names(params) == ["attention/value", "value"]
    assert names(nnx.State(jax.tree.map(nnx.Param, params))) == ["attention/value", "value"]
