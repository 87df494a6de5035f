"""Parameters and arithmetic of a model, from its configuration alone: the one place where they are counted.

Multiply-adds of matrix products count as 2 operations; softmax, norms and activations, a few per cent, are left
out, as is usual for *model* FLOPs.  A backward pass costs twice a forward pass.
"""

from __future__ import annotations

import dataclasses

from jaxformer.models.encoder_decoder import EncoderDecoderConfig


def encoder_decoder_parameters(config: EncoderDecoderConfig) -> int:
    """The number of parameters."""
    d_model, d_ff = config.d_model, config.d_ff
    norm = 2 * d_model
    attention = 4 * d_model * d_model + (4 * d_model if config.attention_bias else 0)
    feed_forward = 2 * d_model * d_ff + d_ff + d_model
    encoder = config.num_encoder_layers * (attention + feed_forward + 2 * norm)
    decoder = config.num_decoder_layers * (2 * attention + feed_forward + 3 * norm)
    tables = {
        "all": config.target_vocab_size,
        "decoder": config.source_vocab_size + config.target_vocab_size,
        "none": config.source_vocab_size + 2 * config.target_vocab_size,
    }[config.tie_embeddings]
    positions = 2 * config.max_positions if config.positions == "learned" else 0
    final_norms = 2 * norm if config.norm_position == "pre" else 0
    return encoder + decoder + final_norms + (tables + positions) * d_model


def encoder_decoder_flops(config: EncoderDecoderConfig, batch: int, source_length: int, target_length: int) -> float:
    """Floating-point operations of one teacher-forced forward pass over a padded batch."""
    d_model, d_ff = config.d_model, config.d_ff
    source, target = float(batch * source_length), float(batch * target_length)
    feed_forward = 4 * d_model * d_ff
    encoder = source * (8 * d_model**2 + feed_forward + 4 * source_length * d_model)
    decoder = target * (12 * d_model**2 + feed_forward + 4 * (target_length + source_length) * d_model)
    memory = source * 4 * d_model**2  # cross-attention's keys and values
    logits = target * 2 * d_model * config.target_vocab_size
    return config.num_encoder_layers * encoder + config.num_decoder_layers * (decoder + memory) + logits


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
    tokens = batch * (
        config.num_encoder_layers * source_length + config.num_decoder_layers * target_length
    )  # of all layers
    own, across = config.num_encoder_layers * source_length**2, config.num_decoder_layers * target_length
    again = 4.0 * config.d_model * batch * (own + across * (target_length + source_length))
    if config.remat:
        blocks = dataclasses.replace(config, source_vocab_size=0, target_vocab_size=0)  # no logits
        last = 2 * config.d_model * config.d_ff * tokens if config.norm_position == "pre" else 0
        again = encoder_decoder_flops(blocks, *shape) - last
    return encoder_decoder_training_flops(config, *shape) + again
