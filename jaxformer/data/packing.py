"""Short texts packed into rows of one length for an encoder: texts that share a row do not attend to each other."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Generic

import jax
import numpy as np

from jaxformer.config import at_least
from jaxformer.data.batch import Rows
from jaxformer.data.token_cache import Ragged, cached_sequences
from jaxformer.digests import short_digest
from jaxformer.errors import DataError
from jaxformer.functional.tokens import ArrayT, Tokens
from jaxformer.reprs import brief
from jaxformer.tokenizers.base import Tokenizer, cache_key
from jaxformer.tokenizers.special_tokens import SpecialTokens


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PackedBatch(Generic[ArrayT]):
    """B rows of T tokens. Each text is ``bos`` (the class token, [CLS]), its tokens, and ``eos`` ([SEP])."""

    tokens: Tokens[ArrayT]  # int32 [B, T]; segments are the indices of texts in their row, from 1, and 0 at padding
    special: SpecialTokens = dataclasses.field(metadata={"static": True})

    __repr__ = brief


@dataclasses.dataclass(frozen=True, eq=False)
class PackedTexts:
    """Batches of packed texts, a pure function of the seed and the step.

    A text of more than ``length - 2`` tokens is split into parts of at most this length. Texts are packed into rows in
    a random order given by `seed`, each into the last row if it still fits. The content of each row stays the same; the
    order of rows changes with each epoch if `shuffle` is True.

    >>> texts = Ragged(np.arange(10, 16), np.array([0, 3, 4, 6]))
    >>> packed = PackedTexts(texts, SpecialTokens(), length=8, batch_size=2, seed=0, shuffle=False)
    >>> tokens = packed.batch(0).tokens
    >>> tokens.ids.tolist()
    [[1, 14, 15, 2, 0, 0, 0, 0], [1, 10, 11, 12, 2, 1, 13, 2]]
    >>> tokens.segments[1].tolist(), tokens.positions[1].tolist()
    ([1, 1, 1, 1, 1, 2, 2, 2], [0, 1, 2, 3, 4, 0, 1, 2])

    Raises:
      ConfigError: `length` is less than 3, or `batch_size` less than 1.
      DataError: there is no token.
    """

    texts: Ragged
    special: SpecialTokens
    length: int
    batch_size: int
    seed: int
    shuffle: bool = True

    def __post_init__(self) -> None:
        at_least(3, self, "length")
        at_least(1, self, "batch_size")
        if len(self.texts.tokens) == 0:
            raise DataError("the text has no tokens")

    @functools.cached_property
    def parts(self) -> np.ndarray:
        """The start and the stop of each part of a text, ``int [parts, 2]``, in the order of packing."""
        lengths, most = self.texts.lengths, self.length - 2
        counts = -(-lengths // most)
        text = np.repeat(np.arange(len(lengths)), counts)
        starts = self.texts.offsets[text] + _ranges(counts) * most
        stops = np.minimum(starts + most, self.texts.offsets[text + 1])
        return np.stack([starts, stops], 1)[np.random.default_rng(self.seed).permutation(len(text))]

    @functools.cached_property
    def rows(self) -> np.ndarray:
        """The first part of each row and, at the end, the number of parts."""
        firsts, used = [0], 0
        for number, size in enumerate((self.parts[:, 1] - self.parts[:, 0] + 2).tolist()):
            if used + size > self.length:
                firsts.append(number)
                used = 0
            used += size
        return np.array([*firsts, len(self.parts)])

    @property
    def num_rows(self) -> int:
        """The number of rows of all texts."""
        return len(self.rows) - 1

    @property
    def fill(self) -> float:
        """The fraction of the positions of all rows that hold a token."""
        return float((self.parts[:, 1] - self.parts[:, 0] + 2).sum() / (self.num_rows * self.length))

    @property
    def num_cut(self) -> int:
        """The number of texts that were split into parts."""
        return int((self.texts.lengths > self.length - 2).sum())

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches that hold each row once; the last one may have empty rows."""
        return -(-self.num_rows // self.batch_size)

    def batch(self, step: int, *, rows: Rows | None = None) -> PackedBatch[np.ndarray]:
        """Makes batch number `step`, for any ``step >= 0``; `rows` selects the rows to make, by default all."""
        epoch, position = divmod(step, self.steps_per_epoch)
        order = self._order(epoch * self.shuffle)[position * self.batch_size :][: self.batch_size]
        indices = (rows or np.arange)(self.batch_size)
        tokens = np.full((len(indices), self.length), self.special.pad, np.int32)
        segments, positions = np.zeros_like(tokens), np.zeros_like(tokens)
        filled = np.flatnonzero(indices < len(order))
        parts = Ragged(self.parts, self.rows).take(order[indices[filled]])
        starts, stops = parts.tokens.T
        lengths = stops - starts + 2  # with class token and end
        position, number = _ranges(lengths), np.repeat(_ranges(parts.lengths), lengths)
        ends = np.concatenate([[0], np.cumsum(lengths)])[parts.offsets]
        real = np.zeros(tokens.shape, bool)
        real[filled] = np.arange(self.length) < np.diff(ends)[:, None]
        inside = (position > 0) & (position < np.repeat(lengths - 1, lengths))
        values = np.where(position > 0, self.special.eos, self.special.bos).astype(np.int32)
        values[inside] = self.texts.tokens[(np.repeat(starts - 1, lengths) + position)[inside]]
        tokens[real], segments[real], positions[real] = values, number + 1, position
        return PackedBatch(Tokens(tokens, real, positions, segments, right_padded=True), self.special)

    @functools.lru_cache(maxsize=2)  # noqa: B019 - two epochs of indices, and they live as long as a run
    def _order(self, epoch: int) -> np.ndarray:
        if not self.shuffle:
            return np.arange(self.num_rows)
        return np.random.default_rng((self.seed, epoch)).permutation(self.num_rows)


def _ranges(lengths: np.ndarray) -> np.ndarray:
    """Returns 0, 1, ..., length - 1 for each length, concatenated."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def tokenize_lines(lines: Sequence[str], tokenizer: Tokenizer, cache: str | os.PathLike[str] | None) -> Ragged:
    """Tokenizes lines, or reads their tokens from `cache` if an earlier call saved them; see `cached_sequences`."""
    digest = short_digest(f"{line}\n" for line in lines)
    arrays = cached_sequences(
        cache,
        f"lines-{digest}-{cache_key(tokenizer)}",
        ["tokens"],
        lambda _: [tokenizer.encode(lines)],
        num_sequences=len(lines),
        vocab_size=tokenizer.vocab_size,
    )
    return arrays["tokens"]
