"""The contract between a search and a model, and the result of every search.

A model is one function, ``step(tokens, state) -> (scores, state)``. It takes the last token of each of K hypotheses
for each of the B rows of a batch, ``int32 [B, K]``, and returns the scores of every possible next token, ``[B, K, V]``:
logits, or log-probabilities. The state holds everything that differs between hypotheses, such as their positions.
`step` closes over constants (the encoder's output, its keys and values). If it can select their rows (`ContextStep`),
complete rows leave the batch of a search.

A search uses only `shape`, `reorder` and `take` of a state, so a state may also hold arrays that the hypotheses of a
row share. A state with room for a fixed number of tokens also has an attribute `capacity`: an int, or None if there is
no limit. A search that might need more raises an error. If that room can grow, the state also has two methods,
``resize(capacity)``, which returns it with room for that many tokens, and ``is_full()``, True (``Bool []``) if a
hypothesis has no room for another token; then a search can begin with little room (`capacities`).
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxformer.axes import has_known_values
from jaxformer.reprs import brief

T = TypeVar("T")


class State(Protocol):
    """The memory of a model between steps: a pytree whose structure, shapes and dtypes never change."""

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows, B, and of hypotheses per row, K."""
        ...

    def reorder(self, parents: jax.Array, /) -> Self:
        """Replaces hypothesis k of row b with the one at ``parents[b, k]``; `parents` is ``int32 [B, K]``."""
        ...

    def take(self, rows: jax.Array, /) -> Self:
        """Selects rows by index, ``int32 [B2]``, with all their hypotheses."""
        ...


S = TypeVar("S", bound=State)


class Step(Protocol[S]):
    """One step of a model, from last tokens ``[B, K]`` and a state to scores ``[B, K, V]`` and the next state."""

    def __call__(self, tokens: jax.Array, state: S, /) -> tuple[jax.Array, S]: ...


@runtime_checkable
class StepOfRows(Step[S], Protocol[S]):
    """A step whose rows can be selected, so that complete rows leave the batch of a search: see `ContextStep`."""

    def take(self, rows: jax.Array, /) -> Step[S]:
        """Selects rows by index, ``int32 [B2]``."""
        ...


def _take(context, rows: jax.Array):
    return context.take(rows)


@dataclasses.dataclass(frozen=True)
class ContextStep(Generic[S, T]):
    """A step of a model with its context: ``step(tokens, state, context) -> (scores, state)``.

    As ``lambda tokens, state: step(tokens, state, context)``, but once three quarters of the rows of a search are
    complete, they leave the batch, so that no work is wasted on them while long rows continue.
    """

    step: Callable[[jax.Array, S, T], tuple[jax.Array, S]]
    context: T
    """The arrays that steps read and never change, such as the encoder's output for each row."""
    select: Callable[[T, jax.Array], T] = _take
    """Selects rows of the context by index."""

    __repr__ = brief

    def __call__(self, tokens: jax.Array, state: S, /) -> tuple[jax.Array, S]:
        """Returns the scores of the next token of each hypothesis, and the next state."""
        return self.step(tokens, state, self.context)

    def take(self, rows: jax.Array, /) -> ContextStep[S, T]:
        """Selects rows by index."""
        return dataclasses.replace(self, context=self.select(self.context, rows))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TreeState(Generic[T]):
    """A state around any pytree whose leaves all have leading dimensions ``[B, K]``; `step` reads and replaces `tree`.

    >>> import jax.numpy as jnp
    >>> state = TreeState({"position": jnp.array([[3, 4]])})
    >>> state.shape, state.reorder(jnp.array([[1, 1]])).tree["position"].tolist()
    ((1, 2), [[4, 4]])
    """

    tree: T

    __repr__ = brief

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows, B, and of hypotheses per row, K.

        Raises:
          ValueError: the leaves do not all begin with the same two dimensions.
        """
        shapes: set[Any] = {getattr(leaf, "shape", ())[:2] for leaf in jax.tree.leaves(self.tree)}  # a number has none
        if len(shapes) != 1 or len(next(iter(shapes))) != 2:
            raise ValueError(f"every leaf of a TreeState must begin [B, K, ...], got leading dims {sorted(shapes)}")
        return next(iter(shapes))

    def reorder(self, parents: jax.Array, /) -> TreeState[T]:
        """Replaces hypothesis k of row b with hypothesis ``parents[b, k]`` of that row."""
        return TreeState(gather(self.tree, parents))

    def take(self, rows: jax.Array, /) -> TreeState[T]:
        """Selects rows by index, with all their hypotheses."""
        return TreeState(jax.tree.map(lambda leaf: leaf[rows], self.tree))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Hypotheses:
    """Decoded sequences, K for each of B rows; a beam search and `rerank` return the best first.

    The tokens of a prefix come first and count in `lengths`, but not in log-probabilities.
    """

    tokens: jax.Array  # int32 [B, K, T]: without bos, with eos if it was reached, then pad
    lengths: jax.Array  # int32 [B, K]: the number of tokens, eos included
    log_probs: jax.Array  # float32 [B, K]: sum over the chosen tokens
    scores: jax.Array  # float32 [B, K]: the values that rank hypotheses
    token_log_probs: jax.Array  # float32 [B, K, T]: one per chosen token; 0 for a prefix and for pad

    __repr__ = brief


def ends_of(eos: int | Sequence[int] | None) -> tuple[int, ...]:
    """Returns the tokens that end a sequence: one, several, or none."""
    if eos is None:
        return ()
    is_array = isinstance(eos, np.ndarray | jax.Array) and has_known_values(eos)
    given: Any = np.asarray(eos).tolist() if is_array else eos
    return tuple(given) if isinstance(given, Sequence) else (given,)


def check_ends(ends: tuple[int, ...], vocab_size: int) -> None:
    """Checks that the tokens that end a sequence are in the vocabulary: no other one would ever be chosen."""
    known = [token for token in ends if not isinstance(token, jax.Array)]
    if outside := [token for token in known if not 0 <= token < vocab_size]:
        raise ValueError(f"eos must be in [0, V = {vocab_size}), or None if no token ends a sequence, got {outside[0]}")


def check_scores(what: str, scores: T, shape: tuple[object, ...]) -> T:
    """Returns the scores that a user's function made, after checking that there is one for each that it got.

    Raises:
      ValueError: their shape is another one, which could broadcast or leave out tokens; or they are not floats.
    """
    dtype: Any = getattr(scores, "dtype", None)
    got = getattr(scores, "shape", type(scores).__name__)
    if got != shape or not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"{what} must return floats of the shape that it was given, {shape}, got {dtype} {got}")
    return scores


def is_any(tokens: jax.Array, among: tuple[int, ...]) -> jax.Array:
    """Returns True for each token that is in `among`."""
    return functools.reduce(operator.or_, (tokens == token for token in among), jnp.zeros_like(tokens, bool))


def gather(tree: T, indices: Int[Array, "B K2"]) -> T:
    """Selects hypotheses of each row, in every leaf ``[B, K, ...]`` of a pytree."""
    rows = jnp.arange(indices.shape[0])[:, None]
    return jax.tree.map(lambda leaf: leaf[rows, indices], tree)


def check_state(state: State) -> tuple[int, int]:
    """Checks that an object is a decoding state; returns its B and K."""
    missing = [name for name in ("shape", "reorder", "take") if not hasattr(state, name)]
    if missing:
        raise ValueError(
            f"a decoding state must have shape, reorder and take; {type(state).__name__} lacks {', '.join(missing)}. "
            "Wrap a pytree in which every leaf begins [B, K, ...] in decoding.TreeState"
        )
    return state.shape


def check_start(state: State, max_length: int, bos: int | None, capacities: Sequence[int] = ()) -> None:
    """Checks that `bos` is one token, and that a state has, or will have, room for the tokens that a search reads.

    These are `bos` and all of `max_length` but the last.

    Raises:
      ValueError: `bos` is several tokens, the state's `capacity` is lower, or `capacities` do not begin with it or are
        not in ascending order.
    """
    if bos is not None and jnp.size(bos) != 1:
        raise ValueError(
            f"bos must be one token for all sequences, got an array of shape {list(jnp.shape(bos))}; give tokens that "
            "differ as prefix=tokens[:, None], with bos=None"
        )
    capacity, needed = getattr(state, "capacity", None), max_length - (bos is None)
    if capacities:
        if capacity != capacities[0] or list(capacities) != sorted(set(capacities)):
            raise ValueError(f"capacities must ascend from that of the state, {capacity}, got {list(capacities)}")
        capacity = capacities[-1]
    if capacity is not None and capacity < needed:
        raise ValueError(
            f"a search of max_length={max_length} reads up to {needed} tokens, but the state has room for {capacity}; "
            f"start the model with length={needed}, or lower max_length"
        )


def _grows(x: object) -> bool:
    return hasattr(x, "is_full")  # arrays of NumPy have a `resize`, too


def resized(state: T, capacity: int) -> T:
    """Returns a state, or states within it, with room for `capacity` tokens."""
    return jax.tree.map(lambda x: x.resize(capacity) if _grows(x) else x, state, is_leaf=_grows)


def is_full(state: object) -> jax.Array:
    """Returns True (``Bool []``) if a hypothesis has no room for another token."""
    full = [x.is_full() for x in jax.tree.leaves(state, is_leaf=_grows) if _grows(x)]
    return functools.reduce(operator.or_, full)


BLOCK = 64
"""The length of the blocks whose maxima `top_scores` compares first."""


def first_highest(scores: Float[Array, "*batch V"]) -> Int[Array, "*batch"]:
    """Returns the index of the highest score, the first in a tie, like ``jnp.argmax``.

    >>> first_highest(jnp.array([[1.0, 3.0, 3.0]])).tolist()
    [1]
    """
    lower = scores < scores.max(-1, keepdims=True)  # False for NaN
    index = jax.lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 1)
    return jnp.where(lower, scores.shape[-1], index).min(-1)


def top_scores(
    scores: Float[Array, "*batch V"], count: int
) -> tuple[Float[Array, "*batch count"], Int[Array, "*batch count"]]:
    """Returns the `count` highest scores and their indices, ties in order of index, like ``jax.lax.top_k``.

    The highest scores are in the `count` blocks with the highest maxima or after the last whole block: only these are
    sorted.

    >>> [x.tolist() for x in top_scores(jnp.array([[1.0, 3.0, 2.0, 3.0]]), 2)]
    [[[3.0, 3.0]], [[1, 3]]]
    """
    batch, num_blocks = scores.shape[:-1], scores.shape[-1] // BLOCK
    if 2 * count >= num_blocks:
        return jax.lax.top_k(scores, count)
    whole = num_blocks * BLOCK
    blocks = scores[..., :whole].reshape(*batch, num_blocks, BLOCK)
    chosen = jnp.sort(jax.lax.top_k(blocks.max(-1), count)[1], -1)  # in order of index, so that ties are
    candidates = jnp.take_along_axis(blocks, chosen[..., None], -2).reshape(*batch, count * BLOCK)
    # The rest is not padded to a block: that would keep XLA from vectorizing the computation of the scores.
    best, index = jax.lax.top_k(jnp.concatenate([candidates, scores[..., whole:]], -1), count)
    block = jnp.take_along_axis(chosen, jnp.minimum(index // BLOCK, count - 1), -1)
    return best, jnp.where(index < count * BLOCK, block * BLOCK + index % BLOCK, whole + index - count * BLOCK)
