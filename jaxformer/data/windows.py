"""Windows of a long token stream: random ones to train a language model, and all of them in order to evaluate it."""

from __future__ import annotations

import dataclasses
import os
from typing import Generic

import jax
import numpy as np

from jaxformer.data.batch import ArrayT, Rows
from jaxformer.data.special_tokens import SpecialTokens
from jaxformer.data.text import Text
from jaxformer.data.token_cache import cached_sequences
from jaxformer.data.tokenizer import Tokenizer, cache_key
from jaxformer.errors import ConfigError, DataError


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TextBatch(Generic[ArrayT]):
    """B windows of T tokens; `labels` are the tokens that follow, one position later."""

    tokens: ArrayT  # int32 [B, T]
    labels: ArrayT  # int32 [B, T]
    valid: ArrayT  # Bool [B, T], False at padding


@dataclasses.dataclass(frozen=True)
class TokenStream:
    """A text as token ids, after one `bos`, so that each token of the text has a token before it.

    Attributes:
      tokens: integers ``[1 + number of tokens of the text]``.
    """

    tokens: np.ndarray
    special: SpecialTokens

    @property
    def num_labels(self) -> int:
        """The number of tokens of the text; each of them has a token before it to be predicted from."""
        return len(self.tokens) - 1

    @property
    def num_unknown(self) -> int:
        """The number of unknown tokens; 0 if the vocabulary can spell all text."""
        return int((self.tokens == self.special.unk).sum()) if self.special.has_unknown else 0


@dataclasses.dataclass(frozen=True)
class RandomWindows:
    """Training batches: windows that begin anywhere in the stream, a pure function of the seed and the step.

    >>> stream = TokenStream(np.arange(100), SpecialTokens())
    >>> batch = RandomWindows(stream, length=8, batch_size=4, seed=0).batch(3)
    >>> batch.tokens.shape, bool((batch.labels == batch.tokens + 1).all())
    ((4, 8), True)

    Raises:
      ConfigError: `length` or `batch_size` is less than 1.
      DataError: the text is shorter than a window.
    """

    stream: TokenStream
    length: int
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        _check_sizes(self.length, self.batch_size)
        if self.stream.num_labels < self.length:
            raise DataError(
                f"the text has {self.stream.num_labels:,} tokens, fewer than a window of {self.length:,}; "
                "give a longer text or a smaller length"
            )

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches that hold as many tokens as the text; random windows repeat some and miss others."""
        return -(-self.stream.num_labels // (self.batch_size * self.length))

    def batch(self, step: int, *, rows: Rows | None = None) -> TextBatch[np.ndarray]:
        """Makes batch number `step`, for any ``step >= 0``.

        Args:
          rows: the rows to make; all by default.
        """
        random = np.random.default_rng((self.seed, step))
        starts = random.integers(self.stream.num_labels - self.length + 1, size=self.batch_size)
        return _cut(self.stream, _rows_of(starts, rows), self.length)


@dataclasses.dataclass(frozen=True)
class OrderedWindows:
    """Evaluation batches: every token of the text is a label exactly once, in order.

    Windows do not overlap. The last one may be partial, and the last batch is filled up with empty rows; both are
    marked in `valid`.

    Raises:
      ConfigError: `length` or `batch_size` is less than 1.
      DataError: the text has no tokens.
    """

    stream: TokenStream
    length: int
    batch_size: int

    def __post_init__(self) -> None:
        _check_sizes(self.length, self.batch_size)
        if self.stream.num_labels < 1:
            raise DataError("the text to evaluate on has no tokens")

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in which every token is predicted once."""
        return -(-self.stream.num_labels // (self.batch_size * self.length))

    def batch(self, step: int, *, rows: Rows | None = None) -> TextBatch[np.ndarray]:
        """Makes batch number `step`, for ``0 <= step < steps_per_epoch``.

        Args:
          rows: the rows to make; all by default.
        """
        starts = (step * self.batch_size + np.arange(self.batch_size)) * self.length
        return _cut(self.stream, _rows_of(starts, rows), self.length)


def prepare_text(text: Text, tokenizer: Tokenizer, cache: str | os.PathLike[str] | None) -> TokenStream:
    """Tokenizes a text, or reads its tokens from `cache` if an earlier call saved them; see `cached_sequences`."""
    lines = text.lines() if tokenizer.by_line else [text.characters]
    arrays = cached_sequences(
        cache,
        f"text-{text.fingerprint}-{cache_key(tokenizer)}",
        ["tokens"],
        lambda _: [np.array([tokenizer.special.bos], np.int32), *tokenizer.encode(lines)],
        num_sequences=1 + len(lines),
        vocab_size=tokenizer.vocab_size,
    )
    return TokenStream(arrays["tokens"].tokens, tokenizer.special)


def _check_sizes(length: int, batch_size: int) -> None:
    for name, size in (("length", length), ("batch_size", batch_size)):
        if size < 1:
            raise ConfigError(f"{name} must be at least 1, got {size}")


def _rows_of(starts: np.ndarray, rows: Rows | None) -> np.ndarray:
    """Returns the starts of the rows to make; -1 for rows beyond the batch, which are empty."""
    if rows is None:
        return starts
    indices = rows(len(starts))
    return np.where(indices < len(starts), starts[np.minimum(indices, len(starts) - 1)], -1)


def _cut(stream: TokenStream, starts: np.ndarray, length: int) -> TextBatch[np.ndarray]:
    """Cuts windows of `length` tokens and their labels, with a mask of the positions inside the stream."""
    positions = starts[:, None] + np.arange(length)
    valid = (starts >= 0)[:, None] & (positions < stream.num_labels)
    positions = np.where(valid, positions, 0)
    tokens, labels = (
        np.where(valid, stream.tokens[positions + shift], stream.special.pad).astype(np.int32) for shift in (0, 1)
    )
    return TextBatch(tokens, labels, valid)
