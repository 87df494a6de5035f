"""The loss and the gradient of each example of a batch, from a batch loss.

They identify unusual training examples: those with a large loss, a large gradient, or a gradient that points away from
the gradients of examples known to be good.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
from jaxtyping import Array, Float

ParamsT = TypeVar("ParamsT")
BatchT = TypeVar("BatchT")
ResultT = TypeVar("ResultT")
Loss = Callable[[ParamsT, BatchT], tuple[jax.Array, jax.Array]]
"""``loss(params, batch) -> (sum, count)``, summed over a batch whose leaves are ``[B, ...]``."""


def per_example_losses(
    loss: Loss[ParamsT, BatchT], params: ParamsT, batch: BatchT, *, batch_size: int | None = None
) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
    """Returns the loss sum and the count of each example; summed over B, they are the batch's sum and count.

    An example is a batch of one row, so the loss must not mix examples, as batch normalization would. A row of padding
    has the sum 0 and the count 0.

    Args:
      batch_size: the number of examples to compute at a time; None for all. With 1, ``jax.vmap`` is not used, which
        experts without a capacity do not support.

    Raises:
      NotImplementedError: the loss has an operation that ``jax.vmap`` does not support.
      ValueError: `batch_size` is below 1.

    >>> import jax.numpy as jnp
    >>> squares = lambda w, x: (((w * x) ** 2).sum(), jnp.float32(x.size))
    >>> sums, counts = per_example_losses(squares, jnp.float32(2.0), jnp.array([[1.0, 1.0], [3.0, 0.0]]))
    >>> sums.tolist(), counts.tolist()
    ([8.0, 36.0], [2.0, 2.0])
    """
    return _each(lambda row: loss(params, row), batch, batch_size)


def per_example_gradients(
    loss: Loss[ParamsT, BatchT], params: ParamsT, batch: BatchT, *, batch_size: int | None = None
) -> tuple[ParamsT, tuple[Float[Array, " B"], Float[Array, " B"]]]:
    r"""Returns the gradient of each example's loss sum, with leaves ``[B, ...]``, and the `per_example_losses`.

    The gradient of the batch's mean loss, :math:`\sum_i s_i / \sum_i n_i`, is the sum of these gradients over B,
    divided by the sum of the counts. The inner product of an example's gradient with the gradient of a set of examples
    is its influence on the loss of that set in one step of gradient descent; the product with itself is its influence
    on its own loss (TracIn, Pruthi et al. 2020).

    The result takes the memory of B copies of `params`, so pass a few examples at a time.

    Args:
      batch_size: see `per_example_losses`.

    >>> import jax.numpy as jnp
    >>> squares = lambda w, x: (((w * x) ** 2).sum(), jnp.float32(x.size))
    >>> gradients, _ = per_example_gradients(squares, jnp.float32(2.0), jnp.array([[1.0, 1.0], [3.0, 0.0]]))
    >>> gradients.tolist()
    [8.0, 36.0]
    """
    one = jax.value_and_grad(loss, has_aux=True)
    (sums, counts), gradients = _each(lambda row: one(params, row), batch, batch_size)
    return gradients, (sums, counts)


def _each(function: Callable[[BatchT], ResultT], batch: BatchT, batch_size: int | None) -> ResultT:
    """Applies a function to each example as a batch of one row, `batch_size` at a time; results are ``[B, ...]``."""
    rows = jax.tree.map(lambda leaf: leaf[:, None], batch)
    if batch_size is None:
        try:
            return jax.vmap(function)(rows)
        except NotImplementedError as error:
            text = "the loss has an operation without jax.vmap, as experts without a capacity do; give batch_size=1"
            raise NotImplementedError(text) from error
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    return jax.lax.map(function, rows, batch_size=batch_size if batch_size > 1 else None)
