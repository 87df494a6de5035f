"""Beam search, with separate sets of live and finished hypotheses."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Generic, Literal, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

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


@dataclasses.dataclass(frozen=True)
class LengthPenalty:
    r"""The normalization of a hypothesis' log-probability by its length, :math:`\log p / L^\alpha`.

    A sequence of `eos` alone has :math:`L = 1` either way. `eos` always counts in log p.

    Raises:
      ConfigError: the exponent is negative or NaN.

    >>> import jax.numpy as jnp
    >>> words = LengthPenalty(1.0, count_eos=False)
    >>> words(jnp.float32(-6.0), jnp.int32(4), ended=jnp.array([True, False])).tolist()
    [-2.0, -1.5]
    """

    exponent: float = 1.0
    """:math:`\\alpha`: 0 favors short sequences, 1 is the mean log-probability of a token."""
    count_eos: bool = True
    """True if L counts `eos`; False if L is the number of words before it, as in textbooks whose sentences have no
    `eos`."""

    def __post_init__(self) -> None:
        if not self.exponent >= 0:  # nor NaN
            raise ConfigError(f"length_penalty must be at least 0, got {self.exponent}")

    def __call__(self, log_probs: jax.Array, lengths: jax.Array, *, ended: jax.Array | bool) -> jax.Array:
        """Returns the scores of hypotheses of these numbers of tokens; `ended` is True where the last is `eos`."""
        counted = lengths if self.count_eos else jnp.maximum(lengths - jnp.asarray(ended, lengths.dtype), 1)
        return log_probs / counted.astype(jnp.float32) ** self.exponent


@dataclasses.dataclass(frozen=True)
class Continuation:
    """A live hypothesis and one more token, as a step of `beam_search` considered it."""

    tokens: tuple[int, ...]
    log_prob: float
    score: float
    """The log-probability normalized by the length penalty."""
    fate: Literal["live", "finished", "pruned"]


@dataclasses.dataclass
class BeamTrace:
    """A record of a beam search, for teaching and debugging: give it to `beam_search` as `trace`."""

    num_candidates: int = 0
    """The number of continuations of each sentence to record, best first; at least the 2K that the search considers."""
    steps: list[list[list[Continuation]]] = dataclasses.field(default_factory=list)
    """The continuations of each step and sentence; none once the search of the sentence has stopped."""

    def _add(self, considered: _Considered, active: np.ndarray) -> None:
        tokens, log_probs, scores, live, finished = (np.asarray(x) for x in considered)

        def read(b: int, c: int) -> Continuation:
            fate = "live" if live[b, c] else "finished" if finished[b, c] else "pruned"
            words = tuple(tokens[b, c, : len(self.steps) + 1].tolist())
            return Continuation(words, float(log_probs[b, c]), float(scores[b, c]), fate)

        exist = np.isfinite(log_probs) & active[:, None]
        self.steps.append([[read(b, int(c)) for c in row.nonzero()[0]] for b, row in enumerate(exist)])


class _Considered(NamedTuple):
    """The continuations of one step, best first."""

    tokens: jax.Array  # int32 [B, C, T]
    log_probs: jax.Array  # float32 [B, C]
    scores: jax.Array  # float32 [B, C]
    live: jax.Array  # Bool [B, C]: among the best K that do not end
    finished: jax.Array  # Bool [B, C]: among the best K of those that ended


class _Rules(NamedTuple):
    eos: int
    length_penalty: LengthPenalty
    exact_stop: bool
    max_lengths: jax.Array  # int32 [B]
    num_candidates: int


def beam_search(
    step: Step[S],
    state: S,
    *,
    beam_size: int,
    max_length: int,
    bos: int,
    eos: int,
    pad: int = 0,
    length_penalty: float | LengthPenalty = 1.0,
    max_lengths: Int[Array, " B"] | None = None,
    exact_stop: bool = False,
    transforms: Sequence[Transform] = (),
    trace: BeamTrace | None = None,
) -> Hypotheses:
    r"""Finds the `beam_size` best sequences of each sentence, ranked by :math:`\log p / L^\alpha`; one ``while_loop``.

    (Graves 2012; Wu et al. 2016 use a relative of this score.) In each step every live hypothesis
    proposes its best 2K tokens; those that are `eos` compete for the K finished ones; the best K others stay live.
    A sentence's result does not depend on the others in its batch.

    Args:
      step, state: see `jaxformer.decoding.api`; the state holds `beam_size` equal hypotheses of each sentence.
      max_length: the most tokens, `eos` included; static.
      bos, eos, pad: never chosen except `eos`, which `bos` may equal and `pad` may not.
      length_penalty: :math:`\alpha`, with L counting `eos`, or a `LengthPenalty` that counts otherwise.
      max_lengths: the most tokens of each sentence, ``int [B]``; a hypothesis that reaches it must end.
      exact_stop: a sentence stops when K hypotheses are finished; with `exact_stop`, only when no live one could
        still reach the finished ones: its score is at most that of its log p at `max_lengths`, since later tokens only
        lower log p.
      transforms: see `jaxformer.decoding.transforms`.
      trace: records what each step considered, kept and pruned. The steps then run one by one, so this call must not
        be inside `jax.jit`.

    Raises:
      ValueError: `beam_size` is not that of the state; a `trace` inside `jax.jit`.
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
    token_limits = limits(max_lengths, max_length, batch)
    transforms = well_formed(transforms, bos=bos, eos=eos, pad=pad, max_lengths=token_limits)
    next_log_probs, sentences = chain(*transforms), jnp.arange(batch, dtype=jnp.int32)
    if trace is not None and any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((state, token_limits))):
        raise ValueError("a beam search with a trace runs step by step; call it outside jax.jit, or leave out trace")
    if not isinstance(length_penalty, LengthPenalty):
        length_penalty = LengthPenalty(length_penalty)
    num_candidates = max(2 * beam_size, trace.num_candidates if trace else 0)
    rules = _Rules(eos, length_penalty, exact_stop, token_limits, num_candidates)

    def advance(beam: _Beam[S]) -> tuple[_Beam[S], _Considered]:
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
    searching = lambda beam: (beam.number < max_length) & ~beam.stopped.all()
    if trace is None:
        return jax.lax.while_loop(searching, lambda beam: advance(beam)[0], beam).finished
    one_step = jax.jit(advance)
    while searching(beam):
        active = ~np.asarray(beam.stopped)
        beam, considered = one_step(beam)
        trace._add(considered, active)
    return beam.finished


def _advance(beam: _Beam[S], choices: Float[Array, "B K V"], state: S, rules: _Rules) -> tuple[_Beam[S], _Considered]:
    """Returns the beam after one more token, from the log-probabilities of the next tokens and the state after them."""
    beam_size, number = choices.shape[1], beam.number
    parents, tokens, gained, log_probs = _propose(choices, beam.log_probs, rules.num_candidates)
    append = lambda old, new: jax.lax.dynamic_update_index_in_dim(gather(old, parents), new, number, 2)
    grown_tokens, grown_log_probs = append(beam.tokens, tokens), append(beam.token_log_probs, gained)
    ends = tokens == rules.eos

    # An eos finishes only among the best K, as greedy search would take it; then a beam size of 1 is greedy search.
    finishing = ends & (jnp.arange(ends.shape[1]) < beam_size)[None]
    # A stopped sentence keeps its result while the others in the batch continue.
    lengths = jnp.full_like(tokens, number + 1)
    scores = rules.length_penalty(log_probs, lengths, ended=ends)
    eligible = jnp.where(finishing & ~beam.stopped[:, None], scores, -jnp.inf)
    finished, kept = _best(beam.finished, Hypotheses(grown_tokens, lengths, log_probs, eligible, grown_log_probs))

    live_log_probs, chosen = jax.lax.top_k(jnp.where(ends, -jnp.inf, log_probs), beam_size)
    last, parents, live_tokens, live_token_log_probs = gather((tokens, parents, grown_tokens, grown_log_probs), chosen)
    if rules.exact_stop:
        bound = rules.length_penalty(live_log_probs[:, 0], rules.max_lengths, ended=True)
        stopped = bound <= finished.scores[:, -1]
    else:
        stopped = jnp.isfinite(finished.scores[:, -1])
    stopped |= number + 1 >= rules.max_lengths
    after = _Beam(
        number=number + 1,
        tokens=live_tokens,
        token_log_probs=live_token_log_probs,
        log_probs=live_log_probs,
        last=last,
        state=state.reorder(parents),
        finished=finished,
        stopped=stopped | beam.stopped,
    )
    live = _among(chosen, ends.shape[1]) & ~ends
    considered = _Considered(grown_tokens, log_probs, scores, live, kept & finishing)
    return after, considered


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


def _best(old: Hypotheses, new: Hypotheses) -> tuple[Hypotheses, Bool[Array, "B C"]]:
    """Returns the best of both, as many as `old` has, and which of `new` are among them."""
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], 1), old, new)
    _, chosen = jax.lax.top_k(both.scores, old.scores.shape[1])
    return gather(both, chosen), _among(chosen - old.scores.shape[1], new.scores.shape[1])


def _among(indices: Int[Array, "B K"], count: int) -> Bool[Array, "B C"]:
    """Returns, for the numbers below `count`, whether they are among a sentence's indices."""
    return (indices[:, None] == jnp.arange(count)[None, :, None]).any(-1)
