"""Attention over a mesh: functions with the signature of `functional.attention`, which modules take as arguments."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Unpack

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from jaxformer import masks, targets
from jaxformer.errors import ConfigError
from jaxformer.functional.attention import api, blockwise, ring
from jaxformer.functional.attention.base import Request, make_request
from jaxformer.functional.attention.weights import WeightOptions, attention_weights
from jaxformer.functional.bias import Bias, DenseBias, terms
from jaxformer.functional.dropout import Dropout
from jaxformer.masks import Mask
from jaxformer.sharding.rules import RULES, MeshAxes, Rules, fitting, mesh_axes, shards_of, spec


class Options(WeightOptions, total=False):
    """The options of `functional.attention`, except the implementation."""

    dropout: Dropout | None


PARTITIONED_BY_XLA = ("reference", "xla", "cudnn")
"""Implementations that the compiler can shard along batch and heads. The others contain loops or kernels, and the
compiler would gather their operands on every device."""


def sharded_attention(
    mesh: Mesh, *, rules: Rules = RULES, implementation: str | None = None
) -> Callable[..., jax.Array]:
    """Returns `functional.attention` on a mesh: each device computes its shard of the batch and of the heads.

    Nothing is gathered. If the table shards lengths (mesh axis `context`) and no implementation is named, attention is
    computed on a ring. In a cached step, which has few queries, and with a bias of other positions than 0, 1, 2, ...,
    which is a ``[T, S]`` array, each device has the full lengths.

    A model that takes the result as an argument calls it with global arrays, inside ``jit``:
    ``pure(Model, config, attention=sharded_attention(mesh))``.

    Args:
      rules: the rule table; its entries "batch", "heads" and "length" name the mesh axes that shard these dimensions.
      implementation: as in `functional.attention`, with the full lengths on each device; None chooses one.

    Raises:
      ConfigError: the implementation is unknown; when called, if it or the ring cannot compute the request.

    >>> from jaxformer import sharding
    >>> x = jnp.ones((2, 6, 2, 4))
    >>> sharded_attention(sharding.mesh("data=1", jax.devices()[:1]), implementation="blockwise")(x, x, x).shape
    (2, 6, 2, 4)
    """
    if implementation is not None and implementation not in api.implementations:
        raise ConfigError(f"implementation must be one of {sorted(api.implementations)}, got {implementation!r}")
    batch, length, heads = spec(("batch", "length", "heads"), rules, mesh)

    def attention(query: jax.Array, key: jax.Array, value: jax.Array, **options: Unpack[Options]) -> jax.Array:
        batch_axes, head_axes = fitting(batch, query.shape[0], mesh), fitting(heads, key.shape[2], mesh)
        has_shards = implementation is None and shards_of(length, mesh) > 1 and query.shape[1] > 1
        if has_shards and not _has_pairs(options.get("mask"), options.get("bias")):
            return ring_attention(mesh, length, batch=batch_axes, heads=head_axes)(query, key, value, **options)
        request = make_request(query, key, value, **options)
        with targets.compiling_for(targets.devices()[:1]):  # each device computes its shard independently
            name = implementation or api.choose(request)
        if name in PARTITIONED_BY_XLA and shards_of(length, mesh) > 1:
            request = _with_full_lengths(request, mesh, batch_axes, head_axes)
        if mesh.size == 1 or name in PARTITIONED_BY_XLA:
            api.check(request, name)
            return api.implementations[name].run(api.differentiable(request, name))
        return _mapped(api.differentiable(request, name), name, mesh, batch_axes, head_axes)

    attention.weights = attention_weights  # type: ignore[attr-defined]
    return attention


def _has_pairs(mask: object, bias: object) -> bool:
    """Returns True for a cached step, whose keys are finite by its mask, and for a bias with ``[T, S]`` arrays."""
    if isinstance(mask, Mask) and mask.finite:
        return True
    return isinstance(bias, Bias) and any(isinstance(x, DenseBias) for x in terms(bias))


def _with_full_lengths(request: Request, mesh: Mesh, batch: MeshAxes, heads: MeshAxes) -> Request:
    """Returns the request with arrays of full lengths on each device; only batch and heads stay sharded.

    Without this, the compiler chooses the shardings, and cuDNN's partitioner rejects sharded lengths.
    """
    place = lambda x, of_x: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, of_x))
    rows_and_heads = PartitionSpec(batch, None, heads)
    query, key, value = (place(x, rows_and_heads) for x in (request.query, request.key, request.value))
    mask, bias = request.mask, request.bias
    if mask is not None:
        mask = jax.tree.map(place, mask, _mask_spec(mask, batch, heads))
    if bias is not None and not isinstance(bias, Bias):
        bias = place(bias, _array_spec(bias, batch, heads))
    return dataclasses.replace(request, query=query, key=key, value=value, mask=mask, bias=bias)


def _mapped(request: Request, name: str, mesh: Mesh, batch: MeshAxes, heads: MeshAxes) -> jax.Array:
    """Computes each device's shard of the batch and of the heads with the named implementation."""
    dims = request.query.shape[0], request.query.shape[2], request.query.shape[1], request.key.shape[1]

    def local(share: Request) -> jax.Array:
        if name == "blockwise":
            origin = _origin(batch, share.query.shape[0]), _origin(heads, share.query.shape[2])
            return blockwise.attention(share, dims=dims, origin=origin)
        if reason := api.implementations[name].refuse(share):
            raise ConfigError(f"attention implementation {name!r} cannot do this: {reason}")
        return api.implementations[name].run(share)

    return _on_devices(local, request, mesh, batch, None, heads)


def _on_devices(
    local: Callable[[Request], jax.Array],
    request: Request,
    mesh: Mesh,
    batch: MeshAxes,
    length: MeshAxes,
    heads: MeshAxes,
) -> jax.Array:
    """Computes ``local(share)`` on each device; mask and bias of its share of the request may cover all lengths."""

    names = "query", "key", "value", "mask", "bias", "sinks"

    def compute(dropout_key: jax.Array | None, *arrays: PyTree) -> jax.Array:
        dropout = request.dropout and request.dropout._replace(key=dropout_key)
        return local(dataclasses.replace(request, dropout=dropout, **dict(zip(names, arrays, strict=True))))

    layout, bias = PartitionSpec(batch, length, heads), PartitionSpec()
    if request.bias is not None and not isinstance(request.bias, Bias):
        bias = _array_spec(request.bias, batch, heads)
    mask, key = _mask_spec(request.mask, batch, heads), request.dropout and request.dropout.key
    specs = PartitionSpec(), layout, layout, layout, mask, bias, PartitionSpec(heads)
    mapped = jax.shard_map(compute, mesh=mesh, in_specs=specs, out_specs=layout, check_vma=False)
    return mapped(key, *(getattr(request, name) for name in names))


def _origin(axes: MeshAxes, count: int) -> int | jax.Array:
    """Returns the global index of the first of this device's `count` rows or heads."""
    return 0 if axes is None else jax.lax.axis_index(axes) * count


def _array_spec(x: jax.Array, batch: MeshAxes, heads: MeshAxes) -> PartitionSpec:
    """Returns the `PartitionSpec` of an array ``[b, n, t, s]``: a dimension of 1 is replicated."""
    return PartitionSpec(*(axes if size > 1 else None for axes, size in zip((batch, heads), x.shape, strict=False)))


def _mask_spec(mask: Mask | None, batch: MeshAxes, heads: MeshAxes) -> PyTree[PartitionSpec]:
    """Returns the `PartitionSpec` of a mask's arrays: arrays with an entry per row are sharded like rows, others not.

    If a custom mask has several rows or heads, all arrays are replicated, because shards of the others would not match
    it.
    """
    if mask is not None and not _can_be_sharded(mask):
        batch = heads = None
    of = functools.partial(_mask_spec, batch=batch, heads=heads)
    match mask:
        case masks.And(left, right) | masks.Or(left, right):
            return type(mask)(of(left), of(right))
        case masks.Not(inner) | masks.Stored(inner):
            return type(mask)(of(inner))
        case masks.Lengths() | masks.Padding() | masks.Segments():
            return jax.tree.map(lambda x: PartitionSpec(batch if x.shape[0] > 1 else None), mask)
        case masks.Dense(array):
            of_array = _array_spec(array, batch, heads)
            return dataclasses.replace(mask, array=of_array)  # pyright: ignore[reportArgumentType]
        case _:
            return jax.tree.map(lambda _: PartitionSpec(), mask)


def _can_be_sharded(mask: Mask) -> bool:
    """Returns True if every mask in a combination has one row and head, or arrays that `_mask_spec` can shard."""
    match mask:
        case masks.And(left, right) | masks.Or(left, right):
            return _can_be_sharded(left) and _can_be_sharded(right)
        case masks.Not(inner) | masks.Stored(inner):
            return _can_be_sharded(inner)
        case masks.Lengths() | masks.Padding() | masks.Segments() | masks.Dense():
            return True
        case _:
            index = jax.ShapeDtypeStruct((1,), jnp.int32)
            return jax.eval_shape(lambda m, i: m.tile(i, i), mask, index).shape[:2] == (1, 1)


def ring_attention(
    mesh: Mesh, axis: str, *, batch: MeshAxes = None, heads: MeshAxes = None, zigzag: bool = False
) -> Callable[..., jax.Array]:
    """Returns attention whose sequences are sharded along the mesh axis `axis`; self- and cross-attention.

    The result has the signature of `functional.attention` (no `implementation`, biases as `Bias` only) and is called
    with global arrays, under ``jit`` or not.

    Args:
      batch, heads: mesh axes that also shard the batch and the heads; None if they are replicated.
      zigzag: True if positions are in the order of `functional.zigzag`, which is load-balanced under a causal mask;
        weights cannot then be captured, because masks and biases have the original order. Nothing is padded: each of
        the 2 P chunks of the length (P devices) is computed in blocks whose size divides it, so avoid chunks of prime
        length.

    Raises:
      ConfigError: the mesh lacks an axis; when called, a size is not divisible, or a ring cannot compute the request.

    >>> import numpy as np
    >>> mesh = Mesh(np.array(jax.devices()[:1]), ("context",))
    >>> x = jnp.ones((1, 6, 2, 4))
    >>> ring_attention(mesh, "context")(x, x, x).shape
    (1, 6, 2, 4)
    """
    for name in (axis, *mesh_axes(batch), *mesh_axes(heads)):
        if name not in mesh.shape:
            raise ConfigError(f"the mesh has no axis {name!r}; it has {list(mesh.shape)}")
    size = mesh.shape[axis]

    def attention(query: jax.Array, key: jax.Array, value: jax.Array, **options: Unpack[Options]) -> jax.Array:
        request = make_request(query, key, value, **options)
        if reason := ring.refuse(request):
            raise ConfigError(f"ring attention cannot do this: {reason}")
        lengths = query.shape[1], key.shape[1]
        for axes, name, count in ((batch, "batch", query.shape[0]), (heads, "key heads", key.shape[2])):
            if count % shards_of(axes, mesh):
                raise ConfigError(f"{name} = {count} cannot be sharded over {axes!r} = {shards_of(axes, mesh)}")
        if zigzag and any(length % (2 * size) for length in lengths):
            raise ConfigError(f"zigzag over {size} devices needs lengths that {2 * size} divides, got {lengths}")
        if 0 in (query.shape[0], *lengths):
            return jnp.zeros((*query.shape[:3], value.shape[3]), query.dtype)
        dims = query.shape[0], query.shape[2], *lengths
        devices = ring.Ring(axis, size, dims, (batch, heads), zigzag)
        if not zigzag:  # padding would shift the chunks of a zigzag
            arrays = {"query": request.query, "key": request.key, "value": request.value}
            request = dataclasses.replace(request, **{name: ring.fill(x, size) for name, x in arrays.items()})
        local = functools.partial(ring.attention, ring=devices)
        return _on_devices(local, request, mesh, batch, axis, heads)[:, : lengths[0]]

    if not zigzag:
        attention.weights = attention_weights  # type: ignore[attr-defined]
    return attention
