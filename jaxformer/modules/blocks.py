"""The transformer block: one class for encoder, decoder and decoder-only; they differ by mask and cross-attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxformer import functional, masks
from jaxformer.axes import constrain
from jaxformer.functional.bias import Bias
from jaxformer.functional.cache import KeyValueCache
from jaxformer.functional.dropout import fold_in_name
from jaxformer.functional.normalization import Arrangement
from jaxformer.functional.tokens import Tokens
from jaxformer.modules.attention import CrossAttention, KeyValue, SelfAttention
from jaxformer.modules.captured import Intermediates
from jaxformer.modules.layers import FeedForward, MixtureOfExperts, NormPair

MemoryT = TypeVar("MemoryT")


class Block(nnx.Module):
    """Self-attention, cross-attention with `cross`, and feed-forward, each in ``arrangement(x, sublayer, norm)``.

    `norm` constructs the norm that is passed to `arrangement`; for `functional.sandwich_norm` it is a `NormPair`.
    The feed-forward network may be a module of your own, which is called as ``feed_forward(x, key=...)`` in a full pass
    and as ``feed_forward(x)`` in a cached step, and returns ``[B, T, D]``. Without a mask it is an encoder block; with
    `masks.causal` a decoder-only block; with both `masks.causal` and `cross`, the decoder block of an encoder-decoder.
    """

    def __init__(
        self,
        attention: SelfAttention,
        feed_forward: FeedForward | MixtureOfExperts | Callable[..., Array],
        *,
        cross: CrossAttention | None = None,
        norm: Callable[[], NormPair | Callable[[Array], Array]],
        arrangement: Arrangement = functional.pre_norm,
        dropout: float = 0.0,
    ):
        self.attention, self.attention_norm = attention, norm()
        self.cross, self.cross_norm = cross, cross and norm()
        self.feed_forward, self.feed_forward_norm = feed_forward, norm()
        self.arrangement = arrangement
        self.dropout = dropout

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S E"] | None = None,
        *,
        tokens: Tokens | None = None,
        mask: masks.Mask | None = None,
        memory_mask: masks.Mask | None = None,
        bias: Bias | None = None,
        key: jax.Array | None = None,
        intermediates: Intermediates | None = None,
    ) -> Float[Array, "B T D"]:
        """Returns the states of full sequences.

        Args:
          tokens: the sequences, for their positions, and for experts, which ignore padding.
          bias: a bias of the self-attention logits that all layers share.

        Raises:
          ValueError: the memory is missing, or there is no cross-attention to read it.
        """
        self._check_memory(memory)
        positions, valid = (None, None) if tokens is None else (tokens.positions, tokens.valid)

        def self_attention(y: Array) -> Array:
            y = self.attention(
                y,
                mask=mask,
                bias=bias,
                positions=positions,
                key=fold_in_name(key, "weights"),
                intermediates=intermediates,
            )
            return self._drop(y, key, "attention")

        def feed_forward(y: Array) -> Array:
            hidden_key = fold_in_name(key, "hidden")
            if isinstance(self.feed_forward, MixtureOfExperts):
                y = self.feed_forward(y, valid=valid, key=hidden_key, intermediates=intermediates)
            else:
                y = self.feed_forward(y, key=hidden_key)
            return self._drop(y, key, "feed forward")

        with jax.named_scope("self_attention"):
            x = self.arrangement(x, self_attention, self.attention_norm)
        if (cross := self.cross) is not None:

            def cross_attention(y: Array) -> Array:
                y = cross(
                    y,
                    cross.project(_required(memory)),
                    mask=memory_mask,
                    positions=positions,
                    key=fold_in_name(key, "cross weights"),
                    intermediates=intermediates,
                )
                return self._drop(y, key, "cross")

            with jax.named_scope("cross_attention"):
                x = self.arrangement(x, cross_attention, self.cross_norm)
        with jax.named_scope("feed_forward"):
            x = self.arrangement(x, feed_forward, self.feed_forward_norm)
        return constrain(x, "batch", "length", "model")

    def check_steps(self) -> None:
        """Checks that cached steps can use the attention functions of this block."""
        self.attention.check_steps()
        if self.cross is not None:
            self.cross.check_steps()

    def start(
        self, memory: Float[Array, "B S E"] | None = None, *, rows: int, slots: int, dtype: DTypeLike
    ) -> tuple[KeyValue | None, KeyValueCache]:
        """Returns the keys and values of the memory (None without cross-attention) and an empty cache, for `step`.

        Args:
          rows, slots: see `functional.cache.empty_cache`.
          dtype: the dtype of both.

        Raises:
          ValueError: see `check_steps`; or the memory is missing or not needed.
        """
        self._check_memory(memory)
        self.check_steps()
        cache = self.attention.empty_cache(rows, slots, dtype)
        if self.cross is None:
            return None, cache
        return KeyValue(*(x.astype(dtype) for x in self.cross.project(_required(memory)))), cache

    def step(
        self,
        x: Float[Array, "B Q D"],
        cache: KeyValueCache,
        memory: KeyValue | None,
        *,
        positions: Int[Array, "B K T"],
        lanes: Int[Array, "B K L"] | None = None,
        window: int | None = None,
        memory_mask: masks.Mask | None = None,
        bias: Bias | None = None,
        intermediates: Intermediates | None = None,
    ) -> tuple[Float[Array, "B Q D"], KeyValueCache]:
        """Computes T positions of K hypotheses (Q = K T); the results equal those of the full forward pass.

        For `lanes` and `window`, see `SelfAttention.step`. If `intermediates` is a dict, it receives the arguments of
        cross-attention under "cross".
        """
        caches = [cache]

        def self_attention(y: Array) -> Array:
            y, caches[0] = self.attention.step(y, cache, positions, lanes=lanes, window=window, bias=bias)
            return y

        x = self.arrangement(x, self_attention, self.attention_norm)
        if (cross := self.cross) is not None:
            # The hypotheses of a row are treated as the queries of one sequence, so they share one memory.
            row_positions = positions.reshape(x.shape[:2])
            cross_attention = lambda y: cross(
                y, _required(memory), mask=memory_mask, positions=row_positions, intermediates=intermediates
            )
            x = self.arrangement(x, cross_attention, self.cross_norm)
        x = self.arrangement(x, self.feed_forward, self.feed_forward_norm)
        return x, caches[0]

    def _check_memory(self, memory: Array | None) -> None:
        if self.cross is None and memory is not None:
            raise ValueError(
                f"a block without cross-attention cannot read a memory, got one of shape {list(memory.shape)}; "
                "give the block `cross`, or the configuration of a decoder `memory_dim`"
            )

    def _drop(self, y: Array, key: jax.Array | None, name: str) -> Array:
        return functional.dropout(y, rate=self.dropout, key=fold_in_name(key, name))


def _required(memory: MemoryT | None) -> MemoryT:
    if memory is None:
        raise ValueError("a block with cross-attention needs a memory, got None")
    return memory
