"""Splash attention, the kernel for TPU that comes with JAX: memory O(T + S), and blocks outside a band are skipped.

The kernel masks by position and by segment. A `masks.Band` becomes its local mask. Padding, in a batch or at the end of
the last block, is assigned to a segment without queries.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxformer import targets
from jaxformer.functional.attention.base import RESIDUAL, Request, SoftCap
from jaxformer.masks import And, Band, Lengths, Mask, Padding, Segments

LANES = 128
"""Lengths and head dims are padded to a multiple of this number."""
BLOCKS = (512, 256, 128)
WIDEST = 256
"""The largest head dim that the kernel's authors test."""
ROWS = 256
"""The number of queries whose visible keys are computed together."""

MODULE = "jax.experimental.pallas.ops.tpu.splash_attention"


def refuse(request: Request) -> str | None:
    """Returns the reason why splash attention cannot compute a request on the target devices, or None if it can."""
    device = targets.devices()[0]
    if device.platform != "tpu" or device.device_kind in ("TPU v2", "TPU v3"):
        return f"it needs a TPU v4 or later, got {device.platform} ({device.device_kind})"
    try:
        importlib.import_module(MODULE)
    except ImportError:
        return f"this JAX has no {MODULE}"
    return refuse_anywhere(request)


def refuse_anywhere(request: Request) -> str | None:
    """Returns the reason why the kernel cannot compute a request on any device, or None if it can."""
    query, key, value = request.query, request.key, request.value
    if request.bias is not None:
        return "it has no bias"
    if request.sinks is not None:
        return "it has no attention sinks"
    if request.dropout is not None:
        return "it cannot drop weights by the hash of this library"
    if request.score is not None and not isinstance(request.score, SoftCap):
        return "its only function of the logits is soft_cap"
    if query.shape[1] == 0 or key.shape[1] == 0:
        return "it needs at least one query and one key"
    if query.dtype not in (jnp.float32, jnp.bfloat16) or not query.dtype == key.dtype == value.dtype:
        return f"it needs one dtype, float32 or bfloat16, got {query.dtype}, {key.dtype} and {value.dtype}"
    if max(query.shape[3], value.shape[3]) > WIDEST:
        return f"it needs head dims up to {WIDEST}, got {query.shape[3]} and {value.shape[3]}"
    return _refuse_mask(request)


def _refuse_mask(request: Request) -> str | None:
    parts = _parts(request.mask)
    for part in parts:
        if not isinstance(part, Band | Lengths | Padding | Segments):
            return f"its masks are Band, Lengths, Padding, Segments and an & of these, got {type(part).__name__}"
    segments = [part for part in parts if isinstance(part, Segments)]
    if len(segments) > 1:
        return "it has one segment for each position"
    if not all(np.can_cast(ids.dtype, np.int32) for ids in jax.tree.leaves(segments)):
        return "it needs segments that fit into int32"
    if not _meets(_band(parts), request.query.shape[1], request.key.shape[1]).any():
        return "it needs at least one pair that its mask allows"
    return None


def decline(request: Request) -> str | None:
    """Returns the reason why the kernel is a bad default for a request that it accepts, or None if it is a good one.

    The compiler cannot partition a Pallas kernel; on several devices it belongs inside ``jax.shard_map``.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if len(targets.devices()) > 1 and (mesh.empty or set(mesh.manual_axes) != set(mesh.axis_names)):
        return "on several devices it belongs inside jax.shard_map, as in sharded_attention"
    if request.query.shape[1] < LANES:
        return f"it is made for blocks of {LANES} queries, got {request.query.shape[1]}"
    return None


def attention(request: Request, *, interpret: bool = False) -> Float[Array, "B T N J"]:
    """Computes the result of `reference.attention`; `interpret` runs the kernel step by step on any device."""
    query, key, value, parts = request.query, request.key, request.value, _parts(request.mask)
    num_queries, num_keys = query.shape[1], key.shape[1]
    nonempty, seen = (x[..., None, None] for x in _visible(request.mask, num_queries, num_keys))
    query = jnp.where(nonempty, query, 0)
    key, value = (jnp.where(seen, x, 0) for x in (key, value))
    query = (query.astype(jnp.float32) * request.scale).astype(query.dtype)
    query, key, value = (_padded(x).swapaxes(1, 2) for x in (query, key, value))
    lengths = query.shape[2], key.shape[2]
    cap = request.score.cap if isinstance(request.score, SoftCap) else None
    kernel = _kernel(_band(parts), lengths, query.shape[1], cap, interpret)
    segments = _segments(request, parts, lengths)
    output = jax.vmap(kernel)(query, key, value, segments)
    output = output.swapaxes(1, 2)[:, :num_queries, :, : request.value.shape[3]]
    return jnp.where(nonempty, output, 0)


@functools.lru_cache(maxsize=256)
def _kernel(
    band: Band, lengths: tuple[int, int], num_heads: int, cap: float | None, interpret: bool
) -> Callable[..., Array]:
    """Builds and caches the kernel: it holds a map of the blocks, and a function that `jit` compares by identity."""
    splash = importlib.import_module(MODULE)
    if band == Band(None, None):
        mask = splash.FullMask(lengths)
    else:
        mask = splash.LocalMask(lengths, (band.before, band.after), offset=0)
    queries, keys = (max(size for size in BLOCKS if length % size == 0) for length in lengths)
    sizes = splash.BlockSizes(
        block_q=queries, block_kv=keys, block_q_dkv=queries, block_kv_dkv=keys, block_q_dq=queries, block_kv_dq=keys
    )
    with jax.ensure_compile_time_eval():
        return splash.make_splash_mha_single_device(
            splash.MultiHeadMask([mask] * num_heads),
            block_sizes=sizes,
            attn_logits_soft_cap=cap,
            interpret=interpret,
            residual_checkpoint_name=RESIDUAL,
        )


def _segments(request: Request, parts: list[Mask], lengths: tuple[int, int]) -> tuple[Array, Array] | None:
    """Returns the segment of each query and key, padded to `lengths`; None if the mask is only a band."""
    (batch, num_queries), num_keys = request.query.shape[:2], request.key.shape[1]
    after = _band(parts).after
    padding_unseen = lengths[1] == num_keys or (after is not None and num_queries + after <= num_keys)
    if padding_unseen and all(isinstance(part, Band) for part in parts):
        return None
    query, key = jnp.zeros((1, num_queries), jnp.int32), jnp.zeros((1, num_keys), jnp.int32)
    valid = jnp.ones((1, num_keys), bool)
    for part in parts:
        if isinstance(part, Segments):
            query, key = (jnp.atleast_2d(x).astype(jnp.int32) for x in (part.query, part.key))
        elif not isinstance(part, Band):
            valid &= part.tile(jnp.arange(1), jnp.arange(num_keys))[:, 0, 0]
    unused_segment = query.max(1, keepdims=True) + 1
    key, valid = (jnp.pad(x, ((0, 0), (0, lengths[1] - num_keys))) for x in (key, valid))
    query = jnp.pad(query, ((0, 0), (0, lengths[0] - num_queries)))
    segments = query, jnp.where(valid, key, unused_segment)
    return importlib.import_module(MODULE).SegmentIds(*(jnp.broadcast_to(x, (batch, x.shape[1])) for x in segments))


def _visible(mask: Mask | None, num_queries: int, num_keys: int) -> tuple[Array | np.ndarray, Array | np.ndarray]:
    """Returns the queries that see a key, ``[b, T]``, and the keys that are seen, ``[b, S]``, without a T x S array."""
    parts = _parts(mask)
    if mask is None or all(isinstance(part, Band) for part in parts):
        band = _band(parts)
        transposed = Band(band.after, band.before)
        return _meets(band, num_queries, num_keys)[None], _meets(transposed, num_keys, num_queries)[None]
    keys = jnp.arange(num_keys)

    def visit_rows(seen, start):
        index = start + jnp.arange(ROWS)
        tile = mask.tile(index, keys)[:, 0] & (index < num_queries)[None, :, None]
        return seen | tile.any(1), tile.any(2)

    batch = jax.eval_shape(mask.tile, keys[:1], keys[:1]).shape[0]
    seen, nonempty = jax.lax.scan(visit_rows, jnp.zeros((batch, num_keys), bool), jnp.arange(0, num_queries, ROWS))
    return nonempty.swapaxes(0, 1).reshape(batch, -1)[:, :num_queries], seen


def _parts(mask: Mask | None) -> list[Mask]:
    """Returns the operands of an ``&``, or the mask itself."""
    if isinstance(mask, And):
        return [*_parts(mask.left), *_parts(mask.right)]
    return [] if mask is None else [mask]


def _band(parts: list[Mask]) -> Band:
    """Returns the intersection of all bands."""
    bands = [part for part in parts if isinstance(part, Band)]
    before = min((band.before for band in bands if band.before is not None), default=None)
    after = min((band.after for band in bands if band.after is not None), default=None)
    return Band(before, after)


def _meets(band: Band, num_queries: int, num_keys: int) -> np.ndarray:
    """Returns the queries that see at least one key of a band, ``[T]``."""
    position = np.arange(num_queries)
    start = 0 if band.before is None else np.maximum(0, position - band.before)
    stop = num_keys if band.after is None else np.minimum(num_keys, position + band.after + 1)
    return np.broadcast_to(start < stop, position.shape)


def _padded(array: Array) -> Array:
    """Pads to full blocks and lanes with zeros, which change no product."""
    return jnp.pad(array, ((0, 0), (0, -array.shape[1] % LANES), (0, 0), (0, -array.shape[3] % LANES)))
