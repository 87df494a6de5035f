"""The contract of states."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import decoding
from tests.decoding.toys import BEGIN, END, markov, start


def tree_state():
    values = jnp.arange(12.0).reshape(2, 3, 2)
    return decoding.TreeState({"values": values, "position": values[..., 0]})


def test_tree_state_reorders_every_leaf():
    parents = np.array([[2, 0, 0], [1, 1, 2]])
    state = tree_state()
    result = state.reorder(jnp.asarray(parents)).tree
    for name, leaf in state.tree.items():
        for sentence in range(2):
            np.testing.assert_array_equal(result[name][sentence], leaf[sentence][parents[sentence]])


def test_tree_state_takes_sentences():
    """Sentences may come in any order and number; the shape follows."""
    state = tree_state()
    result = state.take(jnp.array([1, 1, 0]))
    assert (state.shape, result.shape) == ((2, 3), (3, 3))
    np.testing.assert_array_equal(result.tree["values"], state.tree["values"][np.array([1, 1, 0])])


def test_state_leaves_must_agree():
    step, _ = markov(0)
    for tree in ({"a": jnp.zeros((2, 1)), "b": jnp.zeros((2, 3))}, {"a": jnp.zeros(2)}, {}):
        with pytest.raises(ValueError, match="leading dims"):
            decoding.greedy(step, decoding.TreeState(tree), max_length=2, bos=BEGIN, eos=END)


@pytest.mark.parametrize("search", [decoding.greedy, decoding.beam_search, decoding.sample, decoding.forced])
def test_a_bare_pytree_is_no_state(search):
    step, _ = markov(0)
    tree = start(2).tree
    needed = {
        decoding.greedy: {"max_length": 2, "eos": END},
        decoding.beam_search: {"max_length": 2, "eos": END, "beam_size": 2},
        decoding.sample: {"max_length": 2, "eos": END, "key": None},
        decoding.forced: {"tokens": jnp.zeros((2, 2, 1), jnp.int32), "lengths": jnp.ones((2, 2), jnp.int32)},
    }
    with pytest.raises(ValueError, match=r"dict lacks shape, reorder, take\. Wrap a pytree .* decoding\.TreeState"):
        search(step, tree, bos=BEGIN, **needed[search])
