"""Recurrent layers: directions, stacks, steps, dropout and logical axes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, modules
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


def test_a_stack_has_a_layer():
    with pytest.raises(ValueError, match="num_layers must be at least 1, got 0"):
        built(lambda rngs: modules.RecurrentStack(D, H, 0, rngs=rngs))


def test_the_number_of_states_is_checked():
    """Missing states were zero in the full pass, and a step left out their layers."""
    module, params = stack(num_layers=2)
    x, bound = normal(B, T, D), module.net.bind(params)
    states = bound.start(B)
    for given in (states[:1], (*states, *states)):
        for call in (lambda given=given: bound(x, states=given), lambda given=given: bound.step(x[:, 0], given)):
            with pytest.raises(ValueError, match=f"a state for each layer and direction, 2, got {len(given)}"):
                call()


def test_a_bidirectional_stack_has_no_step():
    module, params = stack(bidirectional=True)
    bound = module.net.bind(params)
    with pytest.raises(ValueError, match="a bidirectional stack has no step"):
        bound.step(normal(B, T, D)[:, 0], bound.start(B))
