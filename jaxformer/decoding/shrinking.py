"""A decoding loop that drops finished rows from the batch and continues with fewer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxformer.decoding.api import Hypotheses, S, Step


class StepOfRows(Protocol[S]):
    """Maps the indices of some rows, ``int32 [B2]``, to a `Step` for these rows only.

    For example ``lambda sentences: functools.partial(step, context.take(sentences))``.
    """

    def __call__(self, sentences: jax.Array, /) -> Step[S]: ...


class SearchProgress(Protocol):
    """The progress of a search, for each row of the batch."""

    def active(self) -> Bool[Array, " B"]:
        """Returns True for each row that is not complete."""
        ...

    def take(self, sentences: jax.Array, /) -> Self:
        """Selects rows by index."""
        ...

    def result(self) -> Hypotheses:
        """Returns the hypotheses so far."""
        ...


R = TypeVar("R", bound=SearchProgress)

Advance: TypeAlias = Callable[[R, Int[Array, " B"]], R]
"""One step of a search; its second argument holds the indices, in the full batch, of the rows that are left."""


def run(
    rows: R, advance_with: Callable[[Step[S]], Advance[R]], step: Step[S], step_of_rows: StepOfRows[S] | None
) -> Hypotheses:
    """Runs a search until all rows are complete, and returns the hypotheses.

    With `step_of_rows`, a batch of at least 8 rows drops the complete rows as soon as three quarters are complete, so
    that no work is wasted on them while long rows continue. The program then has one loop for each number of rows.

    Args:
      advance_with: maps a step of the model to a step of the search.
    """
    batch = rows.active().shape[0]
    sentences, found = jnp.arange(batch, dtype=jnp.int32), None
    while True:
        number = sentences.shape[0]
        fewer = number // 4 if step_of_rows is not None and number >= 8 else 0
        advance = advance_with(step)
        rows = jax.lax.while_loop(
            lambda rows, fewer=fewer: rows.active().sum() > fewer,
            lambda rows, advance=advance, sentences=sentences: advance(rows, sentences),
            rows,
        )
        result = rows.result()
        found = result if found is None else _put(found, sentences, result)
        if step_of_rows is None or not fewer:
            return found
        left = jnp.argsort(~rows.active(), stable=True)[:fewer]  # rows that are not complete come first
        rows, sentences = rows.take(left), sentences[left]
        step = step_of_rows(sentences)


def _put(found: Hypotheses, sentences: jax.Array, result: Hypotheses) -> Hypotheses:
    return jax.tree.map(lambda all_rows, some: all_rows.at[sentences].set(some), found, result)
