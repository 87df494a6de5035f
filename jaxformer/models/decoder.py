"""The decoder: embeddings, a stack of blocks with or without cross-attention, a final norm, and the output."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxformer import masks, sharding
from jaxformer.axes import constrain
from jaxformer.functional.cache import KeyValueCache
from jaxformer.functional.dropout import site
from jaxformer.models.encoder import Memory
from jaxformer.modules import Block, Embeddings, KeyValue, LayerNorm, Linear, Stack
from jaxformer.modules.attention import Intermediates
from jaxformer.modules.pure import Params


class Context(NamedTuple):
    """The arrays that the hypotheses of a sentence share: computed once by `start`, never tiled by hypotheses."""

    memory: tuple[KeyValue | None, ...]  # of each layer, [B, S, N, H]; None without cross-attention
    valid: jax.Array | None  # Bool [B, S]
    layers: tuple[Params, ...]  # the blocks' parameters, unstacked

    def take(self, sentences: Int[Array, " B2"]) -> Context:
        """Returns the context of these sentences only, in this order."""
        memory, valid = jax.tree.map(lambda leaf: leaf[sentences], (self.memory, self.valid))
        return Context(memory, valid, self.layers)


class DecoderState(NamedTuple):
    """The arrays that differ between hypotheses. Only `reorder` and `take` may assume a layout of its leaves.

    Each hypothesis has its own position, which is also the number of tokens that it has seen. For prefixes
    of different lengths, step through the longest, then set the lengths with ``state._replace(position=lengths)``:
    the mask hides later positions, and later steps overwrite them.
    """

    position: jax.Array  # int32 [B, K]: the next token's
    caches: tuple[KeyValueCache, ...]  # of each layer, [B, K, T, N, H]

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of sentences, B, and of hypotheses of each, K."""
        batch_size, beam_size = self.position.shape
        return batch_size, beam_size

    def reorder(self, parents: Int[Array, "B K"]) -> DecoderState:
        """Replaces each hypothesis with its parent, a hypothesis of the same sentence."""
        sentences = jnp.arange(parents.shape[0])[:, None]
        return jax.tree.map(lambda leaf: leaf[sentences, parents], self)

    def take(self, sentences: Int[Array, " B2"]) -> DecoderState:
        """Returns the state of these sentences only, in this order."""
        return jax.tree.map(lambda leaf: leaf[sentences], self)


class Decoder(nnx.Module):
    """``tokens, memory -> logits``; without cross-attention a language model, ``tokens -> logits``.

    `output` is the output projection; None uses the table of the token embeddings.
    """

    def __init__(
        self,
        embeddings: Embeddings,
        stack: Stack[Block],
        norm: LayerNorm | None = None,
        output: Linear | None = None,
        *,
        causal: bool = True,
    ):
        self.embeddings, self.stack, self.norm, self.output = embeddings, stack, norm, output
        self.causal = causal

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        memory: Memory | None = None,
        *,
        valid: Bool[Array, "B T"] | None = None,
        key: jax.Array | None = None,
    ) -> Float[Array, "B T V"]:
        """Returns teacher-forced logits, float32: row t scores the token after ``tokens[:, :t + 1]``.

        Args:
          valid: True where a token is real; default: everywhere.
          key: the key of dropout; None means no dropout.
        """
        return self._logits(self._run(tokens, memory, valid, key, None, capture=False)[0])

    def cross_entropy(
        self,
        tokens: Int[Array, "B T"],
        labels: Int[Array, "B T"],
        memory: Memory | None = None,
        *,
        valid: Bool[Array, "B T"] | None = None,
        smoothing: float = 0.0,
        z_loss: float = 0.0,
        key: jax.Array | None = None,
        copies: Float[Array, "G C V D"] | None = None,
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Returns the loss of the teacher-forced logits, (sum, count), without holding them.

        Args:
          labels: the token after each of `tokens`; counted where `valid`.
          smoothing, z_loss: see `functional.cross_entropy`.
          copies: see `Embedding`.
        """
        if copies is None:
            copies = self.embeddings.tokens.copies(*tokens.shape, dtype=self.embeddings.dtype)
        x, _ = self._run(tokens, memory, valid, key, copies, capture=False)
        table = copies if self.output is None else self.output.kernel[...].T
        return sharding.linear_cross_entropy(x, table, labels, where=valid, smoothing=smoothing, z_loss=z_loss)

    def captured(
        self, tokens: Int[Array, "B T"], memory: Memory | None = None, *, valid: Bool[Array, "B T"] | None = None
    ) -> Intermediates:
        """Returns queries ``[L, B, T, N, H]`` and keys of every layer, named "self" and "cross"."""
        return self._run(tokens, memory, valid, None, None, capture=True)[1]

    def start(
        self, memory: Memory | None = None, *, batch_size: int, beam_size: int, length: int
    ) -> tuple[Context, DecoderState]:
        """Prepares to decode `length` positions with `beam_size` hypotheses of each of `batch_size` sentences.

        The logits of a `step` beyond `length` are NaN.
        """
        self.embeddings.check_length(length)
        layers = self.stack.unstacked()
        states = None if memory is None else memory.states
        sizes = {"batch_size": batch_size, "beam_size": beam_size, "length": length}
        starts = [self.stack.block(params).start(states, dtype=self.embeddings.dtype, **sizes) for params in layers]
        projected, caches = zip(*starts, strict=True)
        context = Context(projected, None if memory is None else memory.valid, layers)
        return context, DecoderState(jnp.zeros((batch_size, beam_size), jnp.int32), caches)

    def step(
        self, tokens: Int[Array, "B K"], state: DecoderState, context: Context
    ) -> tuple[Float[Array, "B K V"], DecoderState]:
        """Returns the logits after one more token of each hypothesis, equal to that row of the teacher-forced logits.

        A step sees only the past, also without the causal mask. Beyond the positions that `start` prepared, logits are
        NaN, and the keys and values of the last position are overwritten.
        """
        position, length = state.position, state.caches[0].key.shape[2]
        x = self.embeddings.step(tokens, position, length=length)
        mask = None if context.valid is None else masks.padding(context.valid)
        caches = []
        for params, cache, memory in zip(context.layers, state.caches, context.memory, strict=True):
            block = self.stack.block(params)
            x, cache = block.step(x, cache, memory, position=position, memory_mask=mask)
            caches.append(cache)
        x = jnp.where((position < length)[..., None], x, jnp.nan)  # a traced position cannot raise an error
        return self._logits(self._final(x)), DecoderState(position + 1, tuple(caches))

    def _run(
        self,
        tokens: Array,
        memory: Memory | None,
        valid: Array | None,
        key: jax.Array | None,
        copies: Array | None,
        *,
        capture: bool,
    ) -> tuple[Array, Intermediates]:
        """Returns the final states and the captured intermediates."""
        x = self.embeddings(tokens, key=site(key, "embedding"), copies=copies)
        mask = masks.causal() if self.causal else None
        if valid is not None:
            mask = masks.padding(valid) if mask is None else mask & masks.padding(valid)
        states, memory_mask = (None, None) if memory is None else (memory.states, memory.mask)
        key = site(key, "layers")
        x, intermediates = self.stack(x, states, mask=mask, memory_mask=memory_mask, key=key, capture=capture)
        return self._final(x), intermediates

    def _final(self, x: Array) -> Array:
        return x if self.norm is None else self.norm(x)

    def _logits(self, x: Array) -> Array:
        if self.output is None:
            return constrain(self.embeddings.tokens.logits(x), "batch", "length", "vocab")
        # self.output would round the logits to the dtype of x.
        kernel = self.output.kernel[...].astype(x.dtype)
        logits = jnp.matmul(x, kernel, preferred_element_type=jnp.float32)
        return constrain(logits, "batch", "length", "vocab")
