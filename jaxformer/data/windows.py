"""Windows of a long token stream: random ones to train a language model, and all of them in order to evaluate it."""

from __future__ import annotations

import abc
import dataclasses
import os
from typing import Generic

import jax
import numpy as np

from jaxformer.config import at_least
from jaxformer.data.batch import Rows
from jaxformer.data.text import Text
from jaxformer.data.token_cache import cached_sequences
from jaxformer.errors import DataError
from jaxformer.functional.tokens import ArrayT, Tokens
from jaxformer.reprs import brief
from jaxformer.tokenizers.base import Tokenizer, cache_key
from jaxformer.tokenizers.special_tokens import SpecialTokens


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TextBatch(Generic[ArrayT]):
    """B windows of T tokens; `labels` are the tokens that follow, one position later."""

    tokens: Tokens[ArrayT]  # int32 [B, T]
    labels: ArrayT  # int32 [B, T]
    corpora: ArrayT | None = None  # int32 [B], the text of each row in a mixture; None for one text

    __repr__ = brief

    @staticmethod
    def row(length: int) -> TextBatch[np.ndarray]:
        """Returns a batch of one empty window."""
        ids = np.zeros((1, length), np.int32)
        return TextBatch(Tokens(ids, ids > 0, right_padded=True), ids)


@dataclasses.dataclass(frozen=True)
class TokenStream:
    """A text as token ids, after one `bos`, so that each token of the text has a token before it.

    Attributes:
      tokens: integers ``[1 + number of tokens of the text]``.
    """

    tokens: np.ndarray
    special: SpecialTokens

    __repr__ = brief

    @property
    def num_labels(self) -> int:
        """The number of tokens of the text; each of them has a token before it to be predicted from."""
        return len(self.tokens) - 1

    @property
    def num_unknown(self) -> int:
        """The number of unknown tokens; 0 if the vocabulary can spell all text."""
        return int((self.tokens == self.special.unk).sum()) if self.special.has_unknown else 0


@dataclasses.dataclass(frozen=True)
class _Windows(abc.ABC):
    stream: TokenStream
    length: int
    batch_size: int

    def __post_init__(self) -> None:
        at_least(1, self, "length", "batch_size")

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches that hold as many tokens as the text."""
        return -(-self.stream.num_labels // (self.batch_size * self.length))

    @abc.abstractmethod
    def _starts(self, step: int) -> np.ndarray:
        """Returns the positions in the stream at which the windows of a batch begin."""

    def batch(self, step: int, *, rows: Rows | None = None) -> TextBatch[np.ndarray]:
        """Makes batch number `step`, for any ``step >= 0``; `rows` selects the rows to make, by default all."""
        starts = self._starts(step)
        indices = (rows or np.arange)(self.batch_size)
        positions = starts[np.minimum(indices, self.batch_size - 1), None] + np.arange(self.length)
        valid = (indices < self.batch_size)[:, None] & (positions < self.stream.num_labels)
        positions = np.where(valid, positions, 0)
        ids, labels = (
            np.where(valid, self.stream.tokens[positions + shift], self.stream.special.pad).astype(np.int32)
            for shift in (0, 1)
        )
        # Windows are full or end with the text.
        return TextBatch(Tokens(ids, valid, right_padded=True), labels)


@dataclasses.dataclass(frozen=True)
class RandomWindows(_Windows):
    """Training batches: windows that begin anywhere in the stream, a pure function of the seed and the step.

    An epoch, of as many tokens as the text, repeats some and misses others.

    >>> stream = TokenStream(np.arange(100), SpecialTokens())
    >>> batch = RandomWindows(stream, length=8, batch_size=4, seed=0).batch(3)
    >>> batch.tokens.shape, bool((batch.labels == batch.tokens.ids + 1).all())
    ((4, 8), True)

    Raises:
      ConfigError: `length` or `batch_size` is less than 1.
      DataError: the text is shorter than a window.
    """

    seed: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stream.num_labels < self.length:
            raise DataError(
                f"the text has {self.stream.num_labels:,} tokens, fewer than a window of {self.length:,}; "
                "give a longer text or a smaller length"
            )

    def _starts(self, step: int) -> np.ndarray:
        random = np.random.default_rng((self.seed, step))
        return random.integers(self.stream.num_labels - self.length + 1, size=self.batch_size)


@dataclasses.dataclass(frozen=True)
class OrderedWindows(_Windows):
    """Evaluation batches: every token of the text is a label exactly once, in order, in `steps_per_epoch` batches.

    Windows do not overlap. The last one may be partial, and the last batch is filled up with empty rows; both are
    marked in `tokens.valid`.

    Raises:
      ConfigError: `length` or `batch_size` is less than 1.
      DataError: the text has no tokens.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stream.num_labels < 1:
            raise DataError("the text to evaluate on has no tokens")

    def _starts(self, step: int) -> np.ndarray:
        return (step * self.batch_size + np.arange(self.batch_size)) * self.length


def prepare_text(text: Text, tokenizer: Tokenizer, cache: str | os.PathLike[str] | None) -> TokenStream:
    """Tokenizes a text, or reads its tokens from `cache` if an earlier call saved them; see `cached_sequences`."""
    lines = text.lines() if tokenizer.by_line else [text.characters]
    arrays = cached_sequences(
        cache,
        f"text-{text.fingerprint}-{cache_key(tokenizer)}",
        ["tokens"],
        lambda _: [[np.array([tokenizer.special.bos], np.int32)], tokenizer.encode(lines)],
        num_sequences=1 + len(lines),
        vocab_size=tokenizer.vocab_size,
    )
    return TokenStream(arrays["tokens"].tokens, tokenizer.special)
