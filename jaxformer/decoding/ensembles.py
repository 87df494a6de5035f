"""Ensembles: the steps of several models, combined into one step that averages their predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxformer.decoding.api import ContextStep, S, State, Step, StepOfRows, is_full, resized
from jaxformer.errors import ConfigError
from jaxformer.reprs import brief

M = TypeVar("M")

Average: TypeAlias = Literal["log", "probability"]
"""The mean of the models' log-probabilities (a product of experts) or of their probabilities (a mixture)."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EnsembleState:
    """The states of an ensemble's models, which read the same tokens."""

    states: tuple[State, ...]

    __repr__ = brief

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows, B, and of hypotheses per row, K."""
        return self.states[0].shape

    @property
    def capacity(self) -> int | None:
        """The number of tokens for which every model has room; None if there is no limit."""
        return min((n for s in self.states if (n := getattr(s, "capacity", None)) is not None), default=None)

    def reorder(self, parents: jax.Array, /) -> EnsembleState:
        """Replaces hypothesis k of row b with hypothesis ``parents[b, k]`` of that row, in every model."""
        return EnsembleState(tuple(state.reorder(parents) for state in self.states))

    def take(self, rows: jax.Array, /) -> EnsembleState:
        """Selects rows by index, with all their hypotheses."""
        return EnsembleState(tuple(state.take(rows) for state in self.states))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StackedState:
    """The states of models of equal shapes, stacked: every leaf has a leading dimension of models."""

    states: Any

    __repr__ = brief

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows, B, and of hypotheses per row, K."""
        return self._first().shape

    @property
    def capacity(self) -> int | None:
        """The number of tokens for which every model has room; None if there is no limit."""
        return getattr(self._first(), "capacity", None)

    def _first(self) -> State:
        return jax.tree.map(lambda leaf: leaf[0], self.states)

    def is_full(self) -> Bool[Array, ""]:
        """Returns True if a hypothesis has no room for another token."""
        return is_full(self._first())

    def resize(self, capacity: int, /) -> StackedState:
        """Returns the states with room for `capacity` tokens."""
        return StackedState(jax.vmap(lambda state: resized(state, capacity))(self.states))

    def reorder(self, parents: jax.Array, /) -> StackedState:
        """Replaces hypothesis k of row b with hypothesis ``parents[b, k]`` of that row, in every model."""
        return StackedState(jax.vmap(lambda state: state.reorder(parents))(self.states))

    def take(self, rows: jax.Array, /) -> StackedState:
        """Selects rows by index, with all their hypotheses."""
        return StackedState(jax.vmap(lambda state: state.take(rows))(self.states))


def ensemble(steps: Sequence[Step[Any]], *, average: Average = "probability") -> Step[EnsembleState]:
    """Returns the combined step of several models with one vocabulary; its state is an `EnsembleState`.

    The scores are log-probabilities. With "log" they are not normalized, but a search normalizes all scores.

    Raises:
      ConfigError: there is no model, or `average` is neither "log" nor "probability".

    >>> import jax.numpy as jnp
    >>> from jaxformer.decoding import TreeState
    >>> coin = lambda p: lambda tokens, state: (jnp.log(jnp.array([[[p, 1 - p]]])), state)
    >>> step = ensemble([coin(0.5), coin(0.9)])
    >>> scores, _ = step(jnp.zeros((1, 1), jnp.int32), EnsembleState((TreeState(jnp.zeros((1, 1))),) * 2))
    >>> [round(p, 3) for p in jnp.exp(scores)[0, 0].tolist()]
    [0.7, 0.3]
    """
    if not steps:
        raise ConfigError("an ensemble must have at least one model, got none")

    def step(tokens: jax.Array, state: EnsembleState, steps) -> tuple[jax.Array, EnsembleState]:
        results = (one(tokens, of_one) for one, of_one in zip(steps, state.states, strict=True))
        scores, states = zip(*results, strict=True)
        return mean_log_probs(jnp.stack([x.astype(jnp.float32) for x in scores]), average), EnsembleState(states)

    take = lambda steps, rows: tuple(step.take(rows) for step in steps)
    together = ContextStep(step, tuple(steps), take)
    return together if all(isinstance(one, StepOfRows) for one in steps) else together.__call__


def stacked_ensemble(
    step: Callable[[M, jax.Array, S], tuple[jax.Array, S]],
    models: M,
    *,
    average: Average = "probability",
    take: Callable[[M, jax.Array], M] | None = None,
) -> Step[StackedState]:
    """Returns the combined step of models of equal shapes, computed by ``jax.vmap``; its state is a `StackedState`.

    Args:
      step: ``step(model, tokens, state) -> (scores, state)`` of one model.
      models: a pytree of everything that differs between the M models (parameters, contexts), with leaves ``[M, ...]``.
      take: ``take(models, rows)`` selects rows of the models' contexts, so that complete rows leave the batch.

    Raises:
      ConfigError: `average` is neither "log" nor "probability".
    """

    def together(tokens: jax.Array, state: StackedState, models: M) -> tuple[jax.Array, StackedState]:
        scores, states = jax.vmap(step, (0, None, 0))(models, tokens, state.states)
        return mean_log_probs(scores.astype(jnp.float32), average), StackedState(states)

    if take is None:
        return lambda tokens, state: together(tokens, state, models)
    return ContextStep(together, models, take)


def mean_log_probs(scores: Float[Array, "M *B V"], average: Average) -> Float[Array, "*B V"]:
    """Returns the mean of several models' log-probabilities, or the logarithm of the mean of their probabilities."""
    if average not in get_args(Average):
        raise ConfigError(f"average must be one of {', '.join(get_args(Average))}, got {average!r}")
    log_probs = jax.nn.log_softmax(scores, axis=-1)
    if average == "log":
        return log_probs.mean(0)
    return jax.nn.logsumexp(log_probs, axis=0) - jnp.log(jnp.float32(scores.shape[0]))
