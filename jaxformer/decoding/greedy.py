"""Greedy search: the most probable token at every step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxformer.decoding.api import Hypotheses, Step, forbidden, limits, next_log_probs, state_size


def greedy(
    step: Step,
    state: Any,
    *,
    length: int,
    bos: int,
    eos: int,
    pad: int = 0,
    limit: Int[Array, " B"] | None = None,
) -> Hypotheses:
    """Decodes each hypothesis by itself until `eos`, or `limit` tokens, by one ``while_loop``.

    Args:
      step, state: see `jaxformer.decoding.api`.
      length: the most tokens, `eos` included; static.
      limit: the most tokens of each sentence, ``int [B]``; the last is `eos`.

    Returns:
      Hypotheses ``[B, K]`` with ``scores == log_probs``; pad is never chosen, nor bos where it is not `eos`.

    Raises:
      ValueError: `pad` is `eos`.
    """
    batch, beam_size = state_size(state)
    most = limits(limit, length, batch)
    never = forbidden(bos=bos, eos=eos, pad=pad)

    def unfinished(carry):
        number, _, _, done, _, _ = carry
        return (number < length) & ~done.all()

    def advance(carry):
        number, last, state, done, tokens, log_probs = carry
        logits, state = step(last, state)
        choices = next_log_probs(logits, eos=eos, forbid=never, force_end=number + 1 >= most)
        chosen = jnp.where(done, pad, choices.argmax(-1).astype(jnp.int32))
        gained = jnp.where(done, 0.0, choices.max(-1))
        tokens = jax.lax.dynamic_update_index_in_dim(tokens, chosen, number, 2)
        return number + 1, chosen, state, done | (chosen == eos), tokens, log_probs + gained

    first = jnp.full((batch, beam_size), bos, jnp.int32)
    empty = jnp.full((batch, beam_size, length), pad, jnp.int32)
    carry = (0, first, state, jnp.zeros((batch, beam_size), bool), empty, jnp.zeros((batch, beam_size)))
    _, _, _, _, tokens, log_probs = jax.lax.while_loop(unfinished, advance, carry)
    return Hypotheses(tokens, (tokens != pad).sum(-1).astype(jnp.int32), log_probs, log_probs)
