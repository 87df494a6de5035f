"""The transformer block: one class for encoder, decoder and decoder-only, told apart by mask and cross-attention."""

from __future__ import annotations

from collections.abc import Callable

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxformer import functional, masks
from jaxformer.axes import constrain
from jaxformer.functional.cache import KeyValueCache
from jaxformer.functional.dropout import site
from jaxformer.functional.residual import Arrangement
from jaxformer.modules.attention import CrossAttention, Intermediates, KeyValue, SelfAttention
from jaxformer.modules.experts import MixtureOfExperts
from jaxformer.modules.feed_forward import FeedForward, GatedFeedForward


class Block(nnx.Module):
    """Self-attention, cross-attention where `cross` is given, feed-forward; each in ``arrangement(x, sublayer, norm)``.

    `norm` makes what the arrangement wants to have: a norm, or for `functional.sandwich_norm` a `NormPair`.
    Without a mask it is an encoder block; with `masks.causal` a decoder-only block; with `cross` too, the decoder
    block of an encoder-decoder.
    """

    def __init__(
        self,
        attention: SelfAttention,
        feed_forward: FeedForward | GatedFeedForward | MixtureOfExperts,
        *,
        cross: CrossAttention | None = None,
        norm: Callable[[], nnx.Module],
        arrangement: Arrangement = functional.pre_norm,
        dropout: float = 0.0,
    ):
        self.attention, self.attention_norm = attention, norm()
        self.cross, self.cross_norm = (cross, norm()) if cross is not None else (None, None)
        self.feed_forward, self.feed_forward_norm = feed_forward, norm()
        self.arrangement = arrangement
        self.dropout = dropout

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S D"] | None = None,
        *,
        mask: masks.Mask | None = None,
        memory_mask: masks.Mask | None = None,
        key: jax.Array | None = None,
        intermediates: Intermediates | None = None,
    ) -> Float[Array, "B T D"]:
        def attend(y: Array) -> Array:
            return self._drop(
                self.attention(y, mask=mask, key=site(key, "weights"), intermediates=intermediates), key, "attention"
            )

        def look(y: Array) -> Array:
            found = self.cross.project(memory)
            out = self.cross(y, found, mask=memory_mask, key=site(key, "cross weights"), intermediates=intermediates)
            return self._drop(out, key, "cross")

        def think(y: Array) -> Array:
            return self._drop(
                self.feed_forward(y, key=site(key, "hidden"), intermediates=intermediates), key, "feed forward"
            )

        x = self.arrangement(x, attend, self.attention_norm)
        if self.cross is not None:
            x = self.arrangement(x, look, self.cross_norm)
        x = self.arrangement(x, think, self.feed_forward_norm)
        return constrain(x, "batch", "length", "model")

    def step(
        self,
        x: Float[Array, "B K D"],
        cache: KeyValueCache,
        memory: KeyValue | None,
        *,
        position: Int[Array, ""],
        memory_mask: masks.Mask | None = None,
    ) -> tuple[Float[Array, "B K D"], KeyValueCache]:
        """One position of K hypotheses: equal to that row of the whole forward pass."""
        grown: list[KeyValueCache] = []

        def attend(y: Array) -> Array:
            y, new = self.attention.step(y, cache, position)
            grown.append(new)
            return y

        x = self.arrangement(x, attend, self.attention_norm)
        if self.cross is not None:
            # The hypotheses of a sentence stand where a sequence's queries would: one memory serves them all.
            x = self.arrangement(x, lambda y: self.cross(y, memory, mask=memory_mask), self.cross_norm)
        x = self.arrangement(x, self.feed_forward, self.feed_forward_norm)
        return x, grown[0]

    def _drop(self, y: Array, key: jax.Array | None, name: str) -> Array:
        return functional.dropout(y, rate=self.dropout, key=site(key, name))
