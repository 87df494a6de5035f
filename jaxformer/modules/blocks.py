"""The transformer block: one class for encoder, decoder and decoder-only, distinguished by mask and cross-attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxformer import functional, masks
from jaxformer.axes import constrain
from jaxformer.functional.cache import KeyValueCache
from jaxformer.functional.dropout import site
from jaxformer.functional.residual import Arrangement
from jaxformer.modules.attention import CrossAttention, Intermediates, KeyValue, SelfAttention
from jaxformer.modules.experts import MixtureOfExperts
from jaxformer.modules.feed_forward import FeedForward, GatedFeedForward

MemoryT = TypeVar("MemoryT")


class Block(nnx.Module):
    """Self-attention, cross-attention if `cross` is given, feed-forward; each in ``arrangement(x, sublayer, norm)``.

    `norm` constructs the norm that `arrangement` takes; `functional.sandwich_norm` takes a `NormPair`.
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
        def self_attention(y: Array) -> Array:
            y = self.attention(y, mask=mask, key=site(key, "weights"), intermediates=intermediates)
            return self._drop(y, key, "attention")

        def feed_forward(y: Array) -> Array:
            y = self.feed_forward(y, key=site(key, "hidden"), intermediates=intermediates)
            return self._drop(y, key, "feed forward")

        x = self.arrangement(x, self_attention, self.attention_norm)
        if (cross := self.cross) is not None:

            def cross_attention(y: Array) -> Array:
                projected = cross.project(_required(memory))
                site_key = site(key, "cross weights")
                y = cross(y, projected, mask=memory_mask, key=site_key, intermediates=intermediates)
                return self._drop(y, key, "cross")

            x = self.arrangement(x, cross_attention, self.cross_norm)
        x = self.arrangement(x, feed_forward, self.feed_forward_norm)
        return constrain(x, "batch", "length", "model")

    def start(
        self,
        memory: Float[Array, "B S D"] | None = None,
        *,
        batch_size: int,
        beam_size: int,
        length: int,
        dtype: DTypeLike,
    ) -> tuple[KeyValue | None, KeyValueCache]:
        """Returns the keys and values of the memory (None without cross-attention) and an empty cache, for `step`."""
        cache = self.attention.empty_cache(batch_size, beam_size, length, dtype)
        return (None if self.cross is None else self.cross.project(_required(memory))), cache

    def step(
        self,
        x: Float[Array, "B K D"],
        cache: KeyValueCache,
        memory: KeyValue | None,
        *,
        position: Int[Array, "B K"],
        memory_mask: masks.Mask | None = None,
    ) -> tuple[Float[Array, "B K D"], KeyValueCache]:
        """Computes one position of K hypotheses, which equals that row of the full forward pass."""
        caches = [cache]

        def self_attention(y: Array) -> Array:
            y, caches[0] = self.attention.step(y, cache, position)
            return y

        x = self.arrangement(x, self_attention, self.attention_norm)
        if (cross := self.cross) is not None:
            # The hypotheses of a sentence take the place of the queries of a sequence, so they share one memory.
            x = self.arrangement(x, lambda y: cross(y, _required(memory), mask=memory_mask), self.cross_norm)
        x = self.arrangement(x, self.feed_forward, self.feed_forward_norm)
        return x, caches[0]

    def _drop(self, y: Array, key: jax.Array | None, name: str) -> Array:
        return functional.dropout(y, rate=self.dropout, key=site(key, name))


def _required(memory: MemoryT | None) -> MemoryT:
    if memory is None:
        raise ValueError("a block with cross-attention needs a memory, got None")
    return memory
