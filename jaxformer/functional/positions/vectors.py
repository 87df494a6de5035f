"""Position vectors for embeddings: sinusoids, learned tables and how to resize them, and plain numbers."""

from __future__ import annotations

import functools
from typing import Any, Literal

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.errors import InconclusiveDimensionOperation
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from jaxformer.axes import has_known_values


def sinusoidal(
    positions: Int[Array, "*batch"] | Int[np.ndarray, "*batch"],
    *,
    dim: int,
    base: float = 10_000.0,
    layout: Literal["interleaved", "halves", "fairseq"] = "interleaved",
) -> Float[Array, "*batch D"]:
    r"""Returns position vectors of sines and cosines in float32, defined for every position.

    .. math:: p_t(2k) = \sin(\omega_k t), \quad p_t(2k+1) = \cos(\omega_k t), \quad \omega_k = base^{-2k/D}

    The product :math:`p_t \cdot p_{t+o} = \sum_k \cos(\omega_k o)` depends only on the offset. Positions in a NumPy
    array become a constant of the program, computed once in float64, because sines are slow on a CPU.

    Args:
      layout: "interleaved" alternates sines and cosines, as in the formula; "halves" puts all sines before all cosines.
        Hugging Face's Marian uses this order and the frequencies above. "fairseq" has this order, too, but the
        frequencies :math:`base^{-k/(D/2 - 1)}` of fairseq, Marian (C++) and T5X; fairseq also counts positions from
        ``padding_idx + 1``.

    Raises:
      ValueError: `dim` is odd, or `layout` is unknown.

    >>> import jax.numpy as jnp, numpy as np
    >>> print(np.asarray(sinusoidal(jnp.arange(2), dim=4)).round(2))
    [[0.   1.   0.   1.  ]
     [0.84 0.54 0.01 1.  ]]
    """
    if dim % 2:
        raise ValueError(f"dim must be even to pair sines with cosines, got {dim}")
    numpy, dtype = (np, np.float64) if isinstance(positions, np.ndarray) else (jnp, np.float32)
    steps = max(1, dim - 2) if layout == "fairseq" else dim
    frequency = (base ** (-np.arange(0, dim, 2) / steps)).astype(dtype)
    angle = positions[..., None].astype(dtype) * frequency.reshape((1,) * positions.ndim + (-1,))
    if layout not in ("interleaved", "halves", "fairseq"):
        raise ValueError(f"layout must be 'interleaved', 'halves' or 'fairseq', got {layout!r}")
    pairs = numpy.stack([numpy.sin(angle), numpy.cos(angle)], -1 if layout == "interleaved" else -2)
    return jnp.asarray(pairs, jnp.float32).reshape(*positions.shape, dim)


def learned(table: Float[Array, "L D"], positions: Int[Array, "*batch"]) -> Float[Array, "*batch D"]:
    """Returns rows `positions` of the table.

    Under tracing the values of positions are unknown and not checked: one beyond the table gets its last row.

    Raises:
      ValueError: the table has no row for a position; the message has the position and the range.

    >>> import jax.numpy as jnp
    >>> learned(jnp.array([[0., 1.], [2., 3.], [4., 5.]]), jnp.array([2, 0])).tolist()
    [[4.0, 5.0], [0.0, 1.0]]
    """
    check_given_positions(positions, 0, table.shape[0])
    return table[positions]


def check_positions(length: int, table_length: int) -> None:
    """Checks that a sequence is not longer than the table of positions."""
    if length > table_length:
        raise ValueError(
            f"a sequence of length {length} has no learned position beyond {table_length}; "
            "shorten it, train with a larger max_positions, or use sinusoidal positions"
        )


def check_given_positions(positions: ArrayLike, offset: int, table_length: int) -> None:
    """Checks that positions are in ``[-offset, table_length)``, for which the table has rows.

    Positions whose values are unavailable, because they are traced or held by other processes, are not checked.
    """
    if not has_known_values(positions):
        return
    values = np.asarray(positions)
    if (wrong := values[(values < -offset) | (values >= table_length)]).size:
        raise ValueError(
            f"position {wrong[0]} has no learned vector: the table covers {-offset} to {table_length - 1}; "
            "train with a larger max_positions, or use sinusoidal positions"
        )


def raw_positions(
    positions: Int[Array, "*batch"] | Int[np.ndarray, "*batch"], *, dim: int = 1
) -> Float[Array, "*batch D"]:
    """Returns each position t as a float32 vector of `dim` entries equal to t, which is unbounded.

    To count from 1, pass ``1 + jnp.arange(N)``.

    >>> import jax.numpy as jnp
    >>> raw_positions(jnp.arange(3), dim=2).tolist()
    [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    """
    t = jnp.asarray(positions, jnp.float32)[..., None]
    return jnp.broadcast_to(t, (*t.shape[:-1], dim))


def normalized_positions(
    positions: Int[Array, "*batch"] | Int[np.ndarray, "*batch"],
    *,
    length: int | Int[Array, "*#batch"] | Int[np.ndarray, "*#batch"],
    dim: int = 1,
) -> Float[Array, "*batch D"]:
    r"""Returns :math:`t / (N - 1)`, which lies in [0, 1] for :math:`0 \le t < N`, as vectors of `dim` equal entries.

    One step is :math:`1 / (N - 1)`, so the value of a position depends on the length of the sequence, and a decoder
    that does not know the final length cannot use it.

    Args:
      length: N, for all sequences (an integer, or a symbol as in ``jax.export.symbolic_shape``), or in an array that
        broadcasts to `positions`, such as ``[B, 1]``; at N = 1 the only position is 0.

    Raises:
      ValueError: a length that is known at trace time is below 1.

    >>> import jax.numpy as jnp
    >>> normalized_positions(jnp.arange(5), length=5).ravel().tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    has_value = isinstance(length, int | np.integer | np.ndarray | jax.Array)  # a symbol has none
    if has_value and not isinstance(length, jax.core.Tracer) and np.min(length, initial=1) < 1:
        raise ValueError(f"length must be at least 1, got {np.min(length)}")
    last = jnp.maximum(jnp.asarray(length, jnp.float32) - 1, 1)
    t = jnp.asarray(positions, jnp.float32)
    t = t / jnp.broadcast_to(last, t.shape)
    return jnp.broadcast_to(t[..., None], (*t.shape, dim))


def first_positions(length: Any, *, most: int) -> Int[np.ndarray, " T"] | Int[Array, " T"]:
    """Returns the positions of a sequence: a NumPy array (a constant of the program) if there are at most `most`.

    For a symbolic length (``jax.export.symbolic_shape``) with a constraint such as ``s <= 512``, the result covers the
    longest sequence, or up to twice its length; use the first `length` of what you compute from it. Without a
    constraint the result is a JAX array.

    >>> first_positions(3, most=8), first_positions(3, most=2).tolist()
    (array([0, 1, 2]), [0, 1, 2])
    """
    if isinstance(length, int):
        return np.arange(length) if length <= most else jnp.arange(length)
    bounds = (1 << exponent for exponent in range(most.bit_length()))
    bound = next((bound for bound in bounds if _is_at_most(length, bound)), None)
    return jnp.arange(length) if bound is None else np.arange(bound)


def _is_at_most(length: Any, bound: int) -> bool:
    try:
        return bool(length <= bound)
    except InconclusiveDimensionOperation:
        return False


def resize_positions(
    table: Float[Array, "L D"],
    length: int,
    *,
    method: Literal["truncate", "extend", "copy", "interpolate"],
    key: jax.Array | None = None,
) -> Float[Array, "length D"]:
    """Returns a table for `length` positions, for loading or fine-tuning a model.

    Args:
      method: how to make the table.

        * ``truncate`` keeps the first rows.
        * ``extend`` appends new rows, drawn from `key` with the standard deviation of the old ones, or zeros without a
          key. Results for short inputs do not change.
        * ``copy`` repeats the table, so that the model still knows the order within each L positions.
        * ``interpolate`` stretches the L rows linearly over `length` positions and keeps both ends, as for images of
          another size (Dosovitskiy et al. 2021, section 3.2). Every position changes, and none is untrained.

    Raises:
      ValueError: the method is unknown, or cannot make a table of this length.

    >>> import jax.numpy as jnp
    >>> table = jnp.array([[0.], [2.], [4.]])
    >>> [resize_positions(table, 5, method=m).ravel().tolist() for m in ("extend", "copy", "interpolate")]
    [[0.0, 2.0, 4.0, 0.0, 0.0], [0.0, 2.0, 4.0, 0.0, 2.0], [0.0, 1.0, 2.0, 3.0, 4.0]]
    """
    old = table.shape[0]
    if length < 1 or (method == "truncate" and length > old) or (method in ("extend", "copy") and length < old):
        raise ValueError(f"cannot {method} a table of {old} positions to {length}")
    if method == "truncate":
        return table[:length]
    if method == "extend":
        shape = (length - old, table.shape[1])
        new = jnp.zeros(shape, table.dtype)
        if key is not None:
            new = (jax.random.normal(key, shape) * table.astype(jnp.float32).std()).astype(table.dtype)
        return jnp.concatenate([table, new])
    if method == "copy":
        return table[jnp.arange(length) % old]
    if method == "interpolate":
        position = jnp.linspace(0, old - 1, length)
        below = jnp.minimum(position.astype(jnp.int32), max(old - 2, 0))
        fraction = (position - below.astype(jnp.float32))[:, None]
        rows = table.astype(jnp.float32)
        return (rows[below] * (1 - fraction) + rows[jnp.minimum(below + 1, old - 1)] * fraction).astype(table.dtype)
    raise ValueError(f"method must be truncate, extend, copy or interpolate, got {method!r}")


def resize_grid_positions(
    table: Float[Array, "L D"],
    grid: tuple[int, int],
    new_grid: tuple[int, int],
    *,
    num_class_rows: int = 0,
    method: Literal["bilinear", "bicubic"] = "bilinear",
) -> Float[Array, "new_L D"]:
    """Returns a table for another grid of patches, for images of another size (Dosovitskiy et al. 2021, section 3.2).

    The rows of the table are the patches in row-major order, after `num_class_rows` rows that belong to no patch, such
    as the class token's, and stay unchanged.

    Args:
      grid, new_grid: numbers of patches down and across.
      method: "bilinear" keeps the corners of the grid in place (``align_corners=True`` in PyTorch; the order 1 of
        ``scipy.ndimage.zoom`` in the authors' code). "bicubic" is the method of Hugging Face, and of PyTorch with
        ``align_corners=False``: patches keep their share of the image, and the border is repeated.

    Raises:
      ValueError: the table does not have ``num_class_rows + rows * columns`` rows, a grid is empty, `num_class_rows` is
        negative, or the method is unknown.

    >>> import jax.numpy as jnp
    >>> table = jnp.array([[9.], [0.], [2.], [4.], [6.]])          # a class row, then 2 x 2 patches
    >>> resize_grid_positions(table, (2, 2), (2, 3), num_class_rows=1).ravel().tolist()
    [9.0, 0.0, 1.0, 2.0, 4.0, 5.0, 6.0]
    """
    if min(*grid, *new_grid) < 1:
        raise ValueError(f"a grid must have at least 1 x 1 patches, got {grid} and {new_grid}")
    if num_class_rows < 0:
        raise ValueError(f"num_class_rows must be at least 0, got {num_class_rows}")
    if table.shape[0] != num_class_rows + grid[0] * grid[1]:
        raise ValueError(
            f"a table of {grid[0]} x {grid[1]} patches and {num_class_rows} class rows must have "
            f"{num_class_rows + grid[0] * grid[1]} rows, got {table.shape[0]}"
        )
    patches = table[num_class_rows:].astype(jnp.float32).reshape(*grid, -1)
    if method == "bilinear":
        down, across = (functools.partial(resize_positions, length=length, method="interpolate") for length in new_grid)
        patches = jax.vmap(across)(jax.vmap(down, 1, 1)(patches))
    elif method == "bicubic":
        down, across = (_bicubic(*sizes) for sizes in zip(grid, new_grid, strict=True))
        patches = jnp.einsum("uh,vw,hwd->uvd", down, across, patches, precision="highest")
    else:
        raise ValueError(f"method must be bilinear or bicubic, got {method!r}")
    return jnp.concatenate([table[:num_class_rows], patches.reshape(-1, table.shape[1]).astype(table.dtype)])


def _bicubic(length: int, new_length: int) -> np.ndarray:
    """Returns the weights ``[new_length, length]`` of Keys' cubic convolution (1981) with a = -0.75."""
    position = (np.arange(new_length) + 0.5) * length / new_length - 0.5
    weights = np.zeros((new_length, length), np.float32)
    for offset in (-1, 0, 1, 2):
        index = np.floor(position).astype(int) + offset
        x = np.abs(position - index)
        near, far = (1.25 * x - 2.25) * x**2 + 1, ((-0.75 * x + 3.75) * x - 6) * x + 3
        np.add.at(weights, (np.arange(new_length), np.clip(index, 0, length - 1)), np.where(x <= 1, near, far))
    return weights
