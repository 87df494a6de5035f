"""One loop over decoding steps, and three ways to choose tokens: greedy, sampled and forced.

The loop has stages: caches get more room as sequences grow, and complete rows leave the batch. Beam search has it, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, Self, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxformer.decoding import api
from jaxformer.decoding.api import Hypotheses, S, State, Step, StepOfRows, first_highest, is_full, resized
from jaxformer.decoding.limits import Limits, begin, check_given, well_formed
from jaxformer.decoding.transforms import History, Transform, Transforms, as_transforms, chain
from jaxformer.functional.dropout import hashed_bits


class SearchProgress(Protocol):
    """The progress of a search, for each row of the batch: a named tuple of arrays and the state of the model."""

    def active(self) -> Bool[Array, " B"]:
        """Returns True for each row that is not complete."""
        ...

    def _replace(self, **changes: object) -> Self: ...

    def result(self) -> Hypotheses:
        """Returns the hypotheses so far."""
        ...

    @property
    def state(self) -> State: ...


R = TypeVar("R", bound=SearchProgress)

Advance: TypeAlias = Callable[[Step[S], R, Int[Array, " B"]], R]
"""One step of a search, from a step of the model and the progress of the rows that are left, whose indices in the full
batch are the third argument."""


def run(progress: R, advance: Advance[S, R], step: Step[S], capacities: Sequence[int] = ()) -> Hypotheses:
    """Runs a search until all rows are complete, and returns the hypotheses.

    With a `StepOfRows`, a batch of at least 8 rows drops the complete rows as soon as three quarters are complete, so
    that no work is wasted on them while long rows continue. With `capacities`, the state has the first of them, and
    gets the next one when it is full. The program has one loop for each number of rows and each capacity.
    """
    batch = progress.active().shape[0]
    rows, hypotheses, growing = jnp.arange(batch, dtype=jnp.int32), None, list(capacities[1:])
    while True:
        number, fewer = rows.shape[0], 0
        if isinstance(step, StepOfRows) and isinstance(number, int) and number >= 8:  # it may be symbolic
            fewer = number // 4

        def continues(progress: R, fewer: int = fewer, grows: bool = bool(growing)) -> jax.Array:
            active = progress.active().sum() > fewer
            return active & ~is_full(progress.state) if grows else active

        progress = jax.lax.while_loop(
            continues, lambda progress, step=step, rows=rows: advance(step, progress, rows), progress
        )
        if growing:
            progress = progress._replace(state=resized(progress.state, growing.pop(0)))
            continue
        result = progress.result()
        if hypotheses is not None:
            put = lambda every, some, rows=rows: every.at[rows].set(some)
            result = jax.tree.map(put, hypotheses, result)
        hypotheses = result
        if not (fewer and isinstance(step, StepOfRows)):
            return hypotheses
        left = jnp.argsort(~progress.active(), stable=True)[:fewer]  # rows that are not complete come first
        others = jax.tree.map(lambda leaf, left=left: leaf[left], progress._replace(state=None))
        progress, rows = others._replace(state=progress.state.take(left)), rows[left]
        step = step.take(left)


class Choose(Protocol):
    """Picks the next token of each hypothesis, ``int [B, K]``, from log-probabilities ``[B, K, V]`` and a history."""

    def __call__(self, log_probs: jax.Array, history: History, /) -> jax.Array: ...


class _Progress(NamedTuple, Generic[S]):
    last: jax.Array  # int32 [B, K]: the token that the next step takes
    state: S
    done: jax.Array  # Bool [B, K]
    tokens: jax.Array  # int32 [B, K, T]
    lengths: jax.Array  # int32 [B, K]: filled positions of `tokens`
    log_probs: jax.Array  # float32 [B, K]
    token_log_probs: jax.Array  # float32 [B, K, T]
    forced: jax.Array  # int32 [B, K]: the number of tokens that the search does not choose
    max_lengths: jax.Array  # int32 [B, K]

    def active(self) -> jax.Array:
        """Returns True for each row that is not complete."""
        return ~self.done.all(1)

    def result(self) -> Hypotheses:
        """Returns the sequences so far."""
        return Hypotheses(self.tokens, self.lengths, self.log_probs, self.log_probs, self.token_log_probs)


def unroll(
    step: Step[S],
    state: S,
    choose: Choose,
    start: History,
    *,
    bos: int | None,
    eos: int | tuple[int, ...] | None,
    max_lengths: Int[Array, "B K"],
    pad: int = 0,
    transforms: Transforms = (),
) -> Hypotheses:
    """Extends each hypothesis independently until `eos` is chosen or its limit is reached, in one ``while_loop``.

    Args:
      step, state: see `jaxformer.decoding.api`.
      choose: picks tokens from the log-probabilities after all transforms.
      pad: the token that fills the positions after the end; it may also be chosen.
      start: the ``lengths`` forced tokens of each hypothesis, then `pad`, in a buffer of length T.
      bos: the token before the first; None if the first forced token begins the sequence.
      eos: the token that ends a sequence, or several; None if there is no such token.
      max_lengths: the maximum number of tokens of each hypothesis, forced ones included; at most T.
      transforms: see `jaxformer.decoding.transforms`; the rules of `well_formed` are not added.

    Raises:
      ValueError: the state has room for fewer tokens than T; `choose` returns another shape than [B, K].

    Returns:
      Hypotheses ``[B, K]`` with ``scores == log_probs``; the log-probabilities of forced tokens do not count.
    """
    api.check_start(state, start.tokens.shape[2], bos)
    last = start.tokens[:, :, 0] if bos is None else jnp.full(start.lengths.shape, bos, jnp.int32)
    lengths = jnp.full(start.lengths.shape, int(bos is None), jnp.int32)
    progress = _first(start, state, last, lengths, max_lengths)
    rules = _Rules(choose, as_transforms(transforms), api.ends_of(eos), pad, False)
    return _unroll(step, progress, start, rules)


class _Rules(NamedTuple):
    choose: Choose
    transforms: tuple[Transform, ...]
    ends: tuple[int, ...]
    pad: int
    may_be_stuck: bool
    """True if a hypothesis ends, without another token, where the transforms leave none."""
    capacities: Sequence[int] = ()


def _first(
    start: History, state: S, last: jax.Array, lengths: jax.Array, max_lengths: Int[Array, "B K"]
) -> _Progress[S]:
    """Returns the progress before the first step, which reads `last`; `state` has read the tokens before it."""
    max_lengths = jnp.minimum(max_lengths, start.tokens.shape[2]).astype(jnp.int32)
    return _Progress(
        last=last,
        state=state,
        done=lengths >= max_lengths,
        tokens=start.tokens,
        lengths=jnp.minimum(lengths, max_lengths),
        log_probs=jnp.zeros(lengths.shape, jnp.float32),
        token_log_probs=jnp.zeros(start.tokens.shape, jnp.float32),
        forced=start.lengths,
        max_lengths=max_lengths,
    )


def _unroll(step: Step[S], progress: _Progress[S], start: History, rules: _Rules) -> Hypotheses:
    """Extends each hypothesis after the forced tokens in `start`."""
    length = start.tokens.shape[2]
    next_log_probs = chain(*rules.transforms)
    read = dataclasses.replace(start, lengths=jnp.minimum(start.lengths, progress.max_lengths))

    def advance(step: Step[S], progress: _Progress[S], rows: jax.Array) -> _Progress[S]:
        last, state, done, tokens, lengths, log_probs, token_log_probs = progress[:7]
        scores, state = step(last, state)
        history = History(tokens, lengths, start.rows[rows])
        choices = next_log_probs(scores, history)
        api.check_ends(rules.ends, choices.shape[-1])
        check_given(read, choices.shape[-1])
        chosen = rules.choose(choices, history).astype(jnp.int32)
        if chosen.shape != lengths.shape:
            raise ValueError(f"choose must return a token for each hypothesis, {lengths.shape}, got {chosen.shape}")
        forced = lengths < progress.forced
        gained = jnp.take_along_axis(choices, chosen[..., None], axis=-1)[..., 0]
        if rules.may_be_stuck:
            done |= ~forced & (gained == -jnp.inf)
        gained = jnp.where(done | forced, 0.0, gained)
        in_prefix = jnp.take_along_axis(tokens, jnp.minimum(lengths, length - 1)[..., None], axis=-1)[..., 0]
        chosen = jnp.where(done, jnp.int32(rules.pad), jnp.where(forced, in_prefix, chosen))
        ends = api.is_any(chosen, rules.ends) & ~forced
        here = (jnp.arange(length)[None, None] == lengths[..., None]) & ~done[..., None]
        longer = jnp.where(done, lengths, lengths + 1)
        return progress._replace(
            last=chosen,
            state=state,
            done=done | ends | (longer >= progress.max_lengths),
            tokens=jnp.where(here, chosen[..., None], tokens),
            lengths=longer,
            log_probs=log_probs + gained,
            token_log_probs=jnp.where(here, gained[..., None], token_log_probs),
        )

    return run(progress, advance, step, rules.capacities)


def greedy(step: Step[S], state: S, limits: Limits[S], *, transforms: Transforms = ()) -> Hypotheses:
    """Takes the most probable token at every step, independently for each hypothesis.

    Args:
      step, state: see `jaxformer.decoding.api`.
      limits: where sequences begin and end, and how long they may be.
      transforms: one transform, or several in order; see `jaxformer.decoding.transforms`.

    Returns:
      Hypotheses ``[B, K]`` with ``scores == log_probs``.

    Raises:
      ConfigError: a prefix is longer than `max_length`; there is neither `bos` nor a prefix.
      ValueError: the state has room for fewer tokens than `max_length` needs; there are several `bos`; an `eos`, or a
        token of a prefix (outside ``jax.jit``, where it is known), is not in the vocabulary.

    >>> import jax.numpy as jnp
    >>> from jaxformer.decoding import Limits, TreeState
    >>> count_up = lambda tokens, state: (jnp.eye(8)[tokens + 1], state)  # the next number is the most probable
    >>> greedy(count_up, TreeState(jnp.zeros((1, 1))), Limits(max_length=6, bos=3, eos=7)).tokens.tolist()
    [[[4, 5, 6, 7, 0, 0]]]
    """
    return _extend(step, state, limits, lambda log_probs, history: first_highest(log_probs), transforms)


def sample(
    step: Step[S], state: S, limits: Limits[S], *, key: jax.Array | int, transforms: Transforms = ()
) -> Hypotheses:
    """Draws every token from the model's distribution after the transforms, independently for each hypothesis.

    Rules such as `min_length` are applied before filters such as `top_k`, in whatever order they are given: see
    `for_sampling`. If they leave no token for a hypothesis, it ends there.

    The random bits of a token are a function of the row's key, the hypothesis and the token's position, so they do not
    depend on the other rows, on the batch size or on padding. Hypotheses are not sorted by score.

    Args:
      key: one key or seed, into which the index of each row is folded; or one key per row, ``[B]``,
        such as ``jax.vmap(jax.random.fold_in, (None, 0))(key, indices)`` for the examples of a corpus. Keys come
        from ``jax.random.key`` or, as raw keys, from ``jax.random.PRNGKey``.
      step, state, limits, transforms: see `greedy`.

    Returns:
      Hypotheses ``[B, K]`` with ``scores == log_probs``, log-probabilities in the distribution after the transforms.

    Raises:
      ConfigError: see `greedy`.
      ValueError: see `greedy`; `key` is neither one key nor one per row.

    >>> import jax, jax.numpy as jnp
    >>> from jaxformer.decoding import Limits, TreeState, top_k
    >>> count_up = lambda tokens, state: (jnp.eye(8)[tokens + 1], state)
    >>> start, limits = TreeState(jnp.zeros((1, 1))), Limits(max_length=6, bos=3, eos=7)
    >>> sample(count_up, start, limits, key=jax.random.key(0), transforms=top_k(1)).tokens.tolist()
    [[[4, 5, 6, 7, 0, 0]]]
    """
    shape = api.check_state(state)
    fold_in_each = jax.vmap(jax.random.fold_in)
    keys = _keys_of_rows(key, shape[0])
    keys = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))(keys, jnp.arange(shape[1]))  # [B, K]

    def choose(log_probs: jax.Array, history: History) -> jax.Array:
        step_keys = jax.vmap(fold_in_each)(keys[history.rows], history.lengths)
        noise = jax.vmap(jax.vmap(lambda key: _gumbel(key, log_probs.shape[-1])))(step_keys)
        return first_highest(log_probs + noise)

    return _extend(step, state, limits, choose, transforms, sampled=True)


def forced(
    step: Step[S],
    state: S,
    tokens: Int[Array, "B K T"],
    lengths: Int[Array, "B K"],
    *,
    bos: int | None,
    pad: int = 0,
    prefix_lengths: Int[Array, " B"] | None = None,
    transforms: Transforms = (),
) -> Hypotheses:
    """Computes the log-probabilities of given sequences: of each token, and their sums (teacher forcing).

    With the transforms of a greedy or beam search, or for samples with
    ``for_sampling([*transforms, forbid([bos, pad])])``, they equal the ones that the search returned, except for an
    `eos` that was forced as "free" or that a transform had removed.

    Args:
      step, state: see `jaxformer.decoding.api`.
      tokens: without `bos`; `eos` counts like any other token.
      lengths: the number of tokens of each sequence, at most T; later ones are ignored.
      bos: the token before the first; None if the first token of each sequence is read without being scored.
      prefix_lengths: for each row, the number of first tokens that are not scored; 0 by default.
      transforms: see `jaxformer.decoding.transforms`.

    Raises:
      ValueError: `tokens` or `lengths` have another B or K than the state; the state has room for fewer than T tokens;
        a token (outside ``jax.jit``, where it is known) is not in the vocabulary.

    >>> import jax.numpy as jnp
    >>> from jaxformer.decoding import TreeState
    >>> fair_coin = lambda tokens, state: (jnp.zeros((*tokens.shape, 2)), state)
    >>> result = forced(fair_coin, TreeState(jnp.zeros((1, 1))), jnp.array([[[1, 0, 1]]]), jnp.array([[2]]), bos=0)
    >>> jnp.exp(result.token_log_probs).tolist(), jnp.exp(result.log_probs).tolist()
    ([[[0.5, 0.5, 1.0]]], [[0.25]])
    """
    shape = api.check_state(state)
    if tokens.shape[:2] != shape or lengths.shape != shape:
        raise ValueError(f"tokens and lengths must begin {shape} like the state, got {tokens.shape}, {lengths.shape}")
    first = int(bos is None)
    unscored = jnp.full(shape[:1], first) if prefix_lengths is None else jnp.maximum(prefix_lengths, first)
    position = jnp.arange(tokens.shape[2])[None, None]
    lengths = jnp.clip(lengths, 0, tokens.shape[2])
    tokens = jnp.where(position < lengths[..., None], tokens, pad).astype(jnp.int32)

    def choose(log_probs: jax.Array, history: History) -> jax.Array:
        check_given(History(tokens, lengths, history.rows), log_probs.shape[-1])
        index = jnp.minimum(history.lengths, tokens.shape[2] - 1)[..., None]
        return jnp.take_along_axis(tokens[history.rows], index, axis=-1)[..., 0]

    unscored = jnp.broadcast_to(unscored[:, None], shape).astype(jnp.int32)
    start = History(tokens, unscored, jnp.arange(shape[0], dtype=jnp.int32))
    return unroll(step, state, choose, start, bos=bos, eos=None, pad=pad, max_lengths=lengths, transforms=transforms)


def _extend(
    step: Step[S], state: S, limits: Limits[S], choose: Choose, transforms: Transforms, *, sampled: bool = False
) -> Hypotheses:
    """Extends the prefix of each row with the tokens that `choose` picks."""
    start = begin(state, limits)
    chosen_by = well_formed(transforms, limits, start.max_lengths, sampled=sampled)
    rules = _Rules(choose, chosen_by, limits.ends, limits.filler, True, limits.capacities)
    repeated = lambda x: jnp.broadcast_to(x[:, None], start.last.shape)
    lengths, max_lengths = repeated(start.lengths), repeated(start.max_lengths)
    progress = _first(start.history(), start.state, start.last, lengths, max_lengths)
    return _unroll(step, progress, start.history(), rules)


def _keys_of_rows(key: jax.Array | int, batch: int) -> jax.Array:
    """Returns one key for each row, ``[B]``: see `sample`."""
    is_seed = jnp.ndim(key) == 0 and jnp.issubdtype(jnp.result_type(key), jnp.integer)
    keys = jax.random.key(key) if is_seed else jnp.asarray(key)
    is_raw = keys.dtype == jnp.uint32 and keys.shape[-1:] == jax.eval_shape(jax.random.PRNGKey, 0).shape
    if is_raw:
        keys = jax.random.wrap_key_data(keys)
    if not jnp.issubdtype(keys.dtype, jax.dtypes.prng_key) or keys.shape not in ((), (batch,)):
        got = f"{keys.dtype}{list(keys.shape)}"
        raise ValueError(f"key must be a seed, one jax.random.key, or {batch} keys, one per row; got {got}")
    return keys if keys.ndim else jax.vmap(jax.random.fold_in, (None, 0))(keys, jnp.arange(batch))


def _gumbel(key: jax.Array, size: int) -> Float[Array, " V"]:
    """Returns Gumbel noise: the argmax of log-probabilities plus this noise is a draw from their distribution.

    The random bits do not depend on vmap or on the mesh.
    """
    bits = hashed_bits(key, jnp.arange(size, dtype=jnp.uint32))
    uniform = ((bits >> 9).astype(jnp.float32) + 0.5) * jnp.float32(2**-23)  # never 0 or 1
    return -jnp.log(-jnp.log(uniform))
