"""Beam search, with separate sets of live and finished hypotheses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxformer.decoding.api import Hypotheses, S, Step, check_state, gather, limits
from jaxformer.decoding.transforms import History, Transform, chain, well_formed
from jaxformer.errors import ConfigError


class _Beam(NamedTuple, Generic[S]):
    number: jax.Array  # int32: steps done
    tokens: jax.Array  # int32 [B, K, T]: of the live hypotheses, best first
    token_log_probs: jax.Array  # float32 [B, K, T]
    log_probs: jax.Array  # float32 [B, K]
    last: jax.Array  # int32 [B, K]: their last tokens
    state: S
    finished: Hypotheses  # [B, K], best first; scores of minus infinity where there are fewer
    stopped: jax.Array  # Bool [B]: the search of this sentence is complete


class _Rules(NamedTuple):
    eos: int
    length_penalty: float
    exact_stop: bool
    max_lengths: jax.Array  # int32 [B]


def beam_search(
    step: Step[S],
    state: S,
    *,
    beam_size: int,
    max_length: int,
    bos: int,
    eos: int,
    pad: int = 0,
    length_penalty: float = 1.0,
    max_lengths: Int[Array, " B"] | None = None,
    exact_stop: bool = False,
    transforms: Sequence[Transform] = (),
) -> Hypotheses:
    r"""Finds the `beam_size` best sequences of each sentence, ranked by :math:`\log p / L^\alpha`; one ``while_loop``.

    L counts tokens with `eos`; :math:`\alpha` is `length_penalty`: 0 favors short sequences, 1 is the mean
    log-probability of a token (Graves 2012; Wu et al. 2016 use a relative of it). In each step every live hypothesis
    proposes its best 2K tokens; those that are `eos` compete for the K finished ones; the best K others stay live.
    A sentence's result does not depend on the others in its batch.

    Args:
      step, state: see `jaxformer.decoding.api`; the state holds `beam_size` equal hypotheses of each sentence.
      max_length: the most tokens, `eos` included; static.
      bos, eos, pad: never chosen except `eos`, which `bos` may equal and `pad` may not.
      max_lengths: the most tokens of each sentence, ``int [B]``; a hypothesis that reaches it must end.
      exact_stop: a sentence stops when K hypotheses are finished; with `exact_stop`, only when no live one could
        still reach the finished ones: its score is at most ``log p / max_lengths ** length_penalty``, since later
        tokens only lower log p.
      transforms: see `jaxformer.decoding.transforms`.

    Raises:
      ValueError: `beam_size` is not that of the state.
      ConfigError: `beam_size` is not below the vocabulary's size; a length penalty below 0; `pad` is `eos`.

    >>> import jax.numpy as jnp
    >>> from jaxformer.decoding import TreeState
    >>> count_up = lambda tokens, state: (4 * jnp.eye(8)[tokens + 1], state)  # the next number is the most probable
    >>> best = beam_search(count_up, TreeState(jnp.zeros((1, 2))), beam_size=2, max_length=6, bos=3, eos=7)
    >>> best.tokens[:, 0].tolist()
    [[4, 5, 6, 7, 0, 0]]
    """
    batch, num_hypotheses = check_state(state)
    if num_hypotheses != beam_size:
        raise ValueError(f"the state holds {num_hypotheses} hypotheses of each sentence, but beam_size is {beam_size}")
    if not length_penalty >= 0:  # nor NaN
        raise ConfigError(f"length_penalty must be at least 0, got {length_penalty}")
    token_limits = limits(max_lengths, max_length, batch)
    transforms = well_formed(transforms, bos=bos, eos=eos, pad=pad, max_lengths=token_limits)
    next_log_probs, sentences = chain(*transforms), jnp.arange(batch, dtype=jnp.int32)
    rules = _Rules(eos, length_penalty, exact_stop, token_limits)

    def advance(beam: _Beam[S]) -> _Beam[S]:
        scores, state = step(beam.last, beam.state)
        if beam_size >= scores.shape[-1]:
            raise ConfigError(f"beam_size must be below the vocabulary's size, {scores.shape[-1]}, got {beam_size}")
        lengths = jnp.full((batch, beam_size), beam.number)
        choices = next_log_probs(scores, History(beam.tokens, lengths, sentences))
        return _advance(beam, choices, state, rules)

    tokens = jnp.full((batch, beam_size, max_length), pad, jnp.int32)
    token_log_probs = jnp.zeros((batch, beam_size, max_length), jnp.float32)
    no_scores = jnp.full((batch, beam_size), -jnp.inf, jnp.float32)
    beam = _Beam(
        number=jnp.int32(0),
        tokens=tokens,
        token_log_probs=token_log_probs,
        log_probs=no_scores.at[:, 0].set(0.0),  # all hypotheses are equal at first, so one of them is extended
        last=jnp.full((batch, beam_size), bos, jnp.int32),
        state=state,
        finished=Hypotheses(tokens, jnp.zeros((batch, beam_size), jnp.int32), no_scores, no_scores, token_log_probs),
        stopped=jnp.zeros(batch, bool),
    )
    beam = jax.lax.while_loop(lambda beam: (beam.number < max_length) & ~beam.stopped.all(), advance, beam)
    return beam.finished


def _advance(beam: _Beam[S], choices: Float[Array, "B K V"], state: S, rules: _Rules) -> _Beam[S]:
    """Returns the beam after one more token, from the log-probabilities of the next tokens and the state after them."""
    beam_size, number = choices.shape[1], beam.number
    parents, tokens, gained, log_probs = _propose(choices, beam.log_probs, 2 * beam_size)
    append = lambda old, new: jax.lax.dynamic_update_index_in_dim(gather(old, parents), new, number, 2)
    grown_tokens, grown_log_probs = append(beam.tokens, tokens), append(beam.token_log_probs, gained)
    ends = tokens == rules.eos

    # An eos finishes only among the best K, as greedy search would take it; then a beam size of 1 is greedy search.
    finishing = ends & (jnp.arange(ends.shape[1]) < beam_size)[None]
    # A stopped sentence keeps its result while the others in the batch continue.
    scores = jnp.where(finishing, log_probs, -jnp.inf) / (number + 1).astype(jnp.float32) ** rules.length_penalty
    scores = jnp.where(beam.stopped[:, None], -jnp.inf, scores)
    lengths = jnp.full_like(tokens, number + 1)
    finished = _best(beam.finished, Hypotheses(grown_tokens, lengths, log_probs, scores, grown_log_probs))

    live_log_probs, chosen = jax.lax.top_k(jnp.where(ends, -jnp.inf, log_probs), beam_size)
    last, parents, live_tokens, live_token_log_probs = gather((tokens, parents, grown_tokens, grown_log_probs), chosen)
    if rules.exact_stop:
        bound = live_log_probs[:, 0] / rules.max_lengths.astype(jnp.float32) ** rules.length_penalty
        stopped = bound <= finished.scores[:, -1]
    else:
        stopped = jnp.isfinite(finished.scores[:, -1])
    stopped |= number + 1 >= rules.max_lengths
    return _Beam(
        number=number + 1,
        tokens=live_tokens,
        token_log_probs=live_token_log_probs,
        log_probs=live_log_probs,
        last=last,
        state=state.reorder(parents),
        finished=finished,
        stopped=stopped | beam.stopped,
    )


def _propose(
    choices: Float[Array, "B K V"], log_probs: Float[Array, "B K"], count: int
) -> tuple[Int[Array, "B C"], Int[Array, "B C"], Float[Array, "B C"], Float[Array, "B C"]]:
    """Returns a sentence's best `count` continuations: parents, tokens, the tokens' log-probabilities, and totals.

    They are chosen from the best continuations of each hypothesis, so fewer than K V values are sorted.
    """
    batch, _, vocab_size = choices.shape
    best, tokens = jax.lax.top_k(choices, min(count, vocab_size))
    totals = (best + log_probs[:, :, None]).reshape(batch, -1)
    totals, index = jax.lax.top_k(totals, min(count, totals.shape[1]))
    tokens, gained = gather((tokens.reshape(batch, -1), best.reshape(batch, -1)), index)
    return index // best.shape[2], tokens, gained, totals


def _best(old: Hypotheses, new: Hypotheses) -> Hypotheses:
    """Returns the best of both, as many as `old` has."""
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], 1), old, new)
    _, chosen = jax.lax.top_k(both.scores, old.scores.shape[1])
    return gather(both, chosen)
