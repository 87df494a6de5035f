"""A batch of sentence pairs as arrays.  Padding is decided here, once: nothing later compares tokens with PAD."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from jaxformer.data.tokenizer import BEGIN, END, PAD

Shape = tuple[int, int, int]
"""Rows, source length, target length."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """B pairs, padded on the right: the source ends with END; `labels` are `target` one place further."""

    source: jax.Array  # int32 [B, S]
    source_valid: jax.Array  # Bool [B, S], True where a token is real
    target: jax.Array  # int32 [B, T], begins with BEGIN
    labels: jax.Array  # int32 [B, T], ends with END
    target_valid: jax.Array  # Bool [B, T]

    @classmethod
    def from_tokens(cls, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray], shape: Shape) -> Batch:
        """Pads pairs of token ids, neither BEGIN nor END among them, to ``(rows, S, T)``; rows left over stay empty.

        Raises:
          ValueError: a sentence and its END are longer than the shape, or there are more pairs than rows.
        """
        rows, source_length, target_length = shape
        if len(sources) != len(targets) or len(sources) > rows:
            raise ValueError(f"{len(sources)} sources and {len(targets)} targets do not fit {rows} rows")
        source, source_valid = pad(sources, (rows, source_length))
        labels, target_valid = pad(targets, (rows, target_length))
        target = np.full_like(labels, PAD)
        target[:, 1:] = np.where(target_valid[:, 1:], labels[:, :-1], PAD)
        target[target_valid[:, 0], 0] = BEGIN
        return cls(source, source_valid, target, labels, target_valid)


def pad(sequences: Sequence[np.ndarray], shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of tokens, END appended to each, filled up with PAD; and where they are real."""
    lengths = np.array([len(ids) + 1 for ids in sequences] + [0] * (shape[0] - len(sequences)))
    if lengths.max(initial=0) > shape[1]:
        raise ValueError(f"a sequence of {lengths.max()} tokens, END included, does not fit length {shape[1]}")
    valid = np.arange(shape[1])[None] < lengths[:, None]
    tokens = np.full(shape, PAD, np.int32)
    if sequences:
        end = np.array([END], np.int32)
        tokens[valid] = np.concatenate([part for ids in sequences for part in (ids, end)])
    return tokens, valid
