"""The integrity of checkpoints: checksums and digests, the shapes and dtypes of arrays, and reads that fail.

Checksums of arrays and digests of metadata detect every single flipped bit.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import json
import pathlib
import sys
import time
import types
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.errors import JaxformerError
from jaxformer.functional.dropout import mix32
from jaxformer.training.state import Tree

Json = dict[str, Any]
"""A JSON object."""

Kind = tuple[tuple[int, ...], str] | types.EllipsisType
"""The shape and the dtype of an array, or ``...`` for one that is left out."""


class CheckpointError(JaxformerError, RuntimeError):
    """There is no usable checkpoint, or one cannot be written."""


class OtherModelError(CheckpointError):
    """An intact checkpoint holds other arrays, shapes or dtypes than the requested ones, or belongs to another run."""

    exit_code = 2


def shapes_and_dtypes(tree: Tree) -> dict[str, Kind]:
    """Returns the shape and the dtype of each leaf by its path; a leaf ``...`` stays as it is.

    >>> shapes_and_dtypes({"w": [np.zeros((2, 3), np.float32), ...]})
    {'w/0': ((2, 3), 'float32'), 'w/1': Ellipsis}
    """
    of_leaf = lambda leaf: leaf if leaf is ... else (tuple(leaf.shape), np.dtype(leaf.dtype).name)
    # Attributes, keys and indices look the same, because a save does not distinguish them.
    name = functools.partial(jax.tree_util.keystr, simple=True, separator="/")
    return {name(path): of_leaf(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def check_shapes_and_dtypes(saved: Mapping[str, Kind], target: Mapping[str, Kind], field: str = "") -> None:
    """Checks paths, shapes and dtypes: Orbax would cast a dtype without a warning.

    Raises:
      OtherModelError: they differ; the message names one path that does, outside of the optimizer's state if possible.
    """
    paths = sorted(path for path in saved.keys() | target.keys() if not field or path.split("/")[0] == field)
    pairs = {path: (saved.get(path, "missing"), target.get(path, "missing")) for path in paths}
    wrong = [path for path, (was, now) in pairs.items() if was != now and not (now is ... and path in saved)]
    if not wrong:
        return
    of_model = [path for path in wrong if path.split("/")[0] != "optimizer"]
    path = (of_model or wrong)[0]
    was, now = pairs[path]
    if of_model:
        raise OtherModelError(f"it belongs to another model: {path} is {was} in the checkpoint and {now} in this model")
    raise OtherModelError(
        f"it has the state of another optimizer: {path} is {was} in the checkpoint and {now} in this optimizer; "
        "`restore_params` reads the parameters alone"
    )


def checksums(tree: Tree) -> dict[str, jax.Array]:
    """Returns a 64-bit checksum of each leaf, as two uint32: bits times hashes of their index, summed mod 2^32.

    The order of summation does not matter, so every mesh computes the same checksum. A single flipped bit always
    changes the sum, because the factors are odd. A leaf ``...`` has no checksum.

    >>> [value.shape for value in checksums({"w": jnp.ones((3, 2)), "left out": ...}).values()]
    [(2,)]
    """
    # One small program for each kind of leaf compiles much faster than one for the whole tree.
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): _checksum(leaf) for path, leaf in leaves if leaf is not ...}


def listed(sums: Mapping[str, jax.Array]) -> dict[str, list[int]]:
    """Returns checksums as lists of numbers, for JSON."""
    return {path: value.tolist() for path, value in jax.device_get(dict(sums)).items()}


@jax.jit
def _checksum(leaf: jax.Array) -> jax.Array:
    bits = _words(leaf)
    index, stride = jnp.zeros(bits.shape, jnp.uint32), 1
    for dim in reversed(range(bits.ndim)):  # a reshaped flat iota would be held in full by every device of a mesh
        index += jax.lax.broadcasted_iota(jnp.uint32, bits.shape, dim) * jnp.uint32(stride % 2**32)
        stride *= bits.shape[dim]
    lanes = [
        jnp.sum(bits * (mix32(index + jnp.uint32(salt)) | jnp.uint32(1)), dtype=jnp.uint32) for salt in (0, 0x51ED270B)
    ]
    return jnp.stack(lanes)


def _words(leaf: jax.Array) -> jax.Array:
    """Returns the leaf's bits, one uint32 for each real number, or two for numbers of 8 bytes."""
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        leaf = jnp.stack([leaf.real, leaf.imag])
    if leaf.dtype == bool:
        return leaf.astype(jnp.uint32)
    if leaf.dtype.itemsize == 8:
        return jax.lax.bitcast_convert_type(leaf, jnp.uint32)
    unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[leaf.dtype.itemsize]
    return jax.lax.bitcast_convert_type(leaf, unsigned).astype(jnp.uint32)


def signed(metadata: Mapping[str, object]) -> Json:
    """Returns metadata as it is after a round trip through JSON, with a digest of itself under ``"digest"``.

    >>> is_intact(signed({"step": 3})), is_intact(signed({"step": 3}) | {"step": 4})
    (True, False)
    """
    plain = json.loads(json.dumps(metadata))
    return {**plain, "digest": _digest(plain)}


def is_intact(metadata: Mapping[str, object]) -> bool:
    """Returns True if the digest of the metadata is correct or missing."""
    digest = metadata.get("digest")
    return digest is None or digest == _digest({name: value for name, value in metadata.items() if name != "digest"})


def _digest(metadata: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(metadata, sort_keys=True).encode()).hexdigest()


@contextlib.contextmanager
def silent_reads() -> Iterator[None]:
    """Keeps the interpreter from reporting the reads of Orbax that are in progress when another one fails.

    Orbax closes its event loop before they end, so each would be reported to `sys.unraisablehook`. All other reports go
    to the user's hook, as before and after.
    """
    previous_hook = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs, /) -> None:
        loop_closed = unraisable.object is None and str(unraisable.exc_value) == "Event loop is closed"
        if not loop_closed and not _is_read(unraisable.object):
            previous_hook(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = previous_hook


def wait_for_reads() -> None:
    """Waits until no read is in progress, at most five seconds; the exception of the failed one must be gone."""
    limit = time.monotonic() + 5.0
    while any(_is_read(thing) for thing in gc.get_objects()) and time.monotonic() < limit:
        time.sleep(0.01)
        gc.collect()


def _is_read(thing: object) -> bool:
    return isinstance(thing, types.CoroutineType) and "orbax" in pathlib.Path(thing.cr_code.co_filename).parts
