"""The position-wise feed-forward network, its activations, and its linear maps, which other layers share."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxformer.axes import placed, vary_alike

Activation = Callable[[jax.Array], jax.Array]
"""An elementwise nonlinearity."""


def relu(x: Float[Array, "*dims"]) -> Float[Array, "*dims"]:
    """Returns ``max(0, x)``; the gradient at 0 is 0.

    >>> import jax.numpy as jnp
    >>> relu(jnp.array([2., -1., 0., -3., 5.])).tolist()
    [2.0, 0.0, 0.0, 0.0, 5.0]
    """
    return jax.nn.relu(x)


def gelu(x: Float[Array, "*dims"]) -> Float[Array, "*dims"]:
    """Returns ``x Phi(x)`` with the exact normal distribution function Phi (Hendrycks and Gimpel 2016).

    Phi is computed from the error function in float32, as PyTorch does, with an error of 1e-7, which is larger than Phi
    itself below -5. `jax.nn.gelu` uses the complementary error function, which is accurate there and takes twice the
    time.

    >>> [round(y, 4) for y in gelu(jnp.array([-1.0, 1.0, 3.0])).tolist()]
    [-0.1587, 0.8413, 2.996]
    """
    wide = x.astype(np.promote_types(x.dtype, np.float32))
    return (wide * (0.5 + 0.5 * jax.lax.erf(wide * math.sqrt(0.5)))).astype(x.dtype)


def gelu_tanh(x: Float[Array, "*dims"]) -> Float[Array, "*dims"]:
    """Returns `gelu` with Phi approximated by tanh, as in GPT-2 and in BERT's original code.

    >>> [round(y, 4) for y in gelu_tanh(jnp.array([-1.0, 1.0, 3.0])).tolist()]
    [-0.1588, 0.8412, 2.9964]
    """
    wide = x.astype(np.promote_types(x.dtype, np.float32))  # also, the cube of 41 exceeds the largest float16
    return jax.nn.gelu(wide, approximate=True).astype(x.dtype)


def silu(x: Float[Array, "*dims"]) -> Float[Array, "*dims"]:
    """Returns ``x sigmoid(x)``, also called swish (Ramachandran et al. 2017), as in Marian and SwiGLU.

    >>> [round(y, 4) for y in silu(jnp.array([-1.0, 1.0, 3.0])).tolist()]
    [-0.2689, 0.7311, 2.8577]
    """
    return jax.nn.silu(x)


def feed_forward(
    x: Float[Array, "*batch D"],
    w_in: Float[Array, "D F"],
    b_in: Float[Array, " F"] | None,
    w_out: Float[Array, "F E"],
    b_out: Float[Array, " E"] | None,
    *,
    activation: Activation = relu,
) -> Float[Array, "*batch E"]:
    """Returns ``activation(x w_in + b_in) w_out + b_out`` (Vaswani et al. 2017, eq. 2).

    The network is the same at every position: row i of the result depends only on row i of `x`.

    >>> feed_forward(jnp.array([[1.0, -2.0]]), jnp.eye(2), jnp.ones(2), jnp.ones((2, 1)), None).tolist()
    [[2.0]]
    """
    return linear(activation(linear(x, w_in, b_in)), w_out, b_out)


def gated_feed_forward(
    x: Float[Array, "*batch D"],
    w_gate: Float[Array, "D F"],
    w_in: Float[Array, "D F"],
    w_out: Float[Array, "F E"],
    *,
    activation: Activation = silu,
) -> Float[Array, "*batch E"]:
    """Returns ``(activation(x w_gate) * x w_in) w_out``: GLU (sigmoid), GEGLU (gelu), SwiGLU (silu); Shazeer 2020.

    >>> x, gate = jnp.array([[3.0, 2.0]]), jnp.array([[1.0, 0.0], [0.0, -1.0]])
    >>> gated_feed_forward(x, gate, jnp.eye(2), jnp.ones((2, 1)), activation=relu).tolist()  # 3 * 3 + 0 * 2
    [[9.0]]
    """
    return linear(activation(linear(x, w_gate, None)) * linear(x, w_in, None), w_out, None)


def linear(
    x: Float[Array, "*batch D"], kernel: Float[Array, "D F"], bias: Float[Array, " F"] | None
) -> Float[Array, "*batch F"]:
    """Returns ``x kernel + bias``; parameters are cast to the dtype of `x`, and sums are computed in float32.

    >>> linear(jnp.array([[1.0, 2.0]]), jnp.array([[3.0], [4.0]]), jnp.array([5.0])).tolist()
    [[16.0]]
    """
    kernel = kernel.astype(x.dtype)
    # With batch and length merged, the gradient of the kernel needs no transposed copies, which took a tenth of a
    # training step on a CPU. On a mesh they stay separate, because length may be sharded.
    rows = x if x.ndim < 3 or placed() else jax.lax.collapse(x, 0, x.ndim - 1)
    y = jnp.matmul(rows, kernel)
    if bias is not None:
        y = add_shared(y, bias)
    return y.reshape(*x.shape[:-1], kernel.shape[1])


def scaled(x: Float[Array, "*dims"], factor: float) -> Float[Array, "*dims"]:
    """Returns ``factor x``, rounded once: in bfloat16 the factor would be rounded, too, and bias all results alike.

    >>> scaled(jnp.array([1.0, 3.0], jnp.bfloat16), 1.1).tolist()  # 3 times 1.1015625, the nearest to 1.1, is 3.3125
    [1.1015625, 3.296875]
    """
    if factor == 1:
        return x
    wide = np.promote_types(x.dtype, np.float32)
    return (x.astype(wide) * jnp.asarray(factor, wide)).astype(x.dtype)


def add_shared(x: Float[Array, "*dims"], term: Float[Array, ...]) -> Float[Array, "*dims"]:
    """Returns ``x + term`` in the dtype of `x`; the gradient of `term`, which broadcasts to `x`, is summed in float32.

    In bfloat16, the transpose of broadcasting would sum in bfloat16: 20,000 ones would add up to 8,192.

    >>> add_shared(jnp.ones((2, 1, 3)), jnp.array([1.0, 2.0, 3.0]))[1, 0].tolist()
    [2.0, 3.0, 4.0]
    """
    term = term.reshape((1,) * (x.ndim - term.ndim) + term.shape)
    if jnp.finfo(x.dtype).bits >= 32:
        return x + term.astype(x.dtype)
    x, term = vary_alike((x, term))  # before broadcasting, so that a mesh reduces gradients of the term's size
    return x + _spread(x.shape, x.dtype, term)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _spread(shape: tuple[int, ...], dtype: jnp.dtype, term: Array) -> Array:
    return jnp.broadcast_to(term.astype(dtype), shape)


@_spread.defjvp
def _spread_jvp(shape, dtype, primals, tangents):
    """Broadcasts in float32, in which the transpose then sums; XLA can still fuse the addition with a product."""
    return _spread(shape, dtype, *primals), jnp.broadcast_to(tangents[0].astype(jnp.float32), shape).astype(dtype)
