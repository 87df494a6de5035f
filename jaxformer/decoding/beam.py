"""Beam search: the best of many hypotheses, live and finished ones kept apart."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxformer.decoding.api import Hypotheses, Step, forbidden, limits, next_log_probs, reorder, state_size


class _Beam(NamedTuple):
    number: jax.Array  # int32: steps done
    live_tokens: jax.Array  # int32 [B, K, T]
    live_log_probs: jax.Array  # float32 [B, K], best first
    last: jax.Array  # int32 [B, K]: the live hypotheses' last tokens
    state: Any  # every leaf [B, K, ...]
    finished: Hypotheses  # [B, K], best first; scores of minus infinity where there are fewer
    stopped: jax.Array  # Bool [B]: nothing changes this sentence any more


def beam_search(
    step: Step,
    state: Any,
    *,
    beam_size: int,
    length: int,
    bos: int,
    eos: int,
    pad: int = 0,
    length_penalty: float = 1.0,
    limit: Int[Array, " B"] | None = None,
    exact_stop: bool = False,
) -> Hypotheses:
    r"""The `beam_size` best sequences of each sentence, ranked by :math:`\log p / L^\alpha`, by one ``while_loop``.

    L counts tokens with `eos`; :math:`\alpha` is `length_penalty`: 0 favors short sequences, 1 is the mean
    log-probability of a token (Graves 2012; Wu et al. 2016 use a relative of it).  In each step every live hypothesis
    proposes its best 2K tokens; those that are `eos` compete for the K finished places, the best K others live on.
    A sentence's result does not depend on the others in its batch.

    Args:
      step, state: see `jaxformer.decoding.api`; the state holds `beam_size` equal hypotheses.
      length: the most tokens, `eos` included; static.
      bos, eos, pad: never chosen but `eos`, which `bos` may equal and `pad` may not.
      limit: the most tokens of each sentence, ``int [B]``; a hypothesis that reaches it must end.
      exact_stop: a sentence stops when K hypotheses are finished; with `exact_stop`, only when no live one could
        still reach the finished ones: its score is at most ``log p / limit ** length_penalty``, since later tokens only
        lower log p.

    Raises:
      ValueError: `beam_size` is not that of the state, or not below the vocabulary's size; a length penalty below 0;
        `pad` is `eos`.
    """
    batch, got = state_size(state)
    if got != beam_size:
        raise ValueError(f"the state holds {got} hypotheses a sentence, but beam_size is {beam_size}")
    if not length_penalty >= 0:  # nor NaN
        raise ValueError(f"the length penalty's exponent must be at least 0, got {length_penalty}")
    most = limits(limit, length, batch)
    never = forbidden(bos=bos, eos=eos, pad=pad)

    def advance(beam: _Beam) -> _Beam:
        logits, state = step(beam.last, beam.state)
        if beam_size >= logits.shape[-1]:
            raise ValueError(f"beam_size {beam_size} must be below the vocabulary's size, {logits.shape[-1]}")
        choices = next_log_probs(logits, eos=eos, forbid=never, force_end=beam.number + 1 >= most)
        return _advance(beam, choices, state, most, eos=eos, length_penalty=length_penalty, exact_stop=exact_stop)

    empty = jnp.full((batch, beam_size, length), pad, jnp.int32)
    nothing = jnp.full((batch, beam_size), -jnp.inf)
    beam = _Beam(
        number=jnp.int32(0),
        live_tokens=empty,
        live_log_probs=nothing.at[:, 0].set(0.0),  # all hypotheses are equal at first: one speaks for them
        last=jnp.full((batch, beam_size), bos, jnp.int32),
        state=state,
        finished=Hypotheses(empty, jnp.zeros((batch, beam_size), jnp.int32), nothing, nothing),
        stopped=jnp.zeros(batch, bool),
    )
    beam = jax.lax.while_loop(lambda beam: (beam.number < length) & ~beam.stopped.all(), advance, beam)
    return beam.finished


def _advance(
    beam: _Beam, choices: Float[Array, "B K V"], state: Any, most: Int[Array, " B"], *, eos, length_penalty, exact_stop
) -> _Beam:
    """The beam one token on, from the log-probabilities of the next tokens and the state after them."""
    beam_size = choices.shape[1]
    parents, tokens, log_probs = _propose(choices, beam.live_log_probs, 2 * beam_size)
    grown = reorder(beam.live_tokens, parents)
    grown = jax.lax.dynamic_update_index_in_dim(grown, tokens, beam.number, 2)
    ends = tokens == eos

    # An end finishes only among the best K, as greedy search would take it; then a beam size of 1 is greedy search.
    finishing = ends & (jnp.arange(ends.shape[1]) < beam_size)[None]
    # A stopped sentence keeps what it has, whatever its neighbors still need.
    new_scores = jnp.where(finishing, log_probs, -jnp.inf) / (beam.number + 1).astype(jnp.float32) ** length_penalty
    new_scores = jnp.where(beam.stopped[:, None], -jnp.inf, new_scores)
    counts = jnp.full_like(tokens, beam.number + 1)
    finished = _best(beam.finished, Hypotheses(grown, counts, log_probs, new_scores))

    live_log_probs, chosen = jax.lax.top_k(jnp.where(ends, -jnp.inf, log_probs), beam_size)
    last, parents, live_tokens = reorder((tokens, parents, grown), chosen)
    if exact_stop:
        bound = live_log_probs[:, 0] / most.astype(jnp.float32) ** length_penalty
        stopped = bound <= finished.scores[:, -1]
    else:
        stopped = jnp.isfinite(finished.scores[:, -1])
    stopped |= beam.number + 1 >= most
    return _Beam(
        number=beam.number + 1,
        live_tokens=live_tokens,
        live_log_probs=live_log_probs,
        last=last,
        state=reorder(state, parents),
        finished=finished,
        stopped=stopped | beam.stopped,
    )


def _propose(
    choices: Float[Array, "B K V"], live: Float[Array, "B K"], count: int
) -> tuple[Int[Array, "B C"], Int[Array, "B C"], Float[Array, "B C"]]:
    """Parents, tokens and log-probabilities of the best `count` continuations of a sentence's live hypotheses.

    Each row's best come first, then the best of those: far less to sort than K V values at once.
    """
    batch, _, vocab = choices.shape
    best, tokens = jax.lax.top_k(choices, min(count, vocab))
    total = (best + live[:, :, None]).reshape(batch, -1)
    count = min(count, total.shape[1])
    log_probs, index = jax.lax.top_k(total, count)
    rows = jnp.arange(batch)[:, None]
    return index // best.shape[2], tokens.reshape(batch, -1)[rows, index], log_probs


def _best(old: Hypotheses, new: Hypotheses) -> Hypotheses:
    """The best of both, as many as `old` has."""
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], 1), old, new)
    _, chosen = jax.lax.top_k(both.scores, old.scores.shape[1])
    return reorder(both, chosen)
