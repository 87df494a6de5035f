"""Recurrent layers: directions, stacks, steps, dropout and logical axes; alignments are the functions of the papers."""

import functools
import inspect

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks, modules
from jaxformer.functional import RecurrentWeights
from tests.modules.small import built, count, normal, quick
from tests.selection import first

B, T, D, H = 2, 5, 4, 6
VALID = jnp.asarray([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]], bool)
near = functools.partial(np.testing.assert_allclose, atol=1e-5)


@functools.cache
def stack(cell="lstm", **options):
    return built(lambda rngs: modules.RecurrentStack(D, H, cell=cell, rngs=rngs, **options))


@pytest.mark.parametrize("cell", first(["rnn", "gru", "lstm"], "lstm"))
def test_a_bidirectional_stack_is_each_layer_forwards_and_backwards(cell):
    module, params = stack(cell, num_layers=2, bidirectional=True)
    x = normal(B, T, D)
    got, last = module.apply(params, x, valid=VALID)

    @quick
    def by_hand(params, x):
        function, states = getattr(functional, f"{cell}_cell"), []
        for layer in ("0", "1"):
            outputs = []
            for direction in ("forward", "backward"):
                weights = RecurrentWeights(**params["layers"][layer][direction])
                output, state = functional.recurrent(function, x, weights, valid=VALID, reverse=direction == "backward")
                outputs.append(output)
                states.append(state)
            x = jnp.concatenate(outputs, -1)
        return x, tuple(states)

    expected, states = by_hand(params, x)
    near(got, expected)
    assert got.shape == (B, T, 2 * H)
    jax.tree.map(near, last, states)


@pytest.mark.parametrize("cell", first(["rnn", "gru", "lstm"], "lstm"))
def test_steps_equal_the_full_pass_with_and_without_dropout_on_states(cell):
    module, params = stack(cell, num_layers=2, state_dropout=0.5)
    x, key = normal(B, T, D), jax.random.key(1)
    start = module.net.bind(params).start(B)
    wholes = []
    for given in (None, key):
        whole, last = module.apply(params, x, key=given)
        states = start
        for t in range(T):
            row, states = module.call(modules.RecurrentStack.step, params, x[:, t], states, state_key=given)
            near(row, whole[:, t])
        jax.tree.map(near, states, last)
        wholes.append(whole)
    assert not np.allclose(*wholes)


def test_dropout_is_between_layers_only():
    module, params = stack(num_layers=1, dropout=0.5)
    deep, deep_params = stack(num_layers=2, dropout=0.5)
    x, key = normal(B, T, D), jax.random.key(0)
    near(module.apply(params, x, key=key)[0], module.apply(params, x)[0])
    assert not np.allclose(deep.apply(deep_params, x, key=key)[0], deep.apply(deep_params, x)[0])


def test_first_states_are_taken_in_order():
    module, params = stack(num_layers=2)
    x = normal(B, T, D)
    whole, _ = module.apply(params, x)
    _, states = module.apply(params, x[:, :3])
    near(module.apply(params, x[:, 3:], states=states)[0], whole[:, 3:])


def test_parameters_axes_and_the_open_forget_gate():
    module, _ = stack(num_layers=2, bidirectional=True)
    cell = lambda size: 4 * H * (size + H + 2)
    assert count(module.shapes) == 2 * cell(D) + 2 * cell(2 * H)
    axes = module.net.axes["layers"]["1"]["backward"]
    assert axes == {
        "input": ("model", None, None),
        "hidden": ("model", None, None),
        "input_bias": (None, None),
        "hidden_bias": (None, None),
    }
    bias = module.init(jax.random.key(0))["layers"]["0"]["forward"]["input_bias"]
    assert bias.tolist() == [[0.0] * H, [1.0] * H, [0.0] * H, [0.0] * H]


S, M, A = 4, 5, 7
REAL = jnp.asarray([[1, 1, 1, 1], [1, 1, 0, 0]], bool)


def aligned(kind, num_memory=M, fill=0.0):
    module, params = built(lambda rngs: modules.Alignment(D, num_memory, A, kind=kind, rngs=rngs))
    query, memory = normal(B, T, D), jnp.where(REAL[..., None], normal(B, S, num_memory, seed=1), fill)
    keys = module.call(modules.Alignment.keys, params, memory)
    return params, query, memory, module.apply(params, query, keys, memory, valid=REAL)


def test_additive_is_bahdanaus_and_concat_the_same():
    params, query, memory, got = aligned("additive")
    kernels = {name: params[name]["kernel"] for name in ("w_query", "w_key")}
    mask = masks.padding(REAL)
    expected = functional.additive_attention(query, memory, memory, **kernels, v=params["v"], mask=mask)
    chex.assert_trees_all_close(got, expected, rtol=0, atol=1e-5)
    chex.assert_trees_all_close(aligned("concat")[3], expected, rtol=0, atol=1e-5)


def test_general_and_dot_are_luongs():
    params, query, memory, got = aligned("general")
    assert list(params) == ["w_key"]
    mask = masks.padding(REAL)
    w = params["w_key"]["kernel"].T
    chex.assert_trees_all_close(
        got, functional.multiplicative_attention(query, memory, memory, w=w, mask=mask), rtol=0, atol=1e-5
    )
    params, query, memory, got = aligned("dot", D)
    assert not params
    expected = functional.multiplicative_attention(query, memory, memory, w=jnp.eye(D), mask=mask)
    chex.assert_trees_all_close(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["additive", "general"])
def test_padding_of_any_content_changes_no_bit(kind):
    (output, weights), other = aligned(kind)[3], aligned(kind, fill=np.nan)[3]
    assert not np.asarray(weights)[1, :, 2:].any()
    np.testing.assert_allclose(weights.sum(-1), np.ones((B, T)), atol=1e-6)
    np.testing.assert_array_equal(output, other[0])


def test_an_unknown_cell_is_refused():
    with pytest.raises(ValueError, match=r"^cell must be one of rnn, gru, lstm, got 'LSTM'"):
        inspect.unwrap(modules.Recurrent.__init__)(None, D, H, cell="LSTM", rngs=None)  # as for a user
