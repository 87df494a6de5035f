"""The corruption of tokens that a masked language model learns to undo."""

from __future__ import annotations

from collections.abc import Collection

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jaxformer.functional.dropout import every_index, fold_in_name, hashed_bits
from jaxformer.functional.tokens import everywhere


def mask_tokens(
    tokens: Int[Array, "B T"],
    key: jax.Array,
    *,
    mask: int,
    vocab_size: int,
    special: Collection[int] = (),
    where: Bool[Array, "B T"] | None = None,
    rate: float = 0.15,
) -> tuple[Int[Array, "B T"], Bool[Array, "B T"]]:
    """Chooses the tokens of each row to predict, and masks most of them (Devlin et al. 2019, 3.1).

    Of the n eligible tokens of a row, ``num_masked(n, rate)`` are chosen. Each of these is replaced by `mask` with
    probability 0.8, replaced by a random token that is not special with probability 0.1, and kept with probability 0.1.
    The result is a function of the key, the same under every sharding.

    Args:
      mask: the id of the mask token.
      vocab_size: the upper bound of random token ids, exclusive.
      special: the ids that are neither chosen for prediction nor drawn as random tokens.
      where: True where a token may be chosen, if it is not special; default: everywhere.

    Returns:
      The tokens that the model sees, and True where a token is chosen.

    Raises:
      ValueError: `rate` is not in [0, 1], or all ids are special.

    >>> row = jnp.array([[1, 5, 6, 7, 8, 9, 10, 11, 2, 0]])
    >>> seen, chosen = mask_tokens(row, jax.random.key(0), mask=12, vocab_size=12, special=(0, 1, 2), rate=0.3)
    >>> seen.tolist(), chosen.sum().item()
    ([[1, 12, 6, 7, 8, 9, 12, 11, 2, 0]], 2)
    """
    fixed = sorted(token for token in set(special) if 0 <= token < vocab_size)
    num_drawn = vocab_size - len(fixed)
    if num_drawn < 1:
        raise ValueError(f"a random token needs an id that is not special, got {vocab_size} ids, all special")
    may = everywhere(where, tokens.shape)
    if special:
        may &= ~jnp.isin(tokens, np.array(sorted(special), np.int32))
    order, change, draw = (_bits(key, name, tokens.shape) for name in ("order", "change", "draw"))
    # The eligible tokens come first, in the order of their random bits; ties keep their places.
    first = jnp.lexsort((order, ~may), axis=-1)
    rank = jnp.argsort(first, axis=-1)
    counts = np.array([num_masked(length, rate) for length in range(tokens.shape[1] + 1)], np.int32)
    chosen = may & (rank < jnp.asarray(counts)[may.sum(-1)][:, None])
    random = (draw % jnp.uint32(num_drawn)).astype(tokens.dtype)
    for token in fixed:  # in ascending order, so that each shifts the draws past itself
        random += (random >= token).astype(tokens.dtype)
    threshold = lambda share: jnp.uint32(int(share * 2**32))
    hidden = jnp.where(change < threshold(0.8), jnp.asarray(mask, tokens.dtype), random)
    return jnp.where(chosen & (change < threshold(0.9)), hidden, tokens), chosen


def num_masked(length: int, rate: float) -> int:
    """Returns the number of tokens to choose: ``rate * length``, rounded, and at least 1 unless rate or length is 0.

    Raises:
      ValueError: `rate` is not in [0, 1].

    >>> [num_masked(length, 0.15) for length in (0, 1, 10, 128)]
    [0, 1, 2, 19]
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"rate must be in [0, 1], got {rate}")
    return min(length, max(1, int(rate * length + 0.5))) if rate else 0


def _bits(key: jax.Array, name: str, shape: tuple[int, ...]) -> jax.Array:
    """Returns random bits of each token for one of the decisions."""
    named = fold_in_name(key, name)
    assert named is not None
    return hashed_bits(named, every_index(shape))
