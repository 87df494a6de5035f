"""Image captioning models: text from images, by attention to the feature grid of a convolutional network."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxformer import functional, modules
from jaxformer.functional.feed_forward import add_shared
from jaxformer.functional.losses import LogitLoss
from jaxformer.functional.tokens import as_tokens, everywhere
from jaxformer.models import choices
from jaxformer.models.config import DecoderConfig, LanguageModelConfig
from jaxformer.models.decoder import make_decoder
from jaxformer.models.decoding_model import Context, ContextT, DecoderState, MemoryDecodingModel, StateT
from jaxformer.models.encoder import Memory
from jaxformer.models.recurrent_decoder import (
    RecurrentContext,
    RecurrentDecoder,
    RecurrentDecoderState,
    captured_weights,
)
from jaxformer.models.residual_network import FeatureGrid
from jaxformer.models.token_model import CROSS_ENTROPY, Input
from jaxformer.models.vision_config import RecurrentCaptionerConfig, TransformerCaptionerConfig
from jaxformer.modules.captured import Intermediates
from jaxformer.modules.layers import zeros_param


class Captioner(MemoryDecodingModel[ContextT, StateT]):
    """The parts that captioners share: the memory of an image, and decoding steps."""

    def __init__(
        self,
        config: RecurrentCaptionerConfig | TransformerCaptionerConfig,
        *,
        attention: modules.AttentionFunction = functional.attention,
        rngs: nnx.Rngs,
    ):
        image, (height, width) = config.image, config.image.grid_size
        self.grid = FeatureGrid(image, dtype=config.compute_dtype, attention=attention, rngs=rngs)
        table = modules.LearnedPositions(height * width, image.widths[-1], rngs=rngs) if config.grid_positions else None
        self.positions = table
        self.shape = *image.image_size, image.num_channels

    def encode(self, images: Float[Array, "B h w C"]) -> Memory:
        """Returns the memory of images: the features at each position of the grid, row by row.

        Raises:
          ValueError: the images have another size.
        """
        if images.shape[1:] != self.shape:
            raise ValueError(f"images must be [B, {', '.join(map(str, self.shape))}], got {list(images.shape)}")
        with jax.named_scope("image"):
            x = self.grid.features(images)
            x = x.reshape(x.shape[0], -1, x.shape[-1])
            if self.positions is not None:
                x = add_shared(x, self.positions(jnp.arange(x.shape[1])[None], x.shape[1]))
        return Memory(x, None)


class TransformerCaptioner(Captioner[Context, DecoderState]):
    """``images, tokens -> logits`` by a Transformer decoder; use it through ``pure(TransformerCaptioner, config)``."""

    attention_names = ("decoder.self", "decoder.cross")

    def __init__(
        self,
        config: TransformerCaptionerConfig,
        *,
        attention: modules.AttentionFunction = functional.attention,
        rngs: nnx.Rngs,
    ):
        super().__init__(config, attention=attention, rngs=rngs)
        shape = {field.name: getattr(config, field.name) for field in dataclasses.fields(LanguageModelConfig)}
        memory_dim = config.image.widths[-1]
        self.decoder = make_decoder(DecoderConfig(**shape, memory_dim=memory_dim), attention=attention, rngs=rngs)

    def states(
        self,
        images: Float[Array, "B h w C"],
        tokens: Input,
        *,
        key: jax.Array | None = None,
        capture: Collection[str] = (),
    ) -> tuple[Float[Array, "B T D"], Intermediates]:
        """Returns the teacher-forced states of captions: those of row t see ``tokens[:, :t + 1]``. See `TokenModel`."""
        return self.decoder.states(tokens, self.encode(images), key=key, capture=capture)


class RecurrentCaptioner(Captioner[RecurrentContext, RecurrentDecoderState]):
    r"""``images, tokens -> logits`` as in Show, Attend and Tell; use it through ``pure(RecurrentCaptioner, config)``.

    The initial states of the LSTM are learned maps of the mean feature, :math:`c_0, h_0 = \tanh(W \bar a + b)`. Each
    step attends to the grid by additive attention from the previous state, and reads :math:`[y_{t-1}; z_t]`; its output
    is :math:`\tanh(W_o [h_t; z_t])` and its logits are computed as in `Seq2Seq` (Xu et al. 2015, 3.1). With soft
    attention, :math:`z_t` is the mean of the grid, weighted by attention; with hard attention it is the feature of one
    position, which is drawn from the weights in training, and is the most probable one otherwise. With `context_gate`,
    :math:`z_t` is multiplied by :math:`\beta_t = \sigma(w \cdot h_{t-1} + b)` (4.2.1).
    """

    attention_names = ("decoder.cross",)

    def __init__(
        self,
        config: RecurrentCaptionerConfig,
        *,
        attention: modules.AttentionFunction = functional.attention,
        rngs: nnx.Rngs,
    ):
        super().__init__(config, attention=attention, rngs=rngs)
        d_model, d_hidden, d_memory = config.d_model, config.hidden_size, config.image.widths[-1]
        layers = {"cell": config.cell, "dropout": config.dropout, "state_dropout": config.state_dropout}
        linear = functools.partial(modules.Linear, bias=False, rngs=rngs)
        is_hard = isinstance(config.attention, choices.HardAttention)
        untied = None if config.tie_embeddings else linear(d_model, config.vocab_size, axes=("model", "vocab"))
        tokens = modules.Embedding(config.vocab_size, d_model, rngs=rngs)
        self.decoder = RecurrentDecoder(
            modules.Embeddings(tokens, dropout=config.dropout, dtype=config.compute_dtype),
            modules.RecurrentStack(d_model + d_memory, d_hidden, config.num_layers, **layers, rngs=rngs),
            modules.Linear(
                d_memory, config.state_vectors(config.num_layers) * d_hidden, axes=("model", "hidden"), rngs=rngs
            ),
            linear(d_hidden + d_memory, d_model, axes=("hidden", "model")),
            alignment=modules.Alignment(d_hidden, d_memory, config.d_attention or d_hidden, rngs=rngs),
            output=untied,
            gate=modules.Linear(d_hidden, 1, axes=("hidden", None), rngs=rngs) if config.context_gate else None,
            feed="context",
            summary=_mean_feature,
            hard=is_hard,
            dropout=config.dropout,
        )
        # The moving average of the log-probability of a token, which only `reinforced_loss` reads.
        self.baseline = zeros_param((), (), exists=is_hard)

    def states(
        self,
        images: Float[Array, "B h w C"],
        tokens: Input,
        *,
        key: jax.Array | None = None,
        capture: Collection[str] = (),
    ) -> tuple[Float[Array, "B T D"], Intermediates]:
        """Returns the teacher-forced outputs of captions, with the most probable positions of hard attention."""
        del capture  # the weights are computed anyway
        outputs, weights = self.decoder(tokens, self.encode(images), key=key)
        return outputs, captured_weights(weights)

    def doubly_stochastic_loss(
        self,
        images: Float[Array, "B h w C"],
        tokens: Input,
        *,
        labels: Int[Array, "B T"],
        weight: float,
        loss: LogitLoss = CROSS_ENTROPY,
        key: jax.Array | None = None,
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Returns the `loss` plus `functional.doubly_stochastic_penalty`, one term for each image, times `weight`."""
        valid = as_tokens(tokens).valid
        x, weights = self.decoder(tokens, self.encode(images), key=key)
        total, count = self.head.loss(x, labels, loss, where=valid)
        return total + weight * functional.doubly_stochastic_penalty(weights, where=valid), count

    def reinforced_loss(
        self,
        images: Float[Array, "B h w C"],
        tokens: Input,
        noise: Float[Array, "B T S"],
        *,
        labels: Int[Array, "B T"],
        smoothing: float = 0.0,
        entropy: float = 0.0,
        mean: Bool[Array, " B"] | None = None,
        key: jax.Array | None = None,
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        r"""Returns the loss with the positions that `noise` selects, (sum, count), for hard attention.

        With Gumbel noise, the expected gradient is the gradient of :math:`-E[\log p(y \mid s)]`, the bound of Xu et al.
        2015, 4.1, over the draws s: the gradient of `functional.reinforce`, whose baseline is the parameter `baseline`,
        is added to the gradient of the tokens' log-probability. The baseline has the gradient of a squared error, so
        gradient descent on the mean loss at a rate of 0.1 makes it the moving average of the log-probability of a
        token, with a decay of 0.9. Neither term changes the value of the loss.

        Args:
          noise: see `functional.pick_position`.
          entropy: the factor of the entropy of each step's weights, which is subtracted from the loss.
          mean: True for rows that use soft attention, with its exact gradient, which lowers the variance; default:
            none.

        Raises:
          ValueError: the attention is soft.
        """
        if self.baseline is None:
            raise ValueError("reinforced_loss needs a model with attention hard, got soft")
        valid = as_tokens(tokens).valid
        x, weights = self.decoder(tokens, self.encode(images), key=key, noise=noise, mean=mean)
        logits = self.head.logits(x)
        with jax.named_scope("loss"):
            total, count = functional.cross_entropy(logits, labels, where=valid, smoothing=smoothing)
            rewards = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], 2)[..., 0]
            real = everywhere(valid, labels.shape)
            # At padding a label may be no token, whose reward would be NaN, and 0 times NaN is NaN.
            rewards, baseline = jax.lax.stop_gradient(jnp.where(real, rewards, 0.0)), self.baseline[...]
            drawn = real if mean is None else real & ~mean[:, None]
            chosen = jnp.take_along_axis(weights, functional.pick_position(weights, noise)[..., None], 2)[..., 0]
            log_probs = jnp.log(jnp.where(drawn, chosen, 1.0))  # an undrawn weight of 0 has gradient 0, not NaN
            estimate = functional.reinforce(log_probs, rewards, baseline=baseline, where=drawn)
            estimate += jnp.where(real, jnp.square(rewards - baseline) / 2, 0.0).sum()
            spread = jnp.where(real, functional.weights_entropy(weights), 0.0).sum()
            return total + estimate - jax.lax.stop_gradient(estimate) - entropy * spread, count


def _mean_feature(memory: Memory) -> Float[Array, "B C"]:
    return memory.states.mean(1)
