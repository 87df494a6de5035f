"""The decoder: embeddings, a stack of blocks with or without cross-attention, a final norm, and logits."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxformer import functional
from jaxformer.dims import check_rank
from jaxformer.functional.cache import first_lanes, take_lanes
from jaxformer.functional.dropout import fold_in_name
from jaxformer.functional.tokens import as_tokens, padding_mask
from jaxformer.models import transformer
from jaxformer.models.config import DecoderConfig, LanguageModelConfig, TextDecoderConfig
from jaxformer.models.decoding_model import Context, DecoderState, StepWeights
from jaxformer.models.encoder import Memory
from jaxformer.models.token_model import Input, TokenModel, of_part, part_of
from jaxformer.modules import AttentionFunction, Block, Embeddings, Linear, Stack, T5Bias
from jaxformer.modules.captured import Intermediates
from jaxformer.modules.head import Head
from jaxformer.modules.layers import normalized, value_of, zeros_param


class Decoder(TokenModel):
    """``tokens, memory -> logits``; without cross-attention, a language model, ``tokens -> logits``."""

    def __init__(
        self,
        embeddings: Embeddings,
        stack: Stack[Block],
        norm: transformer.Norm | None = None,
        output: Linear | None = None,
        *,
        bias: T5Bias | None = None,
        output_bias: bool = False,
        output_scale: float = 1.0,
        load_balancing_weight: float = 0.0,
        causal: bool = True,
        window: int | None = None,
    ):
        """Builds a decoder from its parts.

        Args:
          output: the output projection; None for the token embedding table.
          bias: a bias of self-attention that all layers share.
          output_bias: adds a learned bias to the logits.
          output_scale: the factor of the states before the output projection.
          load_balancing_weight: the weight of the load-balancing loss of the experts in `loss`.
          window: the number of tokens, itself included, that a token sees by self-attention; None for no limit.

        Raises:
          ValueError: the position vectors depend on the final length of the sequence, which is unknown during decoding,
            the embeddings have token types, the stack has a norm, or the window is below 1 or used without a causal
            mask.
        """
        if causal:
            transformer.check_steps(embeddings.positions)
        if embeddings.types is not None:
            raise ValueError("a decoder takes no token types, so num_token_types must be 0")
        if stack.norm is not None:
            raise ValueError(
                "the norm of the stack must be None: give it to the decoder, whose steps then apply it too"
            )
        if window is not None and (window < 1 or not causal):
            raise ValueError(f"a window must be at least 1 and needs a causal mask, got {window} and causal={causal}")
        self.embeddings, self.stack, self.norm, self.output, self.bias = embeddings, stack, norm, output, bias
        vocab_size = embeddings.tokens.table.shape[0] if output is None else output.kernel.shape[-1]
        self.output_bias = zeros_param(vocab_size, ("vocab",), exists=output_bias)
        self.output_scale, self.load_balancing_weight = output_scale, load_balancing_weight
        self.causal, self.window = causal, window

    @property
    def head(self) -> Head:
        """The output projection of the states."""
        table, kernel = self.embeddings.tokens.table[...], None
        if self.output is not None:
            table, kernel = None, self.output.kernel[...]
        return Head(table, kernel, value_of(self.output_bias), self.output_scale)

    def states(
        self,
        tokens: Input,
        memory: Memory | None = None,
        *,
        key: jax.Array | None = None,
        capture: Collection[str] = (),
    ) -> tuple[Float[Array, "B T D"], Intermediates]:
        """Returns the teacher-forced states: those of row t see ``tokens[:, :t + 1]``. See `TokenModel`.

        Under tracing, positions beyond a learned table get its last vector; otherwise they raise an error. All
        sequences of a packed row see the same memory, unless it has segments, too.

        Raises:
          ValueError: `tokens` or positions do not have two dimensions, or a table has no vector for a position.
        """
        tokens = as_tokens(tokens)
        check_rank("tokens", tokens.ids, "B T")
        with jax.named_scope("embedding"):
            x = self.embeddings(tokens, key=fold_in_name(key, "embedding"))
        states, memory_mask = (None, None) if memory is None else (memory.states, memory.mask(tokens))
        x, intermediates = self.stack.run(
            x,
            states,
            tokens=tokens,
            mask=tokens.mask(causal=self.causal, window=self.window),
            memory_mask=memory_mask,
            bias=transformer.shared_bias(self.bias),
            key=fold_in_name(key, "layers"),
            capture=part_of(capture, "decoder"),
        )
        return normalized(x, self.norm), of_part(intermediates, "decoder")

    def _counted(self, tokens: Input, memory: Memory | None = None) -> Array | None:
        return as_tokens(tokens).valid

    @property
    def attention_names(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The names for `captured`."""
        crosses = self.stack.layers.cross is not None
        return ("decoder.self", "decoder.cross")[: 1 + crosses]

    def step_weights(self) -> StepWeights:
        """Returns a copy of the parameters that steps read: the layers unstacked, and the output table transposed.

        A program that runs many short searches computes it once, as the result of a compiled function, and passes it to
        `start`. This saves copying the layers in every search, and small products read a transposed table faster.
        """
        table = self.embeddings.tokens.table[...].T if self.output is None else self.output.kernel[...]
        return StepWeights(self.stack.unstacked(), table)

    def start(
        self,
        memory: Memory | None = None,
        *,
        batch_size: int,
        beam_size: int,
        length: int,
        weights: StepWeights | None = None,
        cache_dtype: DTypeLike | None = None,
    ) -> tuple[Context, DecoderState]:
        """Prepares to decode `length` positions with `beam_size` hypotheses for each of `batch_size` rows.

        The logits of a `step` beyond `length` are NaN.

        Args:
          weights: the result of `step_weights`, if it has been computed before.
          cache_dtype: the dtype of the cached keys and values; by default, the dtype of activations.

        Raises:
          ValueError: there are fewer position vectors than `length`, they depend on the final length of the sequence,
            or the rows of the attention function depend on their index.
        """
        transformer.check_steps(self.embeddings.positions)
        self.embeddings.check_length(length)
        if weights is None:  # a tied table is read in place, without a copy
            weights = StepWeights(self.stack.unstacked(), self.head.kernel)
        states, valid = (None, None) if memory is None else (memory.states, memory.valid)
        lanes = first_lanes(batch_size, beam_size, length)
        sizes = {"rows": batch_size * beam_size, "slots": length}
        if lanes is not None:
            sizes = {"rows": batch_size, "slots": length * beam_size}
        blocks = self.stack.blocks(weights.layers)
        if cache_dtype is None:
            cache_dtype = self.embeddings.dtype
        starts = [block.start(states, dtype=cache_dtype, **sizes) for block in blocks]
        projected, caches = zip(*starts, strict=True)
        context = Context(projected, valid, weights)
        return context, DecoderState(jnp.zeros((batch_size, beam_size), jnp.int32), lanes, caches)

    def step(
        self, tokens: Int[Array, "B K"], state: DecoderState, context: Context
    ) -> tuple[Float[Array, "B K V"], DecoderState]:
        """Returns the logits after one more token of each hypothesis, equal to that row of the teacher-forced logits.

        A step sees only the past, even in a model without the causal mask. Beyond the positions that `start` prepared,
        logits are NaN, and keys and values are not stored.

        Raises:
          ValueError: `tokens` do not have two dimensions, rows and hypotheses.
        """
        check_rank("tokens", tokens, "B K")
        return self.prefill(tokens[..., None], state, context)

    def attending_step(
        self, tokens: Int[Array, "B K"], state: DecoderState, context: Context
    ) -> tuple[Float[Array, "B K V"], Float[Array, "B K S"], DecoderState]:
        """Returns the logits of a `step`, the attention of these tokens to the memory, and the state.

        The attention is the mean over the heads of the last layer, as in CTranslate2.

        Raises:
          ValueError: there is no cross-attention.
        """
        if context.memory[-1] is None:
            raise ValueError("a decoder without cross-attention has no attention to a memory")
        captured: Intermediates = {}
        check_rank("tokens", tokens, "B K")
        logits, state = self.prefill(tokens[..., None], state, context, intermediates=captured)
        return logits, captured["cross"].weights().astype(jnp.float32).mean(1), state

    def prefill(
        self,
        tokens: Int[Array, "B K T"],
        state: DecoderState,
        context: Context,
        *,
        lengths: Int[Array, "B K"] | None = None,
        intermediates: Intermediates | None = None,
    ) -> tuple[Float[Array, "B K V"], DecoderState]:
        """Returns the logits after T more tokens of each hypothesis, computed at once, as after T calls of `step`.

        Args:
          lengths: the number of tokens of each hypothesis, from 0 to T, if they differ; the rest is padding, which
            later tokens overwrite. For a length of 0, the logits are meaningless.
          intermediates: receives the arguments of cross-attention in the last layer under "cross".
        """
        check_rank("tokens", tokens, "B K T")
        length = state.capacity
        lanes = jax.tree.map(lambda x: take_lanes(x, state.position, tokens.shape[2]), state.lanes)
        positions = state.position[..., None] + jnp.arange(tokens.shape[2])[None, None]
        x = self.embeddings.step(tokens, positions)
        shared = {
            "positions": positions,
            "lanes": lanes,
            "window": self.window,
            "memory_mask": padding_mask(context.valid),
            "bias": transformer.shared_bias(self.bias),
        }
        caches = []
        blocks = self.stack.blocks(context.weights.layers)
        for i, (block, cache, memory) in enumerate(zip(blocks, state.caches, context.memory, strict=True), 1):
            of_layer = intermediates if i == len(blocks) else None
            x, cache = block.step(x, cache, memory, **shared, intermediates=of_layer)
            caches.append(cache)
        x, position = x.reshape(*tokens.shape, -1), state.position + tokens.shape[2]
        if lengths is not None:
            position = state.position + lengths
            x = jnp.take_along_axis(x, lengths[..., None, None] - 1, 2)
        x = jnp.where((position <= length)[..., None], x[:, :, -1], jnp.nan)  # a traced position cannot raise an error
        head = self.head
        if context.weights.output is not None:
            head = dataclasses.replace(head, table=None, kernel=context.weights.output)
        logits = head.logits(normalized(x, self.norm))
        return logits, DecoderState(position, lanes, tuple(caches))


def decoder_of(config: TextDecoderConfig) -> Callable[..., Decoder]:
    """Returns `Decoder` with the settings of its output, its loss and its attention window."""
    make = functools.partial(Decoder, output_bias=config.output_bias, output_scale=config.output_scale)
    return functools.partial(
        make, load_balancing_weight=transformer.balance_weight(config), window=config.attention_window
    )


def make_decoder(
    config: DecoderConfig | LanguageModelConfig,
    *,
    attention: AttentionFunction = functional.attention,
    rngs: nnx.Rngs,
) -> Decoder:
    """Returns a decoder with new parameters; use it through ``pure(make_decoder, config)``."""
    memory_dim = config.memory_dim if isinstance(config, DecoderConfig) else None
    tokens = transformer.make_tokens(config, config.vocab_size, rngs=rngs)
    return decoder_of(config)(
        transformer.make_embeddings(
            config, tokens, transformer.make_position_vectors(config, tokens, rngs=rngs), rngs=rngs
        ),
        transformer.make_stack(config, config.num_layers, memory_dim=memory_dim, attention=attention, rngs=rngs),
        transformer.make_final_norm(config, rngs=rngs),
        None if config.tie_embeddings else transformer.make_output(config, config.vocab_size, rngs=rngs),
        bias=transformer.make_shared_bias(config, bidirectional=not config.causal, rngs=rngs),
        causal=config.causal,
    )
