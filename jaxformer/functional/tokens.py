"""Sequences of tokens with everything that models and losses need to know of them, and their padding.

Padding has no effect: its contents may be NaN, and 0 times NaN is NaN, so products with 0 do not remove it.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Shaped

from jaxformer import masks
from jaxformer.functional.dropout import every_index, keep
from jaxformer.reprs import brief

ArrayT = TypeVar("ArrayT")
"""``np.ndarray`` on the host, ``jax.Array`` on devices."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tokens(Generic[ArrayT]):
    """B sequences of T tokens. Batches are made of these; models read them, and losses count their valid tokens.

    A model also takes an array of ids, which stands for ``Tokens(ids)``.

    >>> import jax.numpy as jnp
    >>> Tokens(jnp.array([[4, 5, 0]]), valid=jnp.array([[True, True, False]])).mask().dense(3, 3)[0, 0].tolist()
    [[True, True, False], [True, True, False], [True, True, False]]
    """

    ids: ArrayT  # int [B, T], in [0, V); any value at padding
    valid: ArrayT | None = None  # Bool [B, T]: True where a token is not padding; None: everywhere
    positions: ArrayT | None = None
    """Absolute positions, ``int [B, T]``, 0, 1, 2, ... by default. They do not widen what a token sees."""
    segments: ArrayT | None = None
    """The index of the packed sequence that each token belongs to, ``int [B, T]``: a token sees its own sequence only.

    Give `positions` that restart with each sequence, unless the position scheme is relative.
    """
    types: ArrayT | None = None  # int [B, T]: token types, for a model that has them; None: 0
    shown: ArrayT | None = None
    """``Bool [B, T]``: True where a model reads the vector of the token; elsewhere it reads 0 there, with the vector of
    the position (see `token_cutoff`). None: everywhere."""
    right_padded: bool = dataclasses.field(default=False, metadata={"static": True})
    """Promises that `valid` is False only at the ends of rows.

    A causal mask alone then hides padding from every other token, and attention functions can use their causal kernels,
    without a mask for each row.
    """

    __repr__ = brief

    @property
    def shape(self) -> tuple[int, int]:
        """The number of sequences, B, and their length, T."""
        ids: Any = self.ids
        batch_size, length = ids.shape
        return batch_size, length

    def mask(self, *, causal: bool = False, window: int | None = None) -> masks.Mask | None:
        """Returns the mask of self-attention: it hides padding and other segments; None if there is nothing to hide.

        Args:
          causal: True to hide the tokens after each one in its row and, without `segments`, also those at later
            positions, so that a row that is not in the order of its positions does not see the future either.
          window: the number of tokens, itself included, that a token sees with `causal`: those W or more places before
            it in the row and, without `segments`, also those W or more positions before it, are hidden.
        """
        parts: list[masks.Mask] = []
        past = masks.causal() if window is None else masks.window(window - 1)
        if causal and self.positions is None:
            parts.append(past)
        elif causal:
            parts.append(masks.stored(past))  # by index, since positions may restart or repeat
            if self.segments is None:
                parts.append(past)  # by positions too, since rows may be in any order
        valid: Any = self.valid
        segments: Any = self.segments
        if valid is not None and not (causal and self.right_padded):
            parts.append(masks.padding(valid))
        if segments is not None:
            parts.append(masks.segments(segments))
        return functools.reduce(operator.and_, parts) if parts else None


def as_tokens(tokens: Tokens[ArrayT] | ArrayT) -> Tokens[ArrayT]:
    """Returns tokens unchanged, and an array of ids as ``Tokens(ids)``.

    >>> import jax.numpy as jnp
    >>> as_tokens(jnp.array([[4, 5, 6]])).shape
    (1, 3)
    """
    return tokens if isinstance(tokens, Tokens) else Tokens(tokens)


def clear_padding(x: Shaped[Array, "*batch ..."], valid: Bool[Array, "*batch"] | None) -> Shaped[Array, "*batch ..."]:
    """Replaces padding by 0; without `valid`, nothing is padding.

    >>> clear_padding(jnp.array([[1.0, 2.0], [jnp.nan, jnp.inf]]), jnp.array([True, False])).tolist()
    [[1.0, 2.0], [0.0, 0.0]]
    """
    if valid is None:
        return x
    return jnp.where(valid.reshape(valid.shape + (1,) * (x.ndim - valid.ndim)), x, 0)


def token_cutoff(
    tokens: Tokens[jax.Array], *, rate: float, key: jax.Array | None, where: Bool[Array, "#B #T"] | None = None
) -> Tokens[jax.Array]:
    """Hides the vectors of tokens with probability `rate` (Shen et al. 2020, "token cutoff"); none without a key.

    The first and the last token of each sequence stay: they mark its beginning, its end or its language.

    Args:
      where: True for tokens that may be hidden; by default all.

    Raises:
      ValueError: `rate` is not in [0, 1).

    >>> import jax, jax.numpy as jnp
    >>> row = Tokens(jnp.ones((1, 8), int), valid=jnp.arange(8)[None] < 6)
    >>> token_cutoff(row, rate=0.5, key=jax.random.key(0)).shown.astype(int).tolist()
    [[1, 1, 1, 0, 0, 1, 1, 1]]
    """
    if not 0 <= rate < 1:
        raise ValueError(f"rate must be in [0, 1), got {rate}")
    if key is None or rate == 0:
        return tokens
    valid = everywhere(tokens.valid, tokens.shape)
    follows = valid[:, 1:] & valid[:, :-1]
    if tokens.segments is not None:
        follows &= tokens.segments[:, 1:] == tokens.segments[:, :-1]
    inner = jnp.pad(follows, ((0, 0), (1, 0))) & jnp.pad(follows, ((0, 0), (0, 1)))
    shown = keep(key, rate, every_index(tokens.shape)) | ~inner
    shown = shown if where is None else shown | ~where
    return dataclasses.replace(tokens, shown=shown if tokens.shown is None else shown & tokens.shown)


def everywhere(where: Bool[Array, "*batch"] | None, shape: tuple[int, ...]) -> Bool[Array, "*batch"]:
    """Returns `where`, or True in the given shape, its default."""
    return jnp.ones(shape, bool) if where is None else where


def padding_mask(valid: Bool[Array, "B S"] | None) -> masks.Mask | None:
    """Returns the mask that hides padding, if there is any."""
    return None if valid is None else masks.padding(valid)
