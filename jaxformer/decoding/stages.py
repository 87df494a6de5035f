"""A decoding loop in stages: caches get more room as sequences grow, and finished rows leave the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, Self, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxformer.decoding.api import Hypotheses, S, Step, StepOfRows, is_full


class SearchProgress(Protocol):
    """The progress of a search, for each row of the batch."""

    def active(self) -> Bool[Array, " B"]:
        """Returns True for each row that is not complete."""
        ...

    def take(self, rows: jax.Array, /) -> Self:
        """Selects rows by index."""
        ...

    def resize(self, capacity: int, /) -> Self:
        """Gives the state room for `capacity` positions."""
        ...

    def result(self) -> Hypotheses:
        """Returns the hypotheses so far."""
        ...

    @property
    def state(self) -> object:
        """The state of the model."""
        ...


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
            progress = progress.resize(growing.pop(0))
            continue
        result = progress.result()
        hypotheses = result if hypotheses is None else _put(hypotheses, rows, result)
        if not (fewer and isinstance(step, StepOfRows)):
            return hypotheses
        left = jnp.argsort(~progress.active(), stable=True)[:fewer]  # rows that are not complete come first
        progress, rows = progress.take(left), rows[left]
        step = step.take(left)


def _put(hypotheses: Hypotheses, rows: jax.Array, result: Hypotheses) -> Hypotheses:
    return jax.tree.map(lambda all_rows, some: all_rows.at[rows].set(some), hypotheses, result)
