"""Recurrent networks against a loop over steps: values, gradients, padding, dropout. PyTorch is in tests/parity."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional as F
from jaxformer.functional.recurrent import keep_state, scan_shared
from tests.modules.small import normal, quick
from tests.selection import first

B, T, D, H = 3, 5, 4, 6
GATES = {F.rnn_cell: 1, F.gru_cell: 3, F.lstm_cell: 4}
CELLS = list(GATES)
VALID = jnp.asarray([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 1, 0, 1, 0]], bool)


def weights_of(cell):
    gates = GATES[cell]
    shapes = (D, gates, H), (H, gates, H), (gates, H), (gates, H)
    return F.RecurrentWeights(*(0.5 * normal(*shape, seed=i) for i, shape in enumerate(shapes)))


@functools.cache
def compiled(cell, reverse=False):
    return quick(functools.partial(F.recurrent, cell, reverse=reverse))


def loop(cell, x, weights, valid, *, reverse=False):
    """The definition: one step after another, each example by itself, skipping padding."""
    outputs, last = np.zeros((B, T, H), np.float32), []
    for row in range(B):
        state = F.recurrent_start(cell, (H,))
        for t in range(T)[:: -1 if reverse else 1]:
            if valid[row, t]:
                state = F.recurrent_step(cell, x[row, t], state, weights)
                outputs[row, t] = state.hidden
        last.append(state)
    return outputs, jax.tree.map(lambda *rows: np.stack(rows), *last)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cell", first(CELLS, F.lstm_cell))
def test_equal_to_a_loop(cell, reverse):
    x, weights = normal(B, T, D), weights_of(cell)
    outputs, last = compiled(cell, reverse)(x, weights, valid=VALID)
    expected, expected_last = loop(cell, x, weights, np.asarray(VALID), reverse=reverse)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    assert jax.tree.structure(last) == jax.tree.structure(expected_last)
    chex.assert_trees_all_close(last, expected_last, rtol=0, atol=1e-5)


def test_a_cell_around_an_lstm_needs_an_initial_state():
    """By default, only `lstm_cell` itself starts with a memory."""
    x, weights = normal(B, T, D), weights_of(F.lstm_cell)
    again = jax.checkpoint(F.lstm_cell)
    with pytest.raises(ValueError, match=r"has a memory, got None; start from RecurrentState\(zeros, zeros\)"):
        F.recurrent(again, x, weights)
    state = F.recurrent_start(F.lstm_cell, (B, H))
    outputs, _ = quick(functools.partial(F.recurrent, again))(x, weights, state=state)
    np.testing.assert_allclose(outputs, compiled(F.lstm_cell)(x, weights)[0], atol=1e-6)


def scanned(cell, options, weights, x, state):
    outputs, last = F.recurrent(cell, x, weights, state=state, **options)
    return outputs, last


def unrolled(cell, options, weights, x, state):
    """The same by one call per step, for JAX to differentiate."""
    options = {"valid": jnp.ones((B, T), bool), "reverse": False, "dropout": None} | options
    outputs = [jnp.zeros((B, H))] * T
    for t in range(T)[:: -1 if options["reverse"] else 1]:
        new = F.recurrent_step(cell, x[:, t], state, weights, dropout=options["dropout"])
        state, outputs[t] = keep_state(options["valid"][:, t], new, state)
    return jnp.stack(outputs, 1), state


def start_of(cell):
    return jax.tree.map(lambda x: 0.5 * normal(*x.shape, seed=7), F.recurrent_start(cell, (B, H)))


def loss_of(run, cell, options):
    upstream = normal(B, T, H, seed=9)

    def loss(*arguments):
        outputs, last = run(cell, options, *arguments)
        return (outputs * upstream).sum() + sum(jnp.sin(leaf).sum() for leaf in jax.tree.leaves(last))

    return loss


OPTIONS = {
    "plain": {},
    "reverse": {"reverse": True},
    "padding and dropout": {"valid": VALID, "dropout": F.Dropout(0.5, jax.random.key(3))},
}


@pytest.mark.full
@pytest.mark.parametrize("options", first(OPTIONS, "padding and dropout"))
@pytest.mark.parametrize("cell", CELLS)
def test_gradients_equal_those_of_an_unrolled_loop(cell, options):
    """Of the weights, the inputs and the first state."""
    arguments = weights_of(cell), normal(B, T, D), start_of(cell)
    got, expected = (
        quick(jax.grad(loss_of(run, cell, OPTIONS[options]), (0, 1, 2)))(*arguments) for run in (scanned, unrolled)
    )
    chex.assert_trees_all_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_second_derivatives_equal_those_of_an_unrolled_loop():
    arguments = weights_of(F.gru_cell), normal(B, T, D), start_of(F.gru_cell)

    def steepness(run):
        gradient = jax.grad(loss_of(run, F.gru_cell, OPTIONS["padding and dropout"]))
        return lambda weights, *rest: sum((leaf**2).sum() for leaf in gradient(weights, *rest))

    got, expected = (quick(jax.grad(steepness(run), (0, 1)))(*arguments) for run in (scanned, unrolled))
    chex.assert_trees_all_close(got, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("cell", "kept"), [(F.rnn_cell, 1), (F.gru_cell, 2), (F.lstm_cell, 1)])
def test_the_backward_pass_stores_one_gradient_of_gates_that_are_only_added(cell, kept):
    """Otherwise every step would write two copies of the largest array."""
    loss = loss_of(scanned, cell, {})
    jaxpr = jax.make_jaxpr(jax.grad(loss))(weights_of(cell), normal(B, T, D), start_of(cell))
    *_, back = [equation for equation in jaxpr.eqns if equation.primitive.name == "scan"]
    assert [str(out.aval) for out in back.outvars].count(f"float32[{T},{B},{GATES[cell]},{H}]") == kept


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cell", first(CELLS, F.lstm_cell))
def test_padding_of_any_content_changes_no_bit_and_has_no_gradient(cell, reverse):
    weights, upstream = weights_of(cell), normal(B, T, H, seed=9)

    def loss(x, weights):
        outputs, last = F.recurrent(cell, x, weights, valid=VALID, reverse=reverse)
        return (outputs * upstream).sum() + last.hidden.sum(), (outputs, last)

    run = quick(jax.grad(loss, (0, 1), has_aux=True))
    clean, *others = (
        run(jnp.where(VALID[..., None], normal(B, T, D), fill), weights) for fill in (0.0, np.nan, np.inf, 1e30)
    )
    for other in others:
        chex.assert_trees_all_equal(clean, other)
    padding = ~np.asarray(VALID)
    assert not np.asarray(clean[0][0])[padding].any()
    assert not np.asarray(clean[1][0])[padding].any()
    assert np.asarray(clean[0][0])[~padding].all()


def test_the_state_continues_a_sequence():
    x, weights = normal(B, T, D), weights_of(F.lstm_cell)
    whole, last = compiled(F.lstm_cell)(x, weights)
    first, state = compiled(F.lstm_cell)(x[:, :2], weights)
    second, end = compiled(F.lstm_cell)(x[:, 2:], weights, state=state)
    chex.assert_trees_all_close((np.concatenate([first, second], 1), end), (whole, last), rtol=0, atol=1e-6)


@pytest.mark.full
def test_dropout_has_one_mask_for_all_steps():
    """With ones as recurrent weights and no input, each kept entry adds alike in every step."""
    weights = F.RecurrentWeights(jnp.zeros((1, 1, H)), jnp.eye(H)[:, None], jnp.zeros((1, H)), jnp.zeros((1, H)))
    add = functools.partial(F.rnn_cell, activation=lambda x: x)
    start, dropout = F.RecurrentState(jnp.ones((2, H))), F.Dropout(0.5, jax.random.key(3))
    outputs, _ = F.recurrent(add, jnp.zeros((2, 3, 1)), weights, state=start, dropout=dropout)
    outputs = np.asarray(outputs)
    kept = outputs[:, 0] > 0
    assert 0 < kept.sum() < kept.size
    for t in range(3):
        np.testing.assert_array_equal(outputs[:, t], np.where(kept, 2.0 ** (t + 1), 0))
    step = F.recurrent_step(add, jnp.zeros((2, 1)), start, weights, dropout=dropout)
    np.testing.assert_array_equal(step.hidden, outputs[:, 0])


def test_outputs_keep_the_dtype_and_states_are_float32():
    x = normal(B, T, D).astype(jnp.bfloat16)
    outputs, last = compiled(F.lstm_cell)(x, weights_of(F.lstm_cell))
    assert outputs.dtype == jnp.bfloat16
    assert last.hidden.dtype == last.memory.dtype == jnp.float32


@pytest.mark.full
def test_scanning_with_shared_weights_equals_a_scan():
    """The last carry, the outputs, and the gradients of the weights, the first carry and the inputs."""

    def step(weights, carry, x, other):
        keep, key = other
        new = jnp.tanh(carry @ weights["hidden"] + x) * jax.random.bernoulli(key, 0.5, carry.shape).astype(x.dtype)
        return jnp.where(keep, new, carry), {"squared": carry**2 * weights["gain"]}

    def plain(step, weights, carry, xs, others):
        return jax.lax.scan(lambda carry, given: step(weights, carry, *given), carry, (xs, others))

    others = VALID[1], jax.random.split(jax.random.key(1), T)
    upstream = normal(B, H, seed=9), normal(T, B, H, seed=8)

    def loss(scan, weights, carry, xs):
        last, outputs = scan(step, weights, carry, xs, others)
        return (last * upstream[0]).sum() + (outputs["squared"] * upstream[1]).sum()

    arguments = {"hidden": normal(H, H), "gain": normal(H, seed=1)[None]}, normal(B, H, seed=2), normal(T, B, H, seed=3)
    of = lambda scan: quick(jax.value_and_grad(functools.partial(loss, scan), (0, 1, 2)))(*arguments)
    with jax.enable_x64(True):  # the two add up in another order, which float32 shows on some processors
        upstream, arguments = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), (upstream, arguments))
        chex.assert_trees_all_close(of(scan_shared), of(plain), rtol=1e-5, atol=1e-6)
