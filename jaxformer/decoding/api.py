"""The step protocol: what search needs to know of a model, which is one function.

``step(tokens, state) -> (logits, state)`` takes the last token of each of K hypotheses of B sentences, ``int32
[B, K]``, and gives the logits of the next, ``[B, K, V]``.  Whatever differs between hypotheses is in `state`, whose
every leaf begins ``[B, K, ...]``, so that hypotheses are reordered by one gather; whatever does not (the encoder's
output, its keys and values) is closed over.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

State = TypeVar("State")


class Step(Protocol[State]):
    """One step of a model, for search."""

    def __call__(self, tokens: jax.Array, state: State, /) -> tuple[jax.Array, State]: ...


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Hypotheses:
    """Decoded sequences, best first: K of each of B sentences."""

    tokens: jax.Array  # int32 [B, K, T]: without bos, with eos where it was reached, then pad
    lengths: jax.Array  # int32 [B, K]: tokens, end included
    log_probs: jax.Array  # float32 [B, K]: sum over the tokens
    scores: jax.Array  # float32 [B, K]: what ranks them


def state_size(state: Any) -> tuple[int, int]:
    """B and K, from the leaves of a state.

    Raises:
      ValueError: a leaf does not begin with the same two dimensions as the others.
    """
    sizes = {leaf.shape[:2] for leaf in jax.tree.leaves(state)}
    if len(sizes) != 1 or len(next(iter(sizes))) != 2:
        raise ValueError(f"every leaf of a decoding state begins [B, K, ...]; got leading dims {sorted(sizes)}")
    return next(iter(sizes))


def reorder(tree: Any, parents: Int[Array, "B K"]) -> Any:
    """Each hypothesis replaced by the one it grew from."""
    rows = jnp.arange(parents.shape[0])[:, None]
    return jax.tree.map(lambda leaf: leaf[rows, parents], tree)


def forbidden(*, bos: int, eos: int, pad: int) -> tuple[int, ...]:
    """The tokens never to be chosen: `pad`, and `bos` where it does not also end a sequence, as BART's does.

    Raises:
      ValueError: `pad` is `eos`, which could then never be chosen.
    """
    if pad == eos:
        raise ValueError(f"pad and end must be two tokens, got {pad} for both")
    return (pad,) if bos == eos else (pad, bos)


def next_log_probs(
    logits: Float[Array, "B K V"], *, eos: int, forbid: tuple[int, ...], force_end: Bool[Array, " B"]
) -> Float[Array, "B K V"]:
    """Log-probabilities, float32; minus infinity for tokens never to be chosen, and for all but `eos` where forced."""
    logits = logits.astype(jnp.float32)
    token = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 2)
    allowed = (token == eos) | ~force_end[:, None, None]
    for never in forbid:
        allowed &= token != never
    return jnp.where(allowed, logits - jax.nn.logsumexp(logits, axis=-1, keepdims=True), -jnp.inf)


def limits(limit: Int[Array, " B"] | None, length: int, batch: int) -> Int[Array, " B"]:
    """The most tokens of each sentence, end included: at most `length`, at least one."""
    return jnp.full(batch, length) if limit is None else jnp.clip(jnp.asarray(limit), 1, length)
