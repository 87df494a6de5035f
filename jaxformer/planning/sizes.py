"""The size of published models: parameters, FLOPs, and the memory for training and decoding. Nothing is allocated."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax

from jaxformer.models.config import EncoderConfig, EncoderDecoderConfig
from jaxformer.models.encoder import make_encoder
from jaxformer.models.encoder_decoder import EncoderDecoder
from jaxformer.models.language_model import LanguageModel
from jaxformer.models.presets import Preset
from jaxformer.modules.pure import pure
from jaxformer.planning import flops

ITEM_BYTES = {"float32": 4, "bfloat16": 2}
"""The bytes per number of each dtype."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The size of one model."""

    family: Literal["encoder", "decoder", "encoder-decoder"]
    num_layers: int
    """Encoder and decoder blocks together."""
    vocab_size: int
    parameters: int
    difference: float
    """The number of parameters relative to the published one, minus 1."""
    forward_flops: float
    """The operations of a forward pass per token of a sequence of the training length, attention included; in an
    encoder-decoder, the tokens of source and target count."""
    training: dict[str, dict[str, int]]
    """The bytes of the training state with Adam, without activations, by their dtype: of the parameters, the gradients,
    and both moments."""
    decoding: dict[str, dict[str, int]]
    """The bytes that are kept while one sequence is decoded up to the training length, by their dtype: of the
    parameters, and of the cache, the keys and values of all layers; in an encoder-decoder, also of a source of the same
    length. Empty for an encoder, which decodes nothing."""
    cache_token: int
    """The count of cached numbers per position of a sequence."""

    @property
    def training_flops(self) -> float:
        """The operations of a forward and a backward pass per token."""
        return 3 * self.forward_flops


def sizes(preset: Preset) -> Sizes:
    """Returns the size of a published model.

    >>> from jaxformer.models.presets import PRESETS
    >>> gpt2 = sizes(PRESETS["gpt2"])
    >>> gpt2.parameters, gpt2.training["float32"]["moments"], gpt2.decoding["bfloat16"]["cache"]
    (124439808, 995518464, 37748736)
    """
    config, length = preset.config, preset.length
    tokens, made_with = jax.ShapeDtypeStruct((1, length), "int32"), {"attention": flops.attention}
    if isinstance(config, EncoderDecoderConfig):
        family, vocab_size, net = "encoder-decoder", config.target_vocab_size, pure(EncoderDecoder, config, **made_with)
        num_layers, inputs = config.num_encoder_layers + config.num_decoder_layers, (tokens, tokens)
        num_cached, positions = config.num_decoder_layers, 2 * length
    elif isinstance(config, EncoderConfig):
        family, vocab_size, net = "encoder", config.vocab_size, pure(make_encoder, config, **made_with)
        num_layers, inputs = config.num_layers, (tokens,)
        num_cached = positions = 0
    else:
        family, vocab_size, net = "decoder", config.vocab_size, pure(LanguageModel, config, **made_with)
        num_layers, inputs = config.num_layers, (tokens,)
        num_cached, positions = num_layers, length
    forward_flops = flops.flops(flops.forward(net.apply, net.shapes, *inputs)) / (length * len(inputs))
    num_kv_heads = config.num_kv_heads or config.num_heads
    cached = 2 * num_cached * num_kv_heads * config.dim_of_heads  # the key and the value of every layer
    parameters, items = net.num_parameters, ITEM_BYTES.items()
    training = {"parameters": parameters, "gradients": parameters, "moments": 2 * parameters}
    decoding = {"parameters": parameters, "cache": cached * positions}
    return Sizes(
        family,
        num_layers,
        vocab_size,
        parameters,
        parameters / preset.published - 1,
        forward_flops,
        {dtype: {name: size * number for name, number in training.items()} for dtype, size in items},
        {dtype: {name: size * number for name, number in decoding.items()} for dtype, size in items if cached},
        cached,
    )
