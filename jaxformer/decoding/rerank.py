r"""Minimum Bayes risk reranking with chrF or BLEU, on the device: every candidate serves as a reference for the others.

Each candidate is a row of ids: of characters for chrF, of words for BLEU. Equal n-grams are found by sorting, not by
hashing, so different n-grams never collide.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxformer.decoding.api import Hypotheses, gather


def minimum_bayes_risk(utilities: Float[Array, "K M"], weights: Float[Array, " M"] | None = None) -> Float[Array, " K"]:
    r"""Returns each candidate's expected utility, :math:`\sum_m w_m u(h_k, r_m)`; the best has the highest.

    (Kumar and Byrne 2004; with samples from the model as references: Eikema and Aziz 2020.)

    Args:
      utilities: the utility of candidate k against reference m, from `chrf_utilities` or `bleu_utilities`, for example.
      weights: the probabilities of the references; equal by default.

    >>> import jax.numpy as jnp
    >>> minimum_bayes_risk(jnp.array([[1.0, 0.5], [0.0, 1.0]])).tolist()
    [0.75, 0.5]
    """
    return utilities.mean(1) if weights is None else utilities @ weights


def rerank(hypotheses: Hypotheses, scores: Float[Array, "B K"]) -> Hypotheses:
    """Returns the hypotheses with new scores, best first.

    Raises:
      ValueError: there is not one score for each hypothesis.

    >>> import jax.numpy as jnp
    >>> two = Hypotheses(jnp.array([[[5], [6]]]), jnp.ones((1, 2)), *jnp.zeros((2, 1, 2)), jnp.zeros((1, 2, 1)))
    >>> rerank(two, jnp.array([[0.25, 0.5]])).tokens.tolist()
    [[[6], [5]]]
    """
    if scores.shape != hypotheses.scores.shape:
        raise ValueError(f"scores must have the shape of the hypotheses, {hypotheses.scores.shape}, got {scores.shape}")
    scores, order = jax.lax.top_k(scores, scores.shape[1])
    return dataclasses.replace(gather(hypotheses, order), scores=scores)


def chrf_utilities(
    tokens: Int[Array, "K T"], lengths: Int[Array, " K"], *, order: int = 6, beta: float = 2.0
) -> Float[Array, "K K"]:
    """Returns the chrF of every candidate k against every candidate m as its reference (Popovic 2015), from 0 to 100.

    Args:
      tokens: the ids of each candidate's characters, without whitespace; those after `lengths` are ignored.
      order: the length of the longest character n-grams.
      beta: the weight of recall.

    >>> import jax.numpy as jnp
    >>> chrf_utilities(jnp.array([[1, 2, 3], [1, 2, 0]]), jnp.array([3, 2])).round(1).tolist()
    [[100.0, 87.5], [63.60000228881836, 100.0]]
    """
    matches, sizes = _statistics(tokens, lengths, order)  # [order, K, K] and [order, K]
    size, other = sizes[:, :, None], sizes[:, None]
    counted = (size > 0) & (other > 0)
    mean = lambda x: jnp.where(counted, x, 0.0).sum(0) / jnp.maximum(counted.sum(0), 1).astype(jnp.float32)
    precision, recall = mean(matches / jnp.maximum(size, 1)), mean(matches / jnp.maximum(other, 1))
    weight = jnp.float32(beta**2)
    divisor = weight * precision + recall
    return jnp.where(divisor > 0, 100 * (1 + weight) * precision * recall / jnp.where(divisor > 0, divisor, 1), 0.0)


def bleu_utilities(tokens: Int[Array, "K T"], lengths: Int[Array, " K"], *, order: int = 4) -> Float[Array, "K K"]:
    """Returns the sentence BLEU of every candidate k against every candidate m as its reference, from 0 to 100.

    N-gram orders that a candidate is too short for are left out; orders without a match are smoothed as by sacrebleu's
    "exp" (Chen and Cherry 2014, method 3).

    Args:
      tokens: the ids of each candidate's words; those after `lengths` are ignored.
      order: the length of the longest word n-grams.

    >>> import jax.numpy as jnp
    >>> bleu_utilities(jnp.array([[1, 2, 3], [1, 2, 0]]), jnp.array([3, 2])).round(1).tolist()
    [[100.0, 55.0], [60.70000076293945, 100.0]]
    """
    matches, sizes = _statistics(tokens, lengths, order)
    counted = jnp.broadcast_to(sizes[:, :, None] > 0, matches.shape)
    missing = counted & (matches == 0)
    smoothed = jnp.where(missing, 0.5 ** jnp.cumsum(missing, 0).astype(jnp.float32), matches)
    log_precision = jnp.log(jnp.where(counted, smoothed, 1.0) / jnp.maximum(sizes[:, :, None], 1))
    number = jnp.maximum(counted.sum(0), 1).astype(jnp.float32)
    mean = jnp.where(counted, log_precision, 0.0).sum(0) / number
    length = lengths.astype(jnp.float32)
    brevity = jnp.minimum(1 - length[None] / jnp.maximum(length[:, None], 1), 0)
    return jnp.where((matches > 0).any(0), 100 * jnp.exp(brevity + mean), 0.0)


def _statistics(
    tokens: Int[Array, "K T"], lengths: Int[Array, " K"], order: int
) -> tuple[Float[Array, "O K K"], Float[Array, "O K"]]:
    """Returns, for each order, the number of n-grams that candidates k and m share, and the number of n-grams of k."""
    tokens = tokens.astype(jnp.int32)  # the numbers of n-grams, too, have this type

    def longer(grams: jax.Array, size: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        # An n-gram is the pair of its first n - 1 tokens and its last one; its position is its first token's.
        where = jnp.arange(tokens.shape[1])[None] < lengths[:, None] - size
        grams = _dense(grams, jnp.roll(tokens, -size, 1), where)
        return grams, (_matches(grams, where), where.sum(1).astype(jnp.float32))

    return jax.lax.scan(longer, jnp.zeros_like(tokens), jnp.arange(order))[1]


def _dense(first: Int[Array, "K T"], second: Int[Array, "K T"], where: Bool[Array, "K T"]) -> Int[Array, "K T"]:
    """Returns a number for each pair, equal for equal pairs, below K T; pairs where `where` is False get any number."""
    size = first.size
    index = jnp.arange(size)
    absent, one, other, order = jax.lax.sort(
        ((~where).reshape(-1).astype(jnp.int32), first.reshape(-1), second.reshape(-1), index), num_keys=3
    )
    changed = lambda x: jnp.concatenate([jnp.zeros(1, bool), x[1:] != x[:-1]])
    ids = jnp.cumsum(changed(absent) | changed(one) | changed(other))
    return jnp.zeros(size, first.dtype).at[order].set(ids.astype(first.dtype)).reshape(first.shape)


def _matches(grams: Int[Array, "K T"], where: Bool[Array, "K T"]) -> Float[Array, "K K"]:
    """Returns the clipped n-gram matches of every pair of candidates: the smaller of their two counts, summed."""
    number, size = grams.shape[0], grams.size
    rows = jnp.arange(number)[:, None]
    counts = jnp.zeros((number, max(size, 1)), jnp.float32).at[rows, grams].add(where.astype(jnp.float32))
    return jax.lax.map(lambda row: jnp.minimum(row[None], counts).sum(1), counts)
