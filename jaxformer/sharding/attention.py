"""Attention over a mesh: functions of the signature of `functional.attention`, for modules to be given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from jaxformer.functional.attention import ring
from jaxformer.functional.attention.base import make_request
from jaxformer.functional.bias import Bias
from jaxformer.functional.dropout import Dropout
from jaxformer.masks import Mask


def ring_attention(
    mesh: Mesh, axis: str, *, batch: str | None = None, heads: str | None = None, zigzag: bool = False
) -> Callable[..., jax.Array]:
    """Attention whose sequences are cut along the mesh axis `axis`; self- and cross-attention.

    The result has the signature of `functional.attention` (no `implementation`, biases as `Bias` only)
    and is called with whole arrays, under ``jit`` or not: it is the placement that is cut, not the interface.

    Args:
      batch, heads: mesh axes that cut the batch, and the heads, too.
      zigzag: the lengths are in the order of `functional.zigzag`, which balances a causal mask.

    Raises:
      ValueError: an axis that the mesh lacks; when called, a size that it does not divide, or what a ring cannot do.

    >>> import numpy as np
    >>> mesh = Mesh(np.array(jax.devices()[:1]), ("context",))
    >>> x = jnp.ones((1, 6, 2, 4))
    >>> ring_attention(mesh, "context")(x, x, x).shape
    (1, 6, 2, 4)
    """
    for name in (axis, batch, heads):
        if name is not None and name not in mesh.shape:
            raise ValueError(f"the mesh has no axis {name!r}; it has {list(mesh.shape)}")
    size = mesh.shape[axis]

    def attention(
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        *,
        mask: Mask | jax.Array | None = None,
        bias: Bias | jax.Array | None = None,
        scale: float | None = None,
        score: Any = None,
        dropout: Dropout | None = None,
    ) -> jax.Array:
        request = make_request(query, key, value, mask=mask, bias=bias, scale=scale, score=score, dropout=dropout)
        if reason := ring.refuse(request):
            raise ValueError(f"ring attention cannot do this: {reason}")
        for name, what, count in ((batch, "batch", query.shape[0]), (heads, "key heads", key.shape[2])):
            if name is not None and count % mesh.shape[name]:
                raise ValueError(f"{what} = {count} cannot be cut along {name!r} = {mesh.shape[name]}")
        lengths = query.shape[1], key.shape[1]
        if zigzag and any(length % (2 * size) for length in lengths):
            raise ValueError(f"zigzag over {size} devices needs lengths that {2 * size} divides, got {lengths}")
        if 0 in lengths:
            return jnp.zeros((*query.shape[:3], value.shape[3]), query.dtype)
        dims = query.shape[0], query.shape[2], *lengths
        around = ring.Ring(axis, size, dims, (batch, heads), zigzag)
        query, key, value = (ring.fill(x, size) for x in (query, key, value))

        def local(query: jax.Array, key: jax.Array, value: jax.Array, shared: Any) -> jax.Array:
            mine = make_request(query, key, value, scale=scale, score=score)
            mask, bias, dropout_key = shared
            dropout = None if request.dropout is None else Dropout(request.dropout.rate, dropout_key)
            return ring.attention(dataclasses.replace(mine, mask=mask, bias=bias, dropout=dropout), around)

        cut = PartitionSpec(batch, axis, heads)
        specs = cut, cut, cut, PartitionSpec()
        mapped = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=cut, check_vma=False)
        shared = request.mask, request.bias, None if request.dropout is None else request.dropout.key
        return mapped(query, key, value, shared)[:, : lengths[0]]

    return attention
