"""Beam search, with separate sets of live and finished hypotheses."""

from __future__ import annotations

import dataclasses
from typing import Generic, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxformer.axes import has_known_values
from jaxformer.decoding import api
from jaxformer.decoding.api import Hypotheses, S, State, Step, top_scores
from jaxformer.decoding.limits import Limits, Start, begin, check_given, well_formed
from jaxformer.decoding.penalties import CoverageState, LengthPenalty, Normalization, Patience, Stopping
from jaxformer.decoding.transforms import History, Transforms, chain
from jaxformer.decoding.unroll import run
from jaxformer.errors import ConfigError


class _Beam(NamedTuple, Generic[S]):
    tokens: jax.Array  # int32 [B, K, T]: the live hypotheses, best first
    lengths: jax.Array  # int32 [B]: the number of tokens of each live hypothesis
    token_log_probs: jax.Array  # float32 [B, K, T]
    log_probs: jax.Array  # float32 [B, K]
    last: jax.Array  # int32 [B, K]: the last token of each live hypothesis
    state: S
    finished: Hypotheses  # [B, K], best first; the score of an empty slot is minus infinity
    num_finished: jax.Array  # int32 [B]: including those not among the best K
    stopped: jax.Array  # Bool [B]: the search for this row is complete
    max_lengths: jax.Array  # int32 [B]
    prefix_lengths: jax.Array  # int32 [B]

    def active(self) -> jax.Array:
        """Returns True for each row that is not complete."""
        return ~self.stopped

    def result(self) -> Hypotheses:
        """Returns the finished hypotheses."""
        return self.finished


@dataclasses.dataclass(frozen=True)
class Continuation:
    """A live hypothesis and one more token, as a step of `beam_search` considered it."""

    tokens: tuple[int, ...]
    log_prob: float
    score: float
    """The log-probability normalized by the length penalty, plus the weighted coverage if there is a penalty for it."""
    fate: Literal["live", "finished", "pruned"]


@dataclasses.dataclass
class BeamTrace:
    """A record of a beam search, for teaching and debugging: pass it to `beam_search` as `trace`."""

    num_candidates: int = 0
    """The number of continuations to record per step and row, best first; at least those that the search considers."""
    steps: list[list[list[Continuation]]] = dataclasses.field(default_factory=list)
    """The continuations of each step and row; empty once the search for that row has stopped."""

    def _add(self, considered: _Considered, active: np.ndarray) -> None:
        tokens, lengths, log_probs, scores, live, finished = (np.asarray(x) for x in considered)

        def read(b: int, c: int) -> Continuation:
            fate = "live" if live[b, c] else "finished" if finished[b, c] else "pruned"
            words = tuple(tokens[b, c, : lengths[b]].tolist())
            return Continuation(words, float(log_probs[b, c]), float(scores[b, c]), fate)

        exist = np.isfinite(log_probs) & active[:, None]
        self.steps.append([[read(b, int(c)) for c in row.nonzero()[0]] for b, row in enumerate(exist)])


class _Considered(NamedTuple):
    """The continuations of one step, best first."""

    tokens: jax.Array  # int32 [B, C, T]
    lengths: jax.Array  # int32 [B]
    log_probs: jax.Array  # float32 [B, C]
    scores: jax.Array  # float32 [B, C]
    live: jax.Array  # Bool [B, C]: among the best K that do not end
    finished: jax.Array  # Bool [B, C]: among the best K of those that ended


class _Rules(NamedTuple):
    ends: tuple[int, ...]
    normalize: Normalization
    stopping: Stopping
    forces_end: bool
    """True if a hypothesis at its limit must end with one of `ends`; False if it counts as finished as it is."""
    num_candidates: int


def beam_search(
    step: Step[S],
    state: S,
    limits: Limits[S],
    *,
    beam_size: int,
    length_penalty: float | Normalization = 1.0,
    stopping: Stopping = "first",
    transforms: Transforms = (),
    trace: BeamTrace | None = None,
) -> Hypotheses:
    r"""Finds the `beam_size` best sequences for each row, ranked by :math:`\log p / L^\alpha` (Graves 2012).

    Each step considers the best 2K continuations of the K live hypotheses, and K more for each further `eos`. Those
    among the best K that end with `eos` compete for the K finished slots; the best K that do not end stay live. The
    search is one ``while_loop``; the result of a row does not depend on the other rows of the batch. Wu et al. 2016 use
    a similar score (`GNMTPenalty`, and `CoverageState` for the coverage of the source). If the transforms leave no
    token for any live hypothesis, the search ends; if none has finished, it returns the live ones.

    Args:
      step, state: see `jaxformer.decoding.api`; the state holds `beam_size` equal hypotheses per row.
      limits: with `forced_end` "never", or without `eos`, hypotheses that reach the limit count as finished.
      length_penalty: :math:`\alpha`, where L counts `eos` and prefix; or a `LengthPenalty` that counts differently, or
        a `GNMTPenalty`.
      stopping: the rule that stops the search for a row before its length limit. "first": K hypotheses have finished.
        "now": K have finished, and the best live one, with its present score, would not be among the best K. "limit": K
        have finished, and no live one can still be among the best K: its score is at most that of its present log p at
        its limit (later tokens only lower log p). `Patience`: ``factor * K`` have finished.
      transforms: see `jaxformer.decoding.transforms`.
      trace: records what each step considered, kept and pruned. The steps then run one by one, so this call must not
        be inside `jax.jit`.

    Raises:
      ValueError: the state holds a number of hypotheses other than `beam_size`; `beam_size` times the vocabulary is not
        below 2**31; a `trace` inside `jax.jit`; see also `greedy`.
      ConfigError: a penalty below 0 or not finite; an unknown stopping rule; see also `greedy`.

    >>> import jax.numpy as jnp
    >>> from jaxformer.decoding import Limits, TreeState
    >>> count_up = lambda tokens, state: (4 * jnp.eye(8)[tokens + 1], state)  # the next number is the most probable
    >>> limits = Limits(max_length=6, bos=3, eos=7)
    >>> beam_search(count_up, TreeState(jnp.zeros((1, 2))), limits, beam_size=2).tokens[:, 0].tolist()
    [[4, 5, 6, 7, 0, 0]]
    """
    if (number := api.check_state(state)[1]) != beam_size:
        raise ValueError(f"the state holds {number} hypotheses per row, but beam_size is {beam_size}")
    if not isinstance(stopping, Patience) and stopping not in ("first", "now", "limit"):
        raise ConfigError(f"stopping must be first, now, limit or a Patience, got {stopping!r}")
    normalize = length_penalty if callable(length_penalty) else LengthPenalty(length_penalty)
    start = begin(state, limits)
    prefix = start.history()
    next_log_probs = chain(*well_formed(transforms, limits, start.max_lengths))
    if trace is not None and not has_known_values(*jax.tree.leaves((state, start.max_lengths))):
        raise ValueError("a beam search with a trace runs step by step; call it outside jax.jit, or leave out trace")
    num_candidates = beam_size * max(2, 1 + len(limits.ends))
    if trace is not None:
        num_candidates = max(num_candidates, trace.num_candidates)
    forces_end = bool(limits.ends) and limits.forced_end != "never"
    rules = _Rules(limits.ends, normalize, stopping, forces_end, num_candidates)

    def advance(step: Step[S], beam: _Beam[S], rows: jax.Array) -> tuple[_Beam[S], _Considered]:
        scores, state = step(beam.last, beam.state)
        lengths = jnp.broadcast_to(beam.lengths[:, None], beam.last.shape)
        choices = next_log_probs(scores, History(beam.tokens, lengths, rows))
        api.check_ends(rules.ends, choices.shape[-1])
        check_given(prefix, choices.shape[-1])
        return _advance(beam, choices, state, rules)

    beam = _first(start, limits.filler)
    if trace is None:
        return run(beam, lambda step, beam, rows: advance(step, beam, rows)[0], step, limits.capacities)
    if limits.capacities:
        beam = beam._replace(state=api.resized(beam.state, limits.capacities[-1]))
    one_step = jax.jit(lambda beam: advance(step, beam, jnp.arange(state.shape[0], dtype=jnp.int32)))
    while not beam.stopped.all():
        active = ~np.asarray(beam.stopped)
        beam, considered = one_step(beam)
        trace._add(considered, active)
    return beam.finished


def _first(start: Start[S], pad: int) -> _Beam[S]:
    """Returns the beam before the first choice; a row whose prefix reaches its limit is finished."""
    full = start.forced >= start.max_lengths
    only = full[:, None] & (jnp.arange(start.last.shape[1])[None] == 0)
    empty = jnp.zeros(start.tokens.shape, jnp.float32)
    no_scores = jnp.full(start.last.shape, -jnp.inf, jnp.float32)
    finished = Hypotheses(
        tokens=jnp.where(only[..., None], start.tokens, jnp.int32(pad)),
        lengths=jnp.where(only, start.forced[:, None], 0),
        log_probs=jnp.where(only, 0.0, no_scores),
        scores=jnp.where(only, 0.0, no_scores),
        token_log_probs=empty,
    )
    return _Beam(
        tokens=start.tokens,
        lengths=start.lengths,
        token_log_probs=empty,
        log_probs=no_scores.at[:, 0].set(0.0),  # all hypotheses are equal at first, so only one is extended
        last=start.last,
        state=start.state,
        finished=finished,
        num_finished=jnp.zeros_like(start.lengths),
        stopped=full,
        max_lengths=start.max_lengths,
        prefix_lengths=start.forced,
    )


def _advance(beam: _Beam[S], choices: Float[Array, "B K V"], state: S, rules: _Rules) -> tuple[_Beam[S], _Considered]:
    """Returns the beam after one more token, from the log-probabilities of next tokens and the model's new state."""
    api.check_state(state)
    beam_size, length = choices.shape[1], beam.tokens.shape[2]
    forced = (beam.lengths < beam.prefix_lengths)[:, None]
    in_prefix = jnp.take_along_axis(beam.tokens, jnp.minimum(beam.lengths, length - 1)[:, None, None], 2)
    only_one = jnp.where(jnp.arange(choices.shape[2])[None, None] == 0, 0.0, -jnp.inf)  # it stands for the given one
    choices = jnp.where(forced[..., None], only_one, choices)

    parents, tokens, gained, log_probs = _propose(choices, beam.log_probs, rules.num_candidates)
    tokens = jnp.where(forced, in_prefix[:, :1, 0], tokens)
    here = jnp.arange(length)[None, None] == beam.lengths[:, None, None]
    append = lambda old, new: jnp.where(here, new[..., None], api.gather(old, parents))
    grown_tokens, grown_log_probs = append(beam.tokens, tokens), append(beam.token_log_probs, gained)
    lengths = beam.lengths + 1
    at_limit = (lengths >= beam.max_lengths)[:, None]
    ends = api.is_any(tokens, rules.ends) & ~forced

    # An eos finishes a hypothesis only if it is among the best K; so beam search with K = 1 is greedy search.
    complete = ends if rules.forces_end else ends | at_limit
    finishing = complete & (jnp.arange(ends.shape[1]) < beam_size)[None]
    # A stopped row keeps its result while the other rows continue.
    finishing &= jnp.isfinite(log_probs) & ~beam.stopped[:, None]
    scores = _scores(log_probs, _counted(lengths, beam, rules), ends, parents, state, rules)
    eligible = jnp.where(finishing, scores, -jnp.inf)
    new = Hypotheses(
        grown_tokens, jnp.broadcast_to(lengths[:, None], tokens.shape), log_probs, eligible, grown_log_probs
    )
    finished, kept = _best(beam.finished, new)
    num_finished = beam.num_finished + finishing.sum(-1, dtype=jnp.int32)

    live_log_probs, chosen = jax.lax.top_k(jnp.where(ends, -jnp.inf, log_probs), beam_size)
    last, parents, live_tokens, live_token_log_probs = api.gather(
        (tokens, parents, grown_tokens, grown_log_probs), chosen
    )
    stopped = _stops(beam, live_log_probs[:, 0], finished.scores[:, -1], num_finished, rules)
    dead = ~beam.stopped & (live_log_probs[:, 0] == -jnp.inf)  # the rules leave no token for any hypothesis
    finished = jax.lax.cond(dead.any(), lambda: _with_fragments(beam, dead, finished, rules), lambda: finished)
    after = beam._replace(
        tokens=live_tokens,
        lengths=jnp.where(beam.stopped, beam.lengths, lengths),
        token_log_probs=live_token_log_probs,
        log_probs=live_log_probs,
        last=last,
        state=state if beam_size == 1 else state.reorder(parents),
        finished=finished,
        num_finished=num_finished,
        stopped=stopped | dead | at_limit[:, 0] | beam.stopped,
    )
    live = _among(chosen, ends.shape[1]) & ~complete
    return after, _Considered(grown_tokens, lengths, log_probs, scores, live, kept & finishing)


def _with_fragments(beam: _Beam[S], dead: Bool[Array, " B"], finished: Hypotheses, rules: _Rules) -> Hypotheses:
    """Returns the finished hypotheses; a `dead` row without any gets the ones that were live before this step."""
    shape = beam.last.shape
    lengths = jnp.broadcast_to(beam.lengths[:, None], shape)
    parents = jnp.broadcast_to(jnp.arange(shape[1])[None], shape)
    counted = _counted(beam.lengths, beam, rules)
    scores = _scores(beam.log_probs, counted, jnp.zeros(shape, bool), parents, beam.state, rules)
    kept = (dead & (finished.scores[:, 0] == -jnp.inf))[:, None] & jnp.isfinite(beam.log_probs)
    eligible = jnp.where(kept, scores, -jnp.inf)
    return _best(finished, Hypotheses(beam.tokens, lengths, beam.log_probs, eligible, beam.token_log_probs))[0]


def _counted(lengths: Int[Array, " B"], beam: _Beam[S], rules: _Rules) -> Int[Array, " B"]:
    """Returns the lengths that the penalty sees, at least 1: without the prefix if the penalty does not count it."""
    counted = lengths if getattr(rules.normalize, "count_prefix", True) else lengths - beam.prefix_lengths
    return jnp.maximum(counted, 1)


def _scores(
    log_probs: jax.Array, counted: jax.Array, ends: jax.Array, parents: jax.Array, state: State, rules: _Rules
) -> Float[Array, "B C"]:
    """Returns the scores of continuations if they were finished; `state` is their parents' state after the step."""
    scores = rules.normalize(log_probs, jnp.broadcast_to(counted[:, None], log_probs.shape), ended=ends)
    api.check_scores("a length penalty", scores, log_probs.shape)
    if isinstance(state, CoverageState) and state.penalty:
        scores += state.penalty * api.gather(state.coverage(), parents)
    return scores


def _stops(
    beam: _Beam[S], best_live: jax.Array, worst: jax.Array, num_finished: jax.Array, rules: _Rules
) -> Bool[Array, " B"]:
    """Returns True for each row whose search the stopping rule ends.

    Args:
      beam: the beam before this step.
      best_live: the log-probability of the best live hypothesis after it, ``[B]``.
      worst: the score of the worst of the K finished hypotheses; minus infinity if fewer have finished.
    """
    beam_size = beam.last.shape[1]
    if isinstance(rules.stopping, Patience):
        return num_finished >= rules.stopping.needed(beam_size)
    if rules.stopping == "first":
        return num_finished >= beam_size
    # The coverage of the source is at most 0, so these bounds hold with and without it.
    if rules.stopping == "now":
        bound = rules.normalize(best_live, _counted(beam.lengths + 1, beam, rules), ended=False)
    else:
        longest = _counted(beam.max_lengths, beam, rules)
        bound = rules.normalize(best_live, longest, ended=rules.forces_end)
    return bound <= worst


def _propose(
    choices: Float[Array, "B K V"], log_probs: Float[Array, "B K"], count: int
) -> tuple[Int[Array, "B C"], Int[Array, "B C"], Float[Array, "B C"], Float[Array, "B C"]]:
    """Returns the best `count` continuations of a row: parents, tokens, the tokens' log-probabilities, and totals.

    They are chosen among the best of each hypothesis, so that fewer than K V values are sorted.
    """
    batch, beam_size, vocab_size = choices.shape
    if beam_size * vocab_size >= 2**31:
        raise ValueError(f"beam_size times the vocabulary must be below 2**31, got {beam_size} x {vocab_size}")
    best, tokens = top_scores(choices, min(count, vocab_size))
    flat = lambda x: x.reshape(batch, beam_size * best.shape[2])
    totals, index = jax.lax.top_k(flat(best + log_probs[:, :, None]), min(count, beam_size * best.shape[2]))
    tokens, gained = api.gather((flat(tokens), flat(best)), index)
    return index // best.shape[2], tokens, gained, totals


def _best(old: Hypotheses, new: Hypotheses) -> tuple[Hypotheses, Bool[Array, "B C"]]:
    """Merges two sets and keeps as many of the best as `old` has; also returns True for each of `new` that is kept."""
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], 1), old, new)
    _, chosen = jax.lax.top_k(both.scores, old.scores.shape[1])
    return api.gather(both, chosen), _among(chosen - old.scores.shape[1], new.scores.shape[1])


def _among(indices: Int[Array, "B K"], count: int) -> Bool[Array, "B C"]:
    """Returns True at c < `count` if c is among the indices of a row."""
    return (indices[:, None] == jnp.arange(count)[None, :, None]).any(-1)
