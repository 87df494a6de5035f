"""Parameters and arithmetic of a model, from its configuration alone: the one place where they are counted.

Multiply-adds of matrix products count as 2 operations; softmax, norms and activations, a few per cent, are left
out, as is usual for *model* FLOPs.  A backward pass costs twice a forward pass.
"""

from __future__ import annotations

import dataclasses

from jaxformer.models.encoder_decoder import EncoderDecoderConfig


def encoder_decoder_parameters(config: EncoderDecoderConfig) -> int:
    """The number of parameters."""
    width, hidden = config.width, config.hidden
    norm = 2 * width
    attention = 4 * width * width + (4 * width if config.attention_bias else 0)
    feed_forward = 2 * width * hidden + hidden + width
    encoder = config.encoder_depth * (attention + feed_forward + 2 * norm)
    decoder = config.decoder_depth * (2 * attention + feed_forward + 3 * norm)
    tables = {
        "all": config.target_vocab_size,
        "decoder": config.source_vocab_size + config.target_vocab_size,
        "none": config.source_vocab_size + 2 * config.target_vocab_size,
    }[config.tie]
    positions = 2 * config.max_length if config.positions == "learned" else 0
    final_norms = 2 * norm if config.arrange == "pre" else 0
    return encoder + decoder + final_norms + (tables + positions) * width


def encoder_decoder_flops(config: EncoderDecoderConfig, batch: int, source_length: int, target_length: int) -> float:
    """Floating-point operations of one teacher-forced forward pass over a padded batch."""
    width, hidden = config.width, config.hidden
    source, target = float(batch * source_length), float(batch * target_length)
    feed_forward = 4 * width * hidden
    encoder = source * (8 * width**2 + feed_forward + 4 * source_length * width)
    decoder = target * (12 * width**2 + feed_forward + 4 * (target_length + source_length) * width)
    memory = source * 4 * width**2  # cross-attention's keys and values
    logits = target * 2 * width * config.target_vocab_size
    return config.encoder_depth * encoder + config.decoder_depth * (decoder + memory) + logits


def encoder_decoder_training_flops(
    config: EncoderDecoderConfig, batch: int, source_length: int, target_length: int
) -> float:
    """Forward and backward; recomputation by remat is not counted, since it is no use to the model."""
    return 3 * encoder_decoder_flops(config, batch, source_length, target_length)


def encoder_decoder_computed_flops(
    config: EncoderDecoderConfig, batch: int, source_length: int, target_length: int
) -> float:
    """Forward and backward as they run, with what the backward pass computes again.

    That is attention's two products, for `Stack` keeps only the others; with `remat` the whole of each block, but for
    the last product of a pre-norm block, which no gradient needs.  What a fused kernel computes again within itself is
    left out.
    """
    shape = batch, source_length, target_length
    tokens = batch * (config.encoder_depth * source_length + config.decoder_depth * target_length)  # of all layers
    own, across = config.encoder_depth * source_length**2, config.decoder_depth * target_length
    again = 4.0 * config.width * batch * (own + across * (target_length + source_length))
    if config.remat:
        blocks = dataclasses.replace(config, source_vocab_size=0, target_vocab_size=0)  # no logits
        last = 2 * config.width * config.hidden * tokens if config.arrange == "pre" else 0
        again = encoder_decoder_flops(blocks, *shape) - last
    return encoder_decoder_training_flops(config, *shape) + again
