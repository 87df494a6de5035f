"""Resizing of token tables, whose number of rows differs between files and runs."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxformer.modules.pure import Params


def resized(table: jax.Array, size: int) -> jax.Array:
    """Returns the first `size` rows of a table, padded with zeros."""
    return jnp.pad(table[:size], [(0, max(0, size - len(table)))] + [(0, 0)] * (table.ndim - 1))


def with_rows(embeddings: Params, size: int) -> Params:
    """Returns embeddings whose table has `size` tokens."""
    return embeddings | {"tokens": {"table": resized(embeddings["tokens"]["table"], size)}}


def decoder_with_rows(decoder: Params, size: int) -> Params:
    """Returns a decoder whose table and output projection have `size` tokens."""
    result = decoder | {"embeddings": with_rows(decoder["embeddings"], size)}
    if "output" in decoder:
        result["output"] = {"kernel": resized(decoder["output"]["kernel"].T, size).T}
    return result
