"""The encoder: embeddings, a stack of blocks without a causal mask, and a final norm."""

from __future__ import annotations

import dataclasses

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxformer import masks
from jaxformer.functional.dropout import site
from jaxformer.modules import Block, Embeddings, LayerNorm, Stack
from jaxformer.modules.attention import Intermediates


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Memory:
    """The states of an encoder, and which of them are real: everything that a decoder needs."""

    states: jax.Array  # [B, S, D]
    valid: jax.Array | None  # Bool [B, S]

    @property
    def mask(self) -> masks.Mask | None:
        """The mask of the real tokens; None if all are real."""
        return None if self.valid is None else masks.padding(self.valid)


class Encoder(nnx.Module):
    """``tokens -> Memory``; every token sees every real one."""

    def __init__(self, embeddings: Embeddings, stack: Stack[Block], norm: LayerNorm | None = None):
        self.embeddings, self.stack, self.norm = embeddings, stack, norm

    def __call__(
        self,
        tokens: Int[Array, "B S"],
        *,
        valid: Bool[Array, "B S"] | None = None,
        key: jax.Array | None = None,
        copies: Float[Array, "G C V D"] | None = None,
    ) -> Memory:
        """Returns the memory of a sequence.

        Args:
          valid: True where a token is real; default: everywhere.
          key: the key of dropout; None means no dropout.
          copies: see `Embedding`.
        """
        return self._run(tokens, valid, key, copies, capture=False)[0]

    def captured(
        self, tokens: Int[Array, "B S"], *, valid: Bool[Array, "B S"] | None = None
    ) -> tuple[Memory, Intermediates]:
        """Returns the memory, and every layer's queries and keys, ``{"self": ([L, B, S, N, H], [L, B, S, N, H])}``."""
        return self._run(tokens, valid, None, None, capture=True)

    def _run(
        self, tokens: Array, valid: Array | None, key: jax.Array | None, copies: Array | None, *, capture: bool
    ) -> tuple[Memory, Intermediates]:
        x = self.embeddings(tokens, key=site(key, "embedding"), copies=copies)
        mask = None if valid is None else masks.padding(valid)
        x, intermediates = self.stack(x, mask=mask, key=site(key, "layers"), capture=capture)
        return Memory(x if self.norm is None else self.norm(x), valid), intermediates
