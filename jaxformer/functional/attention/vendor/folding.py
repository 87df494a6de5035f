"""Kernels under ``jax.vmap``: the mapped dimension becomes part of the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from jaxformer.functional.attention.base import RESIDUAL

Arrays = tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]
"""Query ``[B, T, N, H]``, key and value ``[B, S, K, H]``, and a bias ``[b, n, T, S]`` or None."""


Mapped: TypeAlias = Sequence[Any]
"""True for each of the arrays, and for the mask, that is mapped: it has a first dimension more."""

TreeT = TypeVar("TreeT")
Rebuild: TypeAlias = Callable[[Arrays, list[jax.Array]], Callable[[jax.Array], Arrays]]
"""Makes the backward pass from the arrays and what the forward pass saved besides them."""


def foldable(call: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Returns a kernel ``call(query, key, value, bias, mask)`` that ``jax.vmap`` calls once, with a larger batch.

    Bias and mask keep a head dimension of 1 and grow by the mapped dimension only. A gradient under ``jax.vmap``
    computes the forward pass twice, because the residuals of the larger kernel cannot be split into those of smaller
    ones.

    >>> first = lambda query, key, value, bias, mask: jnp.where(mask.any(), query[:, :, :1], 0)
    >>> x, mask = jnp.ones((4, 2, 3, 5, 8)), jnp.ones((4, 1, 1, 3, 3), bool)
    >>> jax.vmap(lambda x, mask: foldable(first)(x, x, x, None, mask))(x, mask).shape
    (4, 2, 3, 1, 8)
    """
    rebuild: Rebuild

    @jax.custom_batching.custom_vmap
    def compute(arrays: Arrays, mask: jax.Array | None) -> jax.Array:
        return call(*arrays, mask)

    @jax.custom_batching.custom_vmap
    def forward(arrays: Arrays, mask: jax.Array | None) -> tuple[jax.Array, list[jax.Array]]:
        nonlocal rebuild
        output, saved, rebuild = _pulled(call, arrays, mask)
        return output, saved

    @jax.custom_batching.custom_vmap
    def backward(arrays: Arrays, mask: jax.Array | None, saved: list[jax.Array], upstream: jax.Array) -> Arrays:
        return rebuild(arrays, saved)(upstream)

    @compute.def_vmap
    def _(size: int, mapped: Mapped, arrays: Arrays, mask: jax.Array | None):
        return _cut(compute(*_folded(size, mapped, (arrays, mask))), size), True

    @forward.def_vmap
    def _(size: int, mapped: Mapped, arrays: Arrays, mask: jax.Array | None):
        one = jax.tree.map(lambda x, is_mapped: x[0] if is_mapped else x, (arrays, mask), tuple(mapped))
        unused = [jnp.zeros(x.shape, x.dtype) for x in jax.eval_shape(forward, *one)[1]]
        output = compute(*_folded(size, mapped, (arrays, mask)))
        return (_cut(output, size), unused), (True, [False] * len(unused))

    @backward.def_vmap
    def _(size: int, mapped: Mapped, arrays: Arrays, mask: jax.Array | None, _, upstream: jax.Array):
        arrays, mask, upstream = _repeated(size, (*mapped[:2], mapped[3]), (arrays, mask, upstream))
        every = jax.tree.map(lambda _: True, (arrays, mask))
        whole = lambda *arrays: _cut(attend(*_folded(size, every, (arrays, mask))), size)
        slopes = jax.vjp(whole, *arrays)[1](upstream)
        return slopes, jax.tree.map(lambda _: True, slopes)

    @jax.custom_vjp
    def attend(arrays: Arrays, mask: jax.Array | None) -> jax.Array:
        return compute(arrays, mask)

    def attend_forward(arrays: Arrays, mask: jax.Array | None):
        output, saved = forward(arrays, mask)
        # An array for all pairs, such as a bias that was computed from the mask, is recomputed.
        saved = [checkpoint_name(x, RESIDUAL) if x.size <= output.size else x for x in saved]
        return checkpoint_name(output, RESIDUAL), (arrays, mask, saved)

    def attend_backward(residuals: tuple[Arrays, jax.Array | None, list[jax.Array]], upstream: jax.Array):
        return backward(*residuals, upstream), None

    attend.defvjp(attend_forward, attend_backward)
    return lambda query, key, value, bias, mask: attend((query, key, value, bias), mask)


def _pulled(
    call: Callable[..., jax.Array], arrays: Arrays, mask: jax.Array | None
) -> tuple[jax.Array, list[jax.Array], Rebuild]:
    """Returns the output, the residuals besides the inputs, and a function from both to the backward pass."""
    output, pull = jax.vjp(lambda *x: call(*x, mask), *arrays)
    read, structure = jax.tree.flatten(pull)
    inputs = jax.tree.leaves(arrays)
    sources = [next((i for i, array in enumerate(inputs) if array is x), None) for x in read]

    def rebuild(arrays: Arrays, saved: list[jax.Array]) -> Callable[[jax.Array], Arrays]:
        inputs, others = jax.tree.leaves(arrays), iter(saved)
        return jax.tree.unflatten(structure, [next(others) if i is None else inputs[i] for i in sources])

    return output, [x for x, i in zip(read, sources, strict=True) if i is None], rebuild


def _repeated(size: int, mapped: Mapped, arrays: TreeT) -> TreeT:
    """Returns the tree with a leading dimension of `size` in every array."""
    copied = lambda x, is_mapped: x if is_mapped else jnp.broadcast_to(x, (size, *x.shape))
    return jax.tree.map(copied, arrays, tuple(mapped))


def _folded(size: int, mapped: Mapped, inputs: tuple[Arrays, jax.Array | None]) -> tuple[Arrays, jax.Array | None]:
    """Returns arrays and mask whose batch includes the mapped dimension; a batch dimension of 1 stays 1."""
    (query, key, value, bias), mask = inputs
    (*of_arrays, of_bias), of_mask = mapped
    query, key, value = _repeated(size, of_arrays, (query, key, value))
    batch = query.shape[1]

    def rows(x: jax.Array | None, is_mapped: bool | None) -> jax.Array | None:
        if x is None or (not is_mapped and x.shape[0] == 1):
            return x
        (x,) = _repeated(size, (is_mapped,), (x,))
        return jnp.broadcast_to(x, (size, batch, *x.shape[2:])).reshape(-1, *x.shape[2:])

    query, key, value = (x.reshape(-1, *x.shape[2:]) for x in (query, key, value))
    return (query, key, value, rows(bias, of_bias)), rows(mask, of_mask)


def _cut(x: jax.Array, size: int) -> jax.Array:
    return x.reshape(size, -1, *x.shape[1:])
