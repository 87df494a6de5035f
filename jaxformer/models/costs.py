"""The numbers of parameters and floating-point operations of a model, from its configuration alone.

Multiply-adds of matrix products count as 2 operations; softmax, norms and activations, a few percent, are left out, as
is usual for *model* FLOPs. A backward pass costs twice a forward pass.
"""

from __future__ import annotations

from jaxformer.models.encoder_decoder import EncoderDecoderConfig
from jaxformer.models.language_model import LanguageModelConfig
from jaxformer.models.transformer import TransformerConfig


def encoder_decoder_parameters(config: EncoderDecoderConfig) -> int:
    """Returns the number of parameters."""
    tables = {
        "all": config.target_vocab_size,
        "decoder": config.source_vocab_size + config.target_vocab_size,
        "none": config.source_vocab_size + 2 * config.target_vocab_size,
    }[config.tie_embeddings]
    encoder = _stack_parameters(config, config.num_encoder_layers, cross=False)
    return tables * config.d_model + encoder + _stack_parameters(config, config.num_decoder_layers, cross=True)


def encoder_decoder_flops(config: EncoderDecoderConfig, batch: int, source_length: int, target_length: int) -> float:
    """Returns floating-point operations of one teacher-forced forward pass over a padded batch."""
    stacks = _encoder_decoder_stack_flops(config, batch, source_length, target_length)
    return stacks + _logits_flops(config, batch * target_length, config.target_vocab_size)


def encoder_decoder_training_flops(
    config: EncoderDecoderConfig, batch: int, source_length: int, target_length: int
) -> float:
    """Returns the operations of a forward and a backward pass; recomputation by remat is not counted."""
    return 3 * encoder_decoder_flops(config, batch, source_length, target_length)


def encoder_decoder_computed_flops(
    config: EncoderDecoderConfig, batch: int, source_length: int, target_length: int
) -> float:
    """Returns the operations of a forward and a backward pass with recomputation.

    `Stack` recomputes the two products of attention or, with `remat`, each full block, except the last product of a
    pre-norm block, which no gradient needs. Recomputation inside a fused kernel is not counted.
    """
    encoder, decoder = config.num_encoder_layers, config.num_decoder_layers
    pairs = encoder * source_length**2 + decoder * target_length * (target_length + source_length)
    recomputed = _recomputed_flops(
        config,
        pairs=batch * pairs,
        tokens=batch * (encoder * source_length + decoder * target_length),
        stacks=_encoder_decoder_stack_flops(config, batch, source_length, target_length),
    )
    return encoder_decoder_training_flops(config, batch, source_length, target_length) + recomputed


def language_model_parameters(config: LanguageModelConfig) -> int:
    """Returns the number of parameters."""
    tables = (1 if config.tie_embeddings else 2) * config.vocab_size
    return tables * config.d_model + _stack_parameters(config, config.num_layers, cross=False)


def language_model_flops(config: LanguageModelConfig, batch: int, length: int) -> float:
    """Returns floating-point operations of one forward pass over a padded batch; the causal mask saves none."""
    stack = _stack_flops(config, config.num_layers, batch, length)
    return stack + _logits_flops(config, batch * length, config.vocab_size)


def language_model_training_flops(config: LanguageModelConfig, batch: int, length: int) -> float:
    """Returns the operations of a forward and a backward pass; recomputation by remat is not counted."""
    return 3 * language_model_flops(config, batch, length)


def language_model_computed_flops(config: LanguageModelConfig, batch: int, length: int) -> float:
    """Returns the operations with recomputation; see `encoder_decoder_computed_flops`."""
    recomputed = _recomputed_flops(
        config,
        pairs=batch * config.num_layers * length**2,
        tokens=batch * config.num_layers * length,
        stacks=_stack_flops(config, config.num_layers, batch, length),
    )
    return language_model_training_flops(config, batch, length) + recomputed


def _stack_parameters(config: TransformerConfig, num_layers: int, *, cross: bool) -> int:
    """Returns the parameters of the blocks, the final norm and the positions."""
    d_model, d_ff = config.d_model, config.d_ff
    norm = 2 * d_model
    attention = 4 * d_model * d_model + (4 * d_model if config.attention_bias else 0)
    feed_forward = 2 * d_model * d_ff + d_ff + d_model
    block = (2 if cross else 1) * (attention + norm) + feed_forward + norm
    final_norm = norm if config.norm_position == "pre" else 0
    positions = config.max_positions * d_model if config.positions == "learned" else 0
    return num_layers * block + final_norm + positions


def _stack_flops(
    config: TransformerConfig, num_layers: int, batch: int, length: int, memory_length: int | None = None
) -> float:
    """Returns the operations of a stack's forward pass, with cross-attention if there is a memory."""
    d_model, tokens = config.d_model, float(batch * length)
    block = tokens * (8 * d_model**2 + 4 * d_model * config.d_ff + 4 * length * d_model)
    if memory_length is not None:
        block += tokens * (4 * d_model**2 + 4 * memory_length * d_model)
        block += batch * memory_length * 4 * d_model**2  # cross-attention's keys and values
    return num_layers * block


def _encoder_decoder_stack_flops(
    config: EncoderDecoderConfig, batch: int, source_length: int, target_length: int
) -> float:
    encoder = _stack_flops(config, config.num_encoder_layers, batch, source_length)
    return encoder + _stack_flops(config, config.num_decoder_layers, batch, target_length, source_length)


def _logits_flops(config: TransformerConfig, tokens: int, vocab_size: int) -> float:
    return float(tokens) * 2 * config.d_model * vocab_size


def _recomputed_flops(config: TransformerConfig, *, pairs: int, tokens: int, stacks: float) -> float:
    """Returns the operations that a backward pass repeats.

    Args:
      pairs: the number of pairs of positions that attend, over all layers.
      tokens: the number of tokens, over all layers.
      stacks: the operations of the forward pass of all stacks.
    """
    if not config.remat:
        return 4.0 * config.d_model * pairs
    return stacks - (2 * config.d_model * config.d_ff * tokens if config.norm_position == "pre" else 0)
