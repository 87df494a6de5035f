"""Recurrent networks: RNN, GRU and LSTM cells, and `recurrent`, which runs a cell over a sequence.

A cell combines two matrix products: one of the input, which is computed for all steps at once because it does not
depend on the state, and one of the previous state. Gates are in PyTorch's order, with a bias for each product, so that
weights can be copied: ``weight_ih_l0.reshape(G, H, D).permute(2, 0, 1)`` is `RecurrentWeights.input`, and so on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxformer.axes import vary_alike
from jaxformer.functional.dropout import Dropout, dropout
from jaxformer.functional.tokens import clear_padding
from jaxformer.reprs import brief


class RecurrentState(NamedTuple):
    """The state of a cell, float32.

    >>> recurrent_start(lstm_cell, (2, 3)).memory.shape
    (2, 3)
    """

    hidden: jax.Array  # [..., H]: what the next layer sees
    memory: jax.Array | None = None  # [..., H]: the LSTM's cell state

    __repr__ = brief


class RecurrentWeights(NamedTuple):
    """The weights of a cell with G gates: 1 (RNN), 3 (GRU: reset, update, new) or 4 (LSTM: in, forget, new, out).

    >>> weights = RecurrentWeights(*map(jnp.zeros, [(5, 3, 2), (2, 3, 2), (3, 2), (3, 2)]))    # a GRU, D = 5, H = 2
    >>> recurrent(gru_cell, jnp.ones((1, 4, 5)), weights)[0].shape
    (1, 4, 2)
    """

    input: jax.Array  # [D, G, H]
    hidden: jax.Array  # [H, G, H]
    input_bias: jax.Array  # [G, H]
    hidden_bias: jax.Array  # [G, H]

    __repr__ = brief


Cell = Callable[[jax.Array, jax.Array, RecurrentState], RecurrentState]
"""A function of the gate terms ``[..., G, H]`` of the input and of the state, and of the state; returns the next
state."""


def rnn_cell(
    inputs: Float[Array, "*batch 1 H"],
    recurrent: Float[Array, "*batch 1 H"],
    state: RecurrentState,
    *,
    activation: Callable[[jax.Array], jax.Array] = jnp.tanh,
) -> RecurrentState:
    r"""Computes a step of Elman's network: :math:`h_t = \tanh(W x_t + b + U h_{t-1} + c)` (Elman 1990).

    Raises:
      ValueError: the terms are not those of 1 gate.

    >>> ones = jnp.ones((1, 2))
    >>> rnn_cell(ones, -ones, RecurrentState(jnp.zeros(2))).hidden.tolist()
    [0.0, 0.0]
    """
    _check_gates("rnn_cell", 1, inputs, recurrent)
    return RecurrentState(activation(inputs + recurrent)[..., 0, :])


def gru_cell(
    inputs: Float[Array, "*batch 3 H"], recurrent: Float[Array, "*batch 3 H"], state: RecurrentState
) -> RecurrentState:
    r"""Computes a step of a gated recurrent unit (Cho et al. 2014), with the reset gate after the product.

    .. math:: r, z = \sigma(W x_t + U h_{t-1}), \quad n = \tanh(W_n x_t + r \odot (U_n h_{t-1} + c_n)), \quad
       h_t = (1 - z) \odot n + z \odot h_{t-1}

    Raises:
      ValueError: the terms are not those of 3 gates.

    >>> zeros = jnp.zeros((3, 2))
    >>> gru_cell(zeros, zeros, RecurrentState(jnp.ones(2))).hidden.tolist()        # half of the state is kept
    [0.5, 0.5]
    """
    _check_gates("gru_cell", 3, inputs, recurrent)
    reset, update = (jax.nn.sigmoid(inputs[..., gate, :] + recurrent[..., gate, :]) for gate in (0, 1))
    new = jnp.tanh(inputs[..., 2, :] + reset * recurrent[..., 2, :])
    return RecurrentState((1 - update) * new + update * state.hidden)


def lstm_cell(
    inputs: Float[Array, "*batch 4 H"], recurrent: Float[Array, "*batch 4 H"], state: RecurrentState
) -> RecurrentState:
    r"""Computes a step of long short-term memory (Hochreiter and Schmidhuber 1997; forget gate: Gers et al. 2000).

    .. math:: i, f, o = \sigma(W x_t + U h_{t-1}), \quad g = \tanh(W_g x_t + U_g h_{t-1}), \quad
       c_t = f \odot c_{t-1} + i \odot g, \quad h_t = o \odot \tanh(c_t)

    Raises:
      ValueError: the terms are not those of 4 gates, or the state has no memory.

    >>> zeros = jnp.zeros((4, 2))
    >>> lstm_cell(zeros, zeros, RecurrentState(jnp.ones(2), jnp.ones(2))).memory.tolist()
    [0.5, 0.5]
    """
    _check_gates("lstm_cell", 4, inputs, recurrent)
    if state.memory is None:
        raise ValueError("the state of an LSTM has a memory, got None; start from RecurrentState(zeros, zeros)")
    gates = inputs + recurrent
    entry, forget, exit_ = (jax.nn.sigmoid(gates[..., gate, :]) for gate in (0, 1, 3))
    memory = forget * state.memory + entry * jnp.tanh(gates[..., 2, :])
    return RecurrentState(exit_ * jnp.tanh(memory), memory)


def _check_gates(name: str, expected: int, inputs: Array, recurrent: Array) -> None:
    """Checks the number of gates, because JAX clamps the index of a gate that is missing."""
    if (got := (inputs.shape[-2], recurrent.shape[-2])) != (expected, expected):
        raise ValueError(f"{name} needs weights of G = {expected} gates, got {got[0]} for inputs, {got[1]} for states")


def recurrent_start(cell: Cell, shape: tuple[int, ...]) -> RecurrentState:
    """Returns the state of zeros before the first step; `shape` ends in H. Only `lstm_cell` itself gets a memory.

    >>> recurrent_start(gru_cell, (2,)).hidden.tolist()
    [0.0, 0.0]
    """
    zeros = jnp.zeros(shape, jnp.float32)
    return RecurrentState(zeros, zeros if cell is lstm_cell else None)


def recurrent_step(
    cell: Cell,
    x: Float[Array, "*batch D"],
    state: RecurrentState,
    weights: RecurrentWeights,
    *,
    dropout: Dropout | None = None,
) -> RecurrentState:
    """Returns the state after one more input.

    Args:
      dropout: drops entries of the state before the product with the weights.

    >>> weights = RecurrentWeights(jnp.ones((1, 1, 1)), jnp.zeros((1, 1, 1)), jnp.zeros((1, 1)), jnp.zeros((1, 1)))
    >>> recurrent_step(rnn_cell, jnp.zeros((2, 1)), recurrent_start(rnn_cell, (2, 1)), weights).hidden.tolist()
    [[0.0], [0.0]]
    """
    inputs = _gates(x, weights.input, weights.input_bias)
    kept = _dropped(state.hidden, _multiplier(dropout, state.hidden.shape))
    return cell(inputs, _gates(kept.astype(x.dtype), weights.hidden, weights.hidden_bias), state)


def recurrent(
    cell: Cell,
    x: Float[Array, "B T D"],
    weights: RecurrentWeights,
    *,
    state: RecurrentState | None = None,
    valid: Bool[Array, "B T"] | None = None,
    reverse: bool = False,
    dropout: Dropout | None = None,
) -> tuple[Float[Array, "B T H"], RecurrentState]:
    """Runs a cell over a sequence; returns the hidden states of all steps and the last state.

    A step at padding keeps the state and outputs 0. The contents of padding, even NaN and Inf, do not change a bit of
    the results, and their gradient is 0.

    Args:
      state: the state before the first step; by default `recurrent_start`. A custom cell that has a memory, or calls
        `lstm_cell`, needs ``RecurrentState(zeros, zeros)``.
      valid: True where a step is not padding; default: everywhere.
      reverse: run from the last step to the first; outputs keep the positions of their inputs.
      dropout: variational dropout of the state (Gal and Ghahramani 2016): one mask for all steps, before the product.

    Raises:
      ValueError: shapes do not match; the message has the actual and expected values.
      TypeError: it is differentiated in forward mode (``jax.jvp``), which a loop over `recurrent_step` allows.

    >>> import jax.numpy as jnp
    >>> weights = RecurrentWeights(jnp.ones((1, 1, 1)), jnp.ones((1, 1, 1)), jnp.zeros((1, 1)), jnp.zeros((1, 1)))
    >>> add = lambda inputs, recurrent, state: RecurrentState((inputs + recurrent)[..., 0, :])
    >>> x, valid = jnp.array([[[1.], [2.], [jnp.nan], [4.]]]), jnp.array([[True, True, False, True]])
    >>> output, last = recurrent(add, x, weights, valid=valid)
    >>> output[0, :, 0].tolist(), last.hidden.tolist()
    ([1.0, 3.0, 0.0, 7.0], [[7.0]])
    >>> recurrent(add, x, weights, valid=valid, reverse=True)[0][0, :, 0].tolist()
    [7.0, 6.0, 0.0, 4.0]
    """
    _check(x, weights, state, valid)
    batch, hidden_size = x.shape[0], weights.hidden.shape[0]
    if state is None:
        state = recurrent_start(cell, (batch, hidden_size))
    if valid is not None:  # before the product: 0 times NaN is NaN
        x, valid = clear_padding(x, valid), valid.T
    multiplier = _multiplier(dropout, (batch, hidden_size))
    inputs = _product("tbd,dgh->tbgh", jnp.moveaxis(x, 1, 0), weights.input.astype(x.dtype))
    static, biases = (cell, reverse, x.dtype), (weights.input_bias, weights.hidden_bias)
    outputs, last = _steps(static, *vary_alike((inputs, weights.hidden, biases, state, valid, multiplier)))
    return jnp.moveaxis(outputs, 0, 1), last


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _steps(static, inputs, kernel, biases, state, valid, multiplier):
    """Returns the outputs of all steps, time first, and the last state."""
    (outputs, _), last = _scan(static, inputs, kernel, biases, state, valid, multiplier)
    return outputs, last


def _steps_forward(static, inputs, kernel, biases, state, valid, multiplier):
    (outputs, saved), last = _scan(static, inputs, kernel, biases, state, valid, multiplier, save=True)
    return (outputs, last), (inputs, saved, kernel, biases, valid, multiplier)


def _steps_backward(static, residuals, upstream):
    """Runs backward through the steps; the cell is recomputed, but not its product with the weights.

    The gradient of the weights is one product over all steps, not a sum over steps, so a mesh reduces it once.
    """
    (cell, reverse, dtype), (inputs, saved, kernel, biases, valid, multiplier) = static, residuals
    transposed = kernel.astype(dtype).transpose(1, 2, 0)  # here, not in each step

    def step(d_state: RecurrentState, of_step):
        d_output, inputs, (state, product), valid = of_step
        advance = lambda inputs, product, state: keep_state(valid, cell(inputs, product, state), state)
        _, backward = jax.vjp(advance, *_biased(inputs, product, biases), state)
        d_inputs, d_product, d_state = backward((d_state, d_output.astype(jnp.float32)))
        d_kept = _product("bgh,ghd->bd", d_product.astype(dtype), transposed)
        d_hidden = d_state.hidden + _dropped(d_kept, multiplier)
        # A cell that only adds the two has the same gradient for both, which is stored once.
        return RecurrentState(d_hidden, d_state.memory), (d_product, None if d_inputs is d_product else d_inputs)

    of_steps = upstream[0], inputs, saved, valid
    d_state, (d_products, d_inputs) = jax.lax.scan(step, upstream[1], of_steps, reverse=not reverse)
    if d_inputs is None:
        d_inputs = d_products
    kept = _dropped(saved[0].hidden, multiplier).astype(dtype)
    d_kernel = _product("tbd,tbgh->dgh", kept, d_products.astype(dtype)).astype(kernel.dtype)
    d_biases = tuple(d.sum((0, 1)).astype(bias.dtype) for d, bias in zip((d_inputs, d_products), biases, strict=True))
    return d_inputs, d_kernel, d_biases, d_state, None, None


_steps.defvjp(_steps_forward, _steps_backward)


def _scan(static, inputs, kernel, biases, state, valid, multiplier, *, save=False):
    """Returns the outputs and the last state; with `save`, also the state before each step and its product."""
    cell, reverse, dtype = static
    kernel = kernel.astype(dtype)

    def step(state: RecurrentState, of_step):
        inputs, valid = of_step
        kept = _dropped(state.hidden, multiplier).astype(dtype)
        product = _product("bd,dgh->bgh", kept, kernel)
        new, output = keep_state(valid, cell(*_biased(inputs, product, biases), state), state)
        return new, (output.astype(dtype), (state, product) if save else None)

    last, outputs = jax.lax.scan(step, state, (inputs, valid), reverse=reverse)
    return outputs, last


def scan_shared(step: Callable, shared, carry, xs, others=None):
    """Runs ``step(shared, carry, x, other) -> carry, output`` over a sequence; returns the same as `jax.lax.scan`.

    The gradient of `shared`, the weights that all steps use, is computed once, after the backward pass through the
    steps. The transpose of `jax.lax.scan` would update it, and on a mesh reduce it, in each step. Only the carry of
    each step is saved for the backward pass; the rest is recomputed.

    Args:
      step: a function that closes over no array that needs a gradient.
      xs: arrays whose first dimension is the steps.
      others: like `xs`, but without a gradient: masks and keys.

    Raises:
      TypeError: it is differentiated in forward mode (``jax.jvp``).

    >>> step = lambda weight, carry, x, _: (weight * carry + x, carry)
    >>> last = lambda weight: scan_shared(step, weight, jnp.float32(1), jnp.ones(3))[0]
    >>> last(2.0).item(), jax.grad(last)(2.0).item()                                  # w^3 + w^2 + w + 1
    (15.0, 17.0)
    """
    return _scan_shared(step, *vary_alike((shared, carry, xs, others)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scan_shared(step, shared, carry, xs, others):
    return jax.lax.scan(lambda carry, of_step: step(shared, carry, *of_step), carry, (xs, others))


def _scan_shared_forward(step, shared, carry, xs, others):
    def keep(carry, of_step):
        new, output = step(shared, carry, *of_step)
        return new, (output, carry)

    last, (outputs, carries) = jax.lax.scan(keep, carry, (xs, others))
    return (last, outputs), (shared, carries, xs, others)


def _scan_shared_backward(step, residuals, upstream):
    shared, carries, xs, others = residuals

    def back(d_carry, of_step):
        carry, x, other, d_output = of_step
        _, backward = jax.vjp(lambda carry: step(shared, carry, x, other), carry)
        return backward((d_carry, d_output))[0], d_carry

    d_last, d_outputs = upstream
    d_first, d_carries = jax.lax.scan(back, d_last, (carries, xs, others, d_outputs), reverse=True)
    every = lambda shared, xs: jax.vmap(step, (None, 0, 0, 0))(shared, carries, xs, others)
    d_shared, d_xs = jax.vjp(every, shared, xs)[1]((d_carries, d_outputs))
    return d_shared, d_first, d_xs, None


_scan_shared.defvjp(_scan_shared_forward, _scan_shared_backward)


def _biased(inputs: Array, product: Array, biases: tuple[Array, Array]) -> tuple[Array, Array]:
    """Returns the contributions of inputs and state to the gates of a step, including the biases.

    The barrier makes the inputs of this step a separate array: on CPU, XLA does not vectorize a loop that reads each
    gate from the array of all steps.
    """
    input_bias, hidden_bias = (bias.astype(jnp.float32)[None] for bias in biases)
    return jax.lax.optimization_barrier(inputs + input_bias), product + hidden_bias


def keep_state(
    valid: Bool[Array, "*batch"] | None, new: RecurrentState, old: RecurrentState
) -> tuple[RecurrentState, Float[Array, "*batch H"]]:
    """Returns the new state and its output; at padding, the old state and 0."""
    if valid is None:
        return new, new.hidden
    state = jax.tree.map(lambda a, b: jnp.where(valid[..., None], a, b), new, old)
    return state, clear_padding(new.hidden, valid)


def _gates(x: Array, kernel: Array, bias: Array) -> Array:
    """Returns ``x kernel + bias``, ``[..., G, H]``, in float32."""
    gates = _product("...d,dgh->...gh", x, kernel.astype(x.dtype))
    return gates + bias.astype(jnp.float32).reshape((1,) * (gates.ndim - bias.ndim) + bias.shape)


def _product(subscripts: str, a: Array, b: Array) -> Array:
    return jnp.einsum(subscripts, a, b, preferred_element_type=jnp.float32)


def _multiplier(of_state: Dropout | None, shape: tuple[int, ...]) -> Array | None:
    if of_state is None:
        return None
    return dropout(jnp.ones(shape, jnp.float32), rate=of_state.rate, key=of_state.key)


def _dropped(hidden: Array, multiplier: Array | None) -> Array:
    return hidden if multiplier is None else hidden * jnp.broadcast_to(multiplier, hidden.shape)


def _check(x: Array, weights: RecurrentWeights, state: RecurrentState | None, valid: Array | None) -> None:
    if x.ndim != 3 or weights.input.ndim != 3:
        raise ValueError(
            f"x must be [B, T, D] and weights.input [D, G, H], got {list(x.shape)} and {list(weights.input.shape)}"
        )
    bias = weights.input.shape[1:]
    shapes = (x.shape[2], *bias), (bias[1], *bias), bias, bias
    expected = [
        (f"weights.{name}", weight, shape) for name, weight, shape in zip(weights._fields, weights, shapes, strict=True)
    ]
    if valid is not None:
        expected.append(("valid", valid, x.shape[:2]))
    if state is not None:
        arrays = {f"state.{name}": array for name, array in state._asdict().items() if array is not None}
        expected += [(name, array, (x.shape[0], bias[1])) for name, array in arrays.items()]
    for name, array, shape in expected:
        if array.shape != shape:
            raise ValueError(f"{name} must have shape {list(shape)}, got {list(array.shape)}")
