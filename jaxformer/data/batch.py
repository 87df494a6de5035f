"""Batches of sentence pairs as arrays, and of texts of similar length.

Padding is marked where a batch is made; later code reads only the masks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Generic

import jax
import numpy as np

from jaxformer.data.token_cache import Ragged
from jaxformer.functional.tokens import ArrayT, Tokens
from jaxformer.reprs import brief
from jaxformer.tokenizers.special_tokens import SpecialTokens

BatchShape = tuple[int, int, int]
"""Rows, source length, target length."""

Rows = Callable[[int], np.ndarray]
"""Maps the number of rows of a full batch to the sorted indices of the rows to make; rows beyond the batch are
empty."""

Sequences = Sequence[np.ndarray] | Ragged
"""Token sequences, without `bos` and `eos`."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch(Generic[ArrayT]):
    """B pairs, padded on the right: the source ends with `eos`; `labels` are `target` shifted by one position."""

    source: Tokens[ArrayT]  # int32 [B, S]
    target: Tokens[ArrayT]  # int32 [B, T], begins with bos
    labels: ArrayT  # int32 [B, T], ends with eos
    corpora: ArrayT | None = None  # int32 [B], the corpus of each row in a mixture; None for one corpus

    __repr__ = brief

    @staticmethod
    def from_tokens(
        sources: Sequences, targets: Sequences, shape: BatchShape, special: SpecialTokens
    ) -> Batch[np.ndarray]:
        """Pads pairs of token ids, without `bos` and `eos`, to ``(rows, S, T)``; the remaining rows stay empty.

        Raises:
          ValueError: a sentence with its `eos` is longer than the shape, or there are more pairs than rows.
        """
        num_rows, source_length, target_length = shape
        if len(sources) != len(targets) or len(sources) > num_rows:
            raise ValueError(f"{len(sources)} sources and {len(targets)} targets do not fit {num_rows} rows")
        source = pad(sources, (num_rows, source_length), special)
        return Batch(source, *shifted(targets, (num_rows, target_length), special))


def by_length(lengths: Sequence[float], most: int, *, usual: float = 256) -> Iterator[list[int]]:
    """Yields the indices of texts in batches of at most `most`, shortest first, so that none gets much padding.

    The longest text of a batch is at most 4 times as long as the shortest, or as 32 tokens. Texts longer than `usual`
    are in batches of a quarter of the rows, for each factor of 4, so that they need about as much memory.

    >>> list(by_length([5, 900, 7, 130, 6], 2))
    [[0, 4], [2], [3], [1]]
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)  # stable, so the result is reproducible
    batch: list[int] = []
    for index in order:
        length = lengths[index]
        if batch and (length > 4 * max(lengths[batch[0]], 32) or len(batch) >= _rows_of(length, most, usual)):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _rows_of(length: float, most: int, usual: float) -> int:
    """Returns the largest number of texts of this length in a batch."""
    while length > usual and most > 1:
        length, most = length / 4, most // 4
    return max(1, most)


def few_rows(number: int, most: int) -> int:
    """Returns the rows of a batch of `number` texts: `most`, or a quarter as often as they fit, for few programs.

    >>> few_rows(17, 64), few_rows(16, 64), few_rows(1, 64)
    (64, 16, 1)
    """
    while most // 4 >= number:
        most //= 4
    return most


def shifted(
    sequences: Sequences, shape: tuple[int, int], special: SpecialTokens
) -> tuple[Tokens[np.ndarray], np.ndarray]:
    """Returns the inputs and the labels for teacher forcing: see `Batch` and `pad`."""
    padded = pad(sequences, shape, special)
    labels, valid = padded.ids, padded.valid
    assert valid is not None
    ids = np.full_like(labels, special.pad)
    ids[:, 1:] = np.where(valid[:, 1:], labels[:, :-1], special.pad)
    ids[valid[:, 0], 0] = special.bos
    return dataclasses.replace(padded, ids=ids), labels


def pad(sequences: Sequences, shape: tuple[int, int], special: SpecialTokens) -> Tokens[np.ndarray]:
    """Returns rows of tokens, each followed by `eos` and padded."""
    ragged = Ragged.join(sequences)
    rows, lengths = np.arange(len(ragged)), ragged.lengths
    if lengths.max(initial=-1) >= shape[1]:
        raise ValueError(f"a sequence of {lengths.max() + 1} tokens, eos included, does not fit length {shape[1]}")
    valid = np.zeros(shape, bool)
    valid[rows] = np.arange(shape[1]) < lengths[:, None]
    tokens = np.full(shape, special.pad, np.int32)
    tokens[valid] = ragged.tokens
    tokens[rows, lengths], valid[rows, lengths] = special.eos, True
    return Tokens(tokens, valid, right_padded=True)
