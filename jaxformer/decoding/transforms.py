"""Transforms of the scores of the next token: masks, filters and temperatures, which can be chained.

A transform maps scores ``[B, K, V]`` and a history to scores. Its attribute `normalized` tells where it is applied.
False: to the step's scores, before log-softmax, so that the probabilities of a step still add up to 1, as in
CTranslate2. True: to log-probabilities, after log-softmax, so that the probability of removed tokens is lost, as in
Hugging Face. Any callable of scores and history is a transform; a plain function has no such attribute, and counts as
False. The transforms of this module are frozen dataclasses and pytrees.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxformer.decoding.api import check_scores, ends_of, top_scores
from jaxformer.errors import ConfigError
from jaxformer.reprs import brief

Scores: TypeAlias = Float[Array, "B K V"]

ForcedEnd: TypeAlias = Literal["scored", "free", "never"]
"""The log-probability of an `eos` forced at the length limit: the model's ("scored") or 0 ("free"); "never" forces
none.

An `eos` that a transform has removed is forced too. With "scored" it has the lowest finite log-probability, so that a
beam prefers every other hypothesis.
"""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class History:
    """The sequences so far, of K hypotheses for each of B rows.

    `rows` holds the index of each row in the full batch. Arrays with one entry per row of the full batch are
    indexed by it, because a search may drop finished rows.
    """

    tokens: jax.Array  # int32 [B, K, T]: prefix included, bos not; only the first `lengths` count
    lengths: jax.Array  # int32 [B, K]
    rows: jax.Array  # int32 [B]

    __repr__ = brief


class Transform(Protocol):
    """A function of scores ``[B, K, V]`` and a `History` that returns scores of this shape.

    It takes log-probabilities if it has an attribute `normalized` that is True, otherwise the scores of the step.
    """

    def __call__(self, scores: jax.Array, history: History, /) -> jax.Array: ...


def is_normalized(transform: Transform) -> bool:
    """Returns True if a transform takes log-probabilities.

    >>> is_normalized(forbid([0])), is_normalized(lambda scores, history: 2 * scores)
    (True, False)
    """
    return getattr(transform, "normalized", False)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Chain:
    """The log-probabilities of next tokens after several transforms (see `chain`), which is a transform of scores.

    Raises:
      ValueError: a step returned something other than scores ``[B, K, V]``, such as ``[B, V]``, or a transform returned
        another shape than it was given.
    """

    transforms: tuple[Transform, ...]
    normalized = False

    def __call__(self, scores: Scores, history: History) -> Scores:
        expected, got = history.lengths.shape, getattr(scores, "shape", type(scores).__name__)
        if len(got) != 3 or got[:2] != expected:
            raise ValueError(f"a step must return (scores, state), scores [B, K, V] with B, K = {expected}; got {got}")
        scores = scores.astype(jnp.float32)
        for transform in (x for x in self.transforms if not is_normalized(x)):
            scores = _applied(transform, scores, history)
        total = jax.nn.logsumexp(scores, axis=-1, keepdims=True)
        scores = scores - jnp.where(total == -jnp.inf, 0.0, total)  # if no token is left, none has a probability
        for transform in filter(is_normalized, self.transforms):
            scores = _applied(transform, scores, history)
        return scores


def _applied(transform: Transform, scores: Scores, history: History) -> Scores:
    return check_scores("a transform of scores", transform(scores, history), scores.shape)


Transforms: TypeAlias = Transform | Chain | Sequence[Transform]
"""The `transforms` of a search: several in order, or one."""


def as_transforms(transforms: Transforms) -> tuple[Transform, ...]:
    """Returns a tuple of transforms from a sequence of them, a chain, or a single one."""
    if isinstance(transforms, Chain):
        return transforms.transforms
    return (transforms,) if callable(transforms) else tuple(transforms)


def chain(*transforms: Transform) -> Chain:
    """Returns the function from scores and history to float32 log-probabilities that a search applies at each step.

    Transforms that are not `normalized` come first, in the given order; then log-softmax; then the normalized ones.

    >>> import jax.numpy as jnp
    >>> history = History(jnp.zeros((1, 1, 1), jnp.int32), jnp.zeros((1, 1), jnp.int32), jnp.zeros(1, jnp.int32))
    >>> scores = jnp.log(jnp.array([[[0.5, 0.25, 0.25]]]))
    >>> jnp.exp(chain(forbid([2], normalized=True))(scores, history)).round(3).tolist()
    [[[0.5, 0.25, 0.0]]]
    >>> jnp.exp(chain(forbid([0], normalized=False))(scores, history)).round(3).tolist()
    [[[0.0, 0.5, 0.5]]]
    """
    return Chain(transforms)


def for_sampling(transforms: Transforms) -> tuple[Transform, ...]:
    """Returns transforms as `sample` applies them: first the `normalized` ones, then the others, then softmax.

    A repetition penalty, which depends on the sign of logits, comes before all of them. In whatever order the
    transforms are given, a filter such as `top_k` chooses among the tokens that the rules allow, and a sampled token
    has its log-probability in the distribution it was drawn from, as in Hugging Face.

    >>> import jax.numpy as jnp
    >>> history = History(jnp.zeros((1, 1, 1), jnp.int32), jnp.zeros((1, 1), jnp.int32), jnp.zeros(1, jnp.int32))
    >>> scores, given = jnp.log(jnp.array([[[0.5, 0.375, 0.125]]])), (top_k(1), forbid([0]))
    >>> jnp.exp(chain(*given)(scores, history)).round(3).tolist()
    [[[0.0, 0.0, 0.0]]]
    >>> jnp.exp(chain(*for_sampling(given))(scores, history)).round(3).tolist()
    [[[0.0, 1.0, 0.0]]]
    """
    of_logits = lambda transform: getattr(transform, "is_of_logits", False) and not is_normalized(transform)
    ordered = sorted(as_transforms(transforms), key=of_logits, reverse=True)
    is_rule = lambda transform: is_normalized(transform) or of_logits(transform)
    rules, others = (tuple(x for x in ordered if is_rule(x) is kept) for kept in (True, False))
    return (Chain(rules), *others) if rules else others


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Temperature:
    value: float | jax.Array
    normalized = False

    def __call__(self, scores: Scores, history: History) -> Scores:
        # Scores are relative to the highest, which becomes 0: large quotients could round to equal values or
        # overflow. Outside the bounds, the dtype may round the value or its reciprocal to 0.
        top = scores.max(-1, keepdims=True)
        top = jnp.where(jnp.isfinite(top), top, 0)
        smallest = float(jnp.finfo(scores.dtype).tiny)
        return (scores - top) / jnp.clip(self.value, smallest, 1 / smallest)


def temperature(value: float) -> Transform:
    """Divides the scores by `value`: below 1 sharpens the distribution, above 1 flattens it.

    The highest score of each hypothesis is first subtracted, which changes no probability. The smallest values leave
    only the most probable token.

    Raises:
      ConfigError: `value` is not positive and finite.

    >>> import jax.numpy as jnp
    >>> temperature(0.5)(jnp.array([[[1.0, 3.0]]]), None).tolist()
    [[[-4.0, 0.0]]]
    """
    if not 0 < value < float("inf"):
        raise ConfigError(f"temperature must be positive and finite, got {value}")
    return _Temperature(value)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _TopK:
    count: int = dataclasses.field(metadata={"static": True})
    normalized = False

    def __call__(self, scores: Scores, history: History) -> Scores:
        lowest = top_scores(scores, min(self.count, scores.shape[-1]))[0][..., -1:]
        return jnp.where(scores < lowest, -jnp.inf, scores)


def top_k(count: int) -> Transform:
    """Keeps the `count` highest scores, and any that tie with the lowest of them (Fan et al. 2018).

    Raises:
      ConfigError: `count` is below 1.

    >>> import jax.numpy as jnp
    >>> top_k(2)(jnp.array([[[1.0, 3.0, 2.0]]]), None).tolist()
    [[[-inf, 3.0, 2.0]]]
    """
    if count < 1:
        raise ConfigError(f"top_k must be at least 1, got {count}")
    return _TopK(count)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _TopP:
    mass: float | jax.Array
    normalized = False

    def __call__(self, scores: Scores, history: History) -> Scores:
        ordered = jnp.sort(scores, axis=-1, descending=True)
        probs = jax.nn.softmax(ordered, axis=-1)
        above = jnp.cumsum(probs, axis=-1) - probs  # the mass of higher-ranked tokens; rounded, so 1 is special
        kept = (above < self.mass) | (jnp.asarray(self.mass) >= 1)
        lowest = jnp.where(kept, ordered, jnp.inf).min(-1, keepdims=True)
        return jnp.where(scores < lowest, -jnp.inf, scores)


def top_p(mass: float) -> Transform:
    """Keeps the smallest set of most probable tokens whose mass is at least `mass`, and ties with the last of them.

    Nucleus sampling: Holtzman et al. 2020, "The curious case of neural text degeneration".

    Raises:
      ConfigError: `mass` is not in (0, 1].

    >>> import jax.numpy as jnp
    >>> jnp.exp(top_p(0.6)(jnp.log(jnp.array([[[0.5, 0.2, 0.3]]])), None)).round(3).tolist()
    [[[0.5, 0.0, 0.30000001192092896]]]
    """
    if not 0 < mass <= 1:
        raise ConfigError(f"top_p must be in (0, 1], got {mass}")
    return _TopP(mass)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _MinP:
    ratio: float | jax.Array
    normalized = False

    def __call__(self, scores: Scores, history: History) -> Scores:
        lowest = scores.max(-1, keepdims=True) + jnp.log(self.ratio)
        return jnp.where(scores < lowest, -jnp.inf, scores)


def min_p(ratio: float) -> Transform:
    """Keeps the tokens that are at least `ratio` times as probable as the most probable one (Nguyen et al. 2024).

    Raises:
      ConfigError: `ratio` is not in [0, 1].

    >>> import jax.numpy as jnp
    >>> jnp.exp(min_p(0.5)(jnp.log(jnp.array([[[0.5, 0.2, 0.3]]])), None)).round(3).tolist()
    [[[0.5, 0.0, 0.30000001192092896]]]
    """
    if not 0 <= ratio <= 1:
        raise ConfigError(f"min_p must be in [0, 1], got {ratio}")
    return _MinP(ratio)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Forbid:
    """See `forbid`."""

    tokens: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    normalized: bool = dataclasses.field(metadata={"static": True})

    def __call__(self, scores: Scores, history: History) -> Scores:
        mask = np.isin(np.arange(scores.shape[-1]), self.tokens)
        return jnp.where(mask[None, None], -jnp.inf, scores)


def forbid(tokens: Sequence[int], *, normalized: bool = True) -> Transform:
    """Forbids `tokens`: they are never chosen.

    Args:
      tokens: ids; static.
      normalized: True if their probability is lost, as with Hugging Face's `bad_words_ids`; False if the other tokens
        share it, as with CTranslate2's `suppress_sequences`.

    Raises:
      ConfigError: an id is negative.

    >>> import jax.numpy as jnp
    >>> forbid([0, 2])(jnp.array([[[-1.0, -3.0, -2.0]]]), None).tolist()
    [[[-inf, -3.0, -inf]]]
    """
    if any(token < 0 for token in tokens):
        raise ConfigError(f"forbidden tokens must not be negative, got {sorted(tokens)}")
    return Forbid(tuple(tokens), normalized)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _MinLength:
    lengths: int | jax.Array
    ends: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    normalized: bool = dataclasses.field(metadata={"static": True})

    def __call__(self, scores: Scores, history: History) -> Scores:
        early = history.lengths + 1 < _per_row(self.lengths, history)
        return jnp.where(early[..., None] & _is_token(self.ends, scores), -jnp.inf, scores)


def min_length(lengths: int | Int[Array, " B"], *, eos: int | tuple[int, ...], normalized: bool = True) -> Transform:
    """Forbids `eos` in a sequence that would then have fewer than `lengths` tokens, prefix and `eos` included.

    If a `bos` precedes the tokens, Hugging Face's ``min_length=n``, which counts it, is n here. For a prompt without
    `bos` it is n + 1, and so are Hugging Face's ``min_new_tokens=n`` and, with ``normalized=False``, CTranslate2's
    ``min_decoding_length=n``. If `max_lengths` is lower, `eos` is still forced there: see `ForcedEnd`.

    Args:
      lengths: one number for all rows, or one for each.
      normalized: see `forbid`.

    >>> import jax.numpy as jnp
    >>> history = History(jnp.zeros((1, 2, 3), jnp.int32), jnp.array([[1, 2]]), jnp.arange(1))
    >>> min_length(3, eos=0)(jnp.array([[[-1.0, -3.0], [-1.0, -3.0]]]), history).tolist()
    [[[-inf, -3.0], [-1.0, -3.0]]]
    """
    return _MinLength(lengths, ends_of(eos), normalized)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ForceEnd:
    """Allows only `eos` as the last token that fits in `max_lengths`."""

    max_lengths: jax.Array  # int32 [B]
    eos: int | tuple[int, ...] = dataclasses.field(metadata={"static": True})
    free: bool = dataclasses.field(default=False, metadata={"static": True})
    """True if a forced `eos` has log-probability 0, as in Hugging Face; False if it keeps the model's."""

    __repr__ = brief
    normalized = True

    def __call__(self, scores: Scores, history: History) -> Scores:
        last = history.lengths + 1 >= _per_row(self.max_lengths, history)
        is_eos = _is_token(self.eos, scores)
        scored = jnp.maximum(scores, jnp.finfo(scores.dtype).min)  # a row of only -inf would make token 0 the best
        forced = jnp.where(is_eos, 0.0 if self.free else scored, -jnp.inf)
        return jnp.where(last[..., None], forced, scores)


def _per_row(value: int | jax.Array, history: History) -> jax.Array:
    """Returns one number, or one per row of the full batch, as ``[1, 1]`` or ``[B, 1]``."""
    value = jnp.asarray(value)
    return value[None, None] if value.ndim == 0 else of_rows(value, history)[:, None]


def of_rows(values: jax.Array, history: History) -> jax.Array:
    """Selects the values of the rows of a history from those of the full batch.

    Raises:
      ValueError: there are fewer values than rows; without this check, the last one would stand for those that lack.
    """
    num_values, rows = values.shape[0], history.rows.shape[0]
    if isinstance(num_values, int) and isinstance(rows, int) and num_values < rows:  # symbolic sizes cannot be compared
        raise ValueError(f"a transform has values for {num_values} rows, but the batch has {rows}")
    return values[history.rows]


def _is_token(tokens: int | tuple[int, ...], scores: Scores) -> np.ndarray:
    return np.isin(np.arange(scores.shape[-1]), tokens)[None, None]
