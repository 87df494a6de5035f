"""Transforms that depend on the tokens so far or on a list: against repetitions, forbidden sequences, shortlists."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jaxformer.decoding.transforms import History, Scores, Transform, of_rows
from jaxformer.errors import ConfigError
from jaxformer.reprs import brief


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _NoRepeat:
    size: int = dataclasses.field(metadata={"static": True})
    normalized: bool = dataclasses.field(metadata={"static": True})

    def __call__(self, scores: Scores, history: History) -> Scores:
        length, past = history.tokens.shape[2], self.size - 1
        if length < self.size:
            return scores
        num_grams = length - past  # n-gram i is tokens[i : i + n]; its last token is banned after the others
        repeats = jnp.arange(num_grams)[None, None] + past < history.lengths[..., None]
        for i in range(past):
            index = jnp.maximum(history.lengths - past + i, 0)
            now = jnp.take_along_axis(history.tokens, jnp.minimum(index, length - 1)[..., None], axis=-1)
            repeats &= history.tokens[..., i : i + num_grams] == now
        return _banned(scores, history.tokens[..., past:], repeats)


def no_repeat_ngram(size: int, *, normalized: bool = True) -> Transform:
    """Forbids every token that would repeat an n-gram of `size` tokens of the sequence (Paulus et al. 2018).

    The tokens of a prefix count; `bos` does not.

    Args:
      normalized: see `forbid`; True as in Hugging Face's `no_repeat_ngram_size`, False as in CTranslate2's.

    Raises:
      ConfigError: `size` is below 1.

    >>> import jax.numpy as jnp
    >>> history = History(jnp.array([[[3, 1, 2, 3, 0]]]), jnp.array([[4]]), jnp.arange(1))
    >>> no_repeat_ngram(2)(jnp.zeros((1, 1, 4)), history).tolist()
    [[[0.0, -inf, 0.0, 0.0]]]
    """
    if size < 1:
        raise ConfigError(f"no_repeat_ngram must be at least 1, got {size}")
    return _NoRepeat(size, normalized)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _RepetitionPenalty:
    value: float = dataclasses.field(metadata={"static": True})
    before: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    normalized: bool = dataclasses.field(metadata={"static": True})
    is_of_logits = True

    def __call__(self, scores: Scores, history: History) -> Scores:
        vocab_size, tokens = scores.shape[-1], history.tokens
        counts = jnp.arange(tokens.shape[2])[None, None] < history.lengths[..., None]
        rows, columns = jnp.arange(scores.shape[0])[:, None, None], jnp.arange(scores.shape[1])[None, :, None]
        seen = jnp.broadcast_to(np.isin(np.arange(vocab_size), self.before), scores.shape)
        seen = seen.at[rows, columns, jnp.where(counts, tokens, vocab_size)].set(True, mode="drop")
        return jnp.where(seen, jnp.where(scores < 0, scores * self.value, scores / self.value), scores)


def repetition_penalty(value: float, *, before: Sequence[int] = (), normalized: bool = False) -> Transform:
    """Divides the scores of the tokens of the sequence by `value` if they are positive, and else multiplies them by it.

    Keskar et al. 2019, "CTRL", with the negative scores as in Hugging Face. The tokens of a prefix count.

    Args:
      value: above 1 for fewer repetitions; static.
      before: the ids of tokens before the sequence that count too, such as `bos` in Hugging Face.
      normalized: False to change the scores of the step, as Hugging Face does in greedy search and sampling; True to
        change log-probabilities, as it does in beam search.

    Raises:
      ConfigError: `value` is not positive and finite.

    >>> import jax.numpy as jnp
    >>> history = History(jnp.array([[[1, 2, 0]]]), jnp.array([[2]]), jnp.arange(1))
    >>> repetition_penalty(2.0)(jnp.array([[[3.0, 3.0, -3.0, -3.0]]]), history).tolist()
    [[[3.0, 1.5, -6.0, -3.0]]]
    """
    if not 0 < value < math.inf:
        raise ConfigError(f"repetition_penalty must be above 0 and finite, got {value}")
    return _RepetitionPenalty(value, tuple(before), normalized)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _ForbidSequences:
    heads: jax.Array  # int32 [W, P]: all tokens of each sequence but the last, preceded by -1
    last: jax.Array  # int32 [W]
    normalized: bool = dataclasses.field(metadata={"static": True})

    __repr__ = brief

    def __call__(self, scores: Scores, history: History) -> Scores:
        number, past = self.heads.shape
        index = history.lengths[..., None] - past + jnp.arange(past)[None, None]
        places = jnp.clip(index, 0, history.tokens.shape[2] - 1)
        recent = jnp.take_along_axis(history.tokens, places, axis=-1)
        recent = jnp.where(index >= 0, recent, -2)  # positions before the first token match nothing
        heads = self.heads[None, None]
        completes = ((recent[:, :, None] == heads) | (heads == -1)).all(-1)
        return _banned(scores, jnp.broadcast_to(self.last[None, None], (*recent.shape[:2], number)), completes)


def forbid_sequences(sequences: Sequence[Sequence[int]], *, normalized: bool = True) -> Transform:
    """Forbids sequences, such as the tokens of a word, by banning the last token of each after its other tokens.

    A sequence of one token is forbidden everywhere. The tokens of a prefix count; `bos` does not.

    Args:
      normalized: see `forbid`; True as Hugging Face's `bad_words_ids`, False as CTranslate2's `suppress_sequences`.

    Raises:
      ConfigError: there are no sequences, one is empty, or an id is negative.

    >>> import jax.numpy as jnp
    >>> history = History(jnp.array([[[3, 1, 0]]]), jnp.array([[2]]), jnp.arange(1))
    >>> forbid_sequences([[1, 2], [2, 3], [0]])(jnp.zeros((1, 1, 4)), history).tolist()
    [[[-inf, 0.0, -inf, 0.0]]]
    """
    if not sequences or not all(len(sequence) for sequence in sequences):
        raise ConfigError("forbidden sequences must have at least one token each, and there must be one; got none")
    if min(min(sequence) for sequence in sequences) < 0:
        raise ConfigError(f"forbidden tokens must not be negative, got {[list(sequence) for sequence in sequences]}")
    past = max(len(sequence) for sequence in sequences) - 1
    heads = np.full((len(sequences), past), -1, np.int32)
    for row, sequence in zip(heads, sequences, strict=True):
        row[past - len(sequence) + 1 :] = sequence[:-1]
    last = np.asarray([sequence[-1] for sequence in sequences], np.int32)
    return _ForbidSequences(jnp.asarray(heads), jnp.asarray(last), normalized)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Shortlist:
    tokens: jax.Array  # int32 [B | 1, M]
    normalized: bool = dataclasses.field(metadata={"static": True})

    __repr__ = brief

    def __call__(self, scores: Scores, history: History) -> Scores:
        tokens = self.tokens if self.tokens.shape[0] == 1 else of_rows(self.tokens, history)  # the size may be symbolic
        vocab_size = scores.shape[-1]
        places = jnp.where(tokens < 0, vocab_size, tokens)  # negative indices would count from the end
        rows = jnp.arange(tokens.shape[0])[:, None]
        allowed = jnp.zeros((tokens.shape[0], vocab_size), bool).at[rows, places].set(True, mode="drop")
        return jnp.where(allowed[:, None], scores, -jnp.inf)


def shortlist(tokens: Int[Array, "*B M"], *, normalized: bool = False) -> Transform:
    """Allows only the tokens of a list, such as the likely translations of each source sentence's words.

    Args:
      tokens: ids ``[M]`` for all rows, or ``[B, M]``, a list for each; negative ids are padding. Include `eos`.
      normalized: see `forbid`; by default the probability of the other tokens is shared among the listed ones, as in
        the shortlists of Marian and CTranslate2.

    >>> import jax.numpy as jnp
    >>> history = History(jnp.zeros((1, 1, 1), jnp.int32), jnp.zeros((1, 1), jnp.int32), jnp.arange(1))
    >>> shortlist(jnp.array([2, 0]))(jnp.zeros((1, 1, 4)), history).tolist()
    [[[0.0, -inf, 0.0, -inf]]]
    """
    return _Shortlist(jnp.atleast_2d(jnp.asarray(tokens, jnp.int32)), normalized)


def _banned(scores: Scores, tokens: Int[Array, "B K M"], where: Bool[Array, "B K M"]) -> Scores:
    """Returns the scores, with minus infinity at those `tokens` of each hypothesis where `where` is True."""
    rows = jnp.arange(scores.shape[0])[:, None, None]
    hypotheses = jnp.arange(scores.shape[1])[None, :, None]
    bounds = jnp.where(where, -jnp.inf, jnp.inf).astype(scores.dtype)
    return scores.at[rows, hypotheses, tokens].min(bounds, mode="drop")
