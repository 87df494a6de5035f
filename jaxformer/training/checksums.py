"""Checksums of arrays and digests of metadata, which detect every single flipped bit in a checkpoint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.functional.dropout import mix32
from jaxformer.training.state import Tree

Json = dict[str, Any]
"""A JSON object."""


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
