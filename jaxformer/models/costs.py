"""The number of parameters and floating-point operations (FLOPs) of a model, from its configuration.

Multiply-adds of matrix products count as 2 operations; softmax, norms, activations and biases, a few percent, are left
out, as is usual for *model* FLOPs, and so is the channel of zeros that `functional.convolution` adds to RGB.

A backward pass costs twice as much as a forward pass, so a training step of any model takes 3 times its ``*_flops``.
What its backward pass computes again, ``*_recomputed_flops``, comes in addition.
"""

from __future__ import annotations

import math

import jax

from jaxformer.dims import resolve_head_dim
from jaxformer.models.captioner_config import RecurrentCaptionerConfig, TransformerCaptionerConfig
from jaxformer.models.config import (
    ClassifierConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    LanguageModelConfig,
    TransformerConfig,
)
from jaxformer.models.seq2seq import fed_size
from jaxformer.models.seq2seq_config import Seq2SeqConfig
from jaxformer.models.vision_config import GridConfig, ResidualNetworkConfig, VisionTransformerConfig
from jaxformer.modules.pure import Params
from jaxformer.modules.recurrent import CELLS
from jaxformer.modules.stack import is_unrolled


def num_parameters(shapes: Params) -> int:
    """Returns the number of parameters of a model with these shapes, such as ``Pure.shapes``; nothing is allocated.

    >>> from jaxformer import models, pure
    >>> f"{num_parameters(pure(models.EncoderDecoder, models.EncoderDecoderConfig(37_000, 37_000)).shapes):,}"
    '63,045,632'
    """
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def encoder_decoder_flops(config: EncoderDecoderConfig, batch: int, source_length: int, target_length: int) -> float:
    """Returns floating-point operations of one teacher-forced forward pass over a padded batch."""
    stacks = _encoder_decoder_stack_flops(config, batch, source_length, target_length)
    return stacks + _logits_flops(config, batch * target_length, config.target_vocab_size)


def encoder_decoder_recomputed_flops(
    config: EncoderDecoderConfig, batch: int, source_length: int, target_length: int
) -> float:
    """Returns the operations that a backward pass repeats.

    `Stack` recomputes the two products of attention and all products of experts or, with `remat`, each full block,
    except the last product of a pre-norm block without experts, which no gradient needs. Both products of attention are
    counted for fused attention too, although its results are saved and its backward pass recomputes only one of them. A
    few layers without `remat` on one device (see `targets.devices`) recompute nothing: see `modules.stack.UNROLLED`.
    """
    return _recomputed_flops(
        config,
        _encoder_decoder_stack_flops(config, batch, source_length, target_length),
        (config.num_encoder_layers, batch * source_length, source_length),
        (config.num_decoder_layers, batch * target_length, _seen(config, target_length) + source_length),
    )


def encoder_flops(config: EncoderConfig, batch: int, length: int) -> float:
    """Returns floating-point operations of one forward pass of the stack, without the projection of patches."""
    return _stack_flops(config, config.num_layers, batch, length)


def seq2seq_flops(config: Seq2SeqConfig, batch: int, source_length: int, target_length: int) -> float:
    """Returns floating-point operations of one teacher-forced forward pass over a padded batch."""
    d_model, d_hidden, gates = config.d_model, config.hidden_size, CELLS[config.cell][1]
    half, num_encoder, num_decoder = d_hidden // 2, config.num_encoder_layers, config.num_decoder_layers
    source = 2 * 2 * gates * half * (d_model + (num_encoder - 1) * d_hidden + num_encoder * half)
    inputs = d_model + fed_size(config) + (num_decoder - 1) * d_hidden
    target = 2 * gates * d_hidden * (inputs + num_decoder * d_hidden)
    target += 2 * d_model * (2 * d_hidden + config.target_vocab_size)  # the output layer and the logits
    bridge = 2 * d_hidden**2 * config.num_state_vectors
    pair, size = 0, config.d_attention or d_hidden
    if config.attention in ("additive", "concat"):
        source, target, pair = source + 2 * d_hidden * size, target + 2 * d_hidden * size, 2 * (size + d_hidden)
    elif config.attention != "none":
        source, pair = source + (2 * d_hidden**2 if config.attention == "general" else 0), 4 * d_hidden
    return float(batch) * (source_length * source + target_length * (target + source_length * pair) + bridge)


def language_model_flops(config: LanguageModelConfig, batch: int, length: int) -> float:
    """Returns floating-point operations of one forward pass over a padded batch.

    All pairs count under the causal mask; with an `attention_window` of W tokens, W pairs per token count, as in
    kernels that skip the others.
    """
    stack = _stack_flops(config, config.num_layers, batch, length, seen=_seen(config, length))
    return stack + _logits_flops(config, batch * length, config.vocab_size)


def language_model_recomputed_flops(config: LanguageModelConfig, batch: int, length: int) -> float:
    """Returns the operations that a backward pass repeats; see `encoder_decoder_recomputed_flops`."""
    seen = _seen(config, length)
    stack = _stack_flops(config, config.num_layers, batch, length, seen=seen)
    return _recomputed_flops(config, stack, (config.num_layers, batch * length, seen))


def cache_entries(config: TransformerConfig, num_layers: int) -> int:
    """Returns the count of numbers that a stack caches per decoded position: the key and value of every layer.

    A decoder with cross-attention also keeps as many for each position of its source.
    """
    return 2 * num_layers * _attention_dims(config)[1]


def encoder_recomputed_flops(config: EncoderConfig, batch: int, length: int) -> float:
    """Returns the operations that a backward pass repeats; see `encoder_decoder_recomputed_flops`."""
    stack = encoder_flops(config, batch, length)
    return _recomputed_flops(config, stack, (config.num_layers, batch * length, length))


def masked_language_model_flops(config: EncoderConfig, batch: int, length: int, num_masked: int) -> float:
    """Returns floating-point operations of a forward pass over a batch, with `num_masked` predictions per row."""
    head = 2.0 * batch * num_masked * config.d_model**2 + _logits_flops(config, batch * num_masked, config.vocab_size)
    return encoder_flops(config, batch, length) + head


def classifier_flops(config: ClassifierConfig, batch: int, length: int) -> float:
    """Returns floating-point operations of one forward pass over a padded batch."""
    return encoder_flops(config, batch, length) + _logits_flops(config, batch, config.num_classes)


def vision_transformer_flops(config: VisionTransformerConfig, batch: int) -> float:
    """Returns floating-point operations of one forward pass, including the projection of patches."""
    length, patches = num_patches(config) + config.has_class_vector, batch * num_patches(config)
    projection = 2.0 * patches * config.num_channels * config.patch_size**2 * config.d_model
    return projection + classifier_flops(config, batch, length)


def vision_transformer_recomputed_flops(config: VisionTransformerConfig, batch: int) -> float:
    """Returns the operations that a backward pass repeats; see `encoder_decoder_recomputed_flops`."""
    return encoder_recomputed_flops(config, batch, num_patches(config) + config.has_class_vector)


def num_patches(config: VisionTransformerConfig) -> int:
    """Returns the number of patches of an image."""
    height, width = config.image_size
    return (height // config.patch_size) * (width // config.patch_size)


def residual_network_flops(config: ResidualNetworkConfig, batch: int) -> float:
    """Returns floating-point operations of one forward pass; zero padding counts as pixels."""
    return grid_flops(config, batch) + 2.0 * batch * config.widths[-1] * config.num_classes


def grid_flops(config: GridConfig, batch: int) -> float:
    """Returns floating-point operations of a forward pass up to the grid; zero padding counts as pixels."""
    (height, width), widths = config.image_size, config.widths
    total = 2.0 * 9 * height * width * config.num_channels * widths[0]
    for stage, features in enumerate(widths, 1):
        before = widths[max(0, stage - 2)]
        if stage > 1:
            height, width = -(-height // 2), -(-width // 2)
        positions = height * width
        changes = stage > 1 or before != features
        total += (
            2.0 * positions * features * (9 * before + changes * before + (2 * config.num_blocks - 1) * 9 * features)
        )
        if config.attention != "none" and stage == config.attention_stage:
            dim = config.attention_dim
            total += 2.0 * positions * dim * (4 * features + 2 * positions)
    return batch * total


def captioner_flops(config: RecurrentCaptionerConfig | TransformerCaptionerConfig, batch: int, length: int) -> float:
    """Returns floating-point operations of one teacher-forced forward pass over images and padded captions."""
    (height, width), d_memory, d_model = config.image.grid_size, config.image.widths[-1], config.d_model
    positions, image = height * width, grid_flops(config.image, batch)
    if isinstance(config, TransformerCaptionerConfig):
        options = {"memory_dim": d_memory, "seen": _seen(config, length)}
        stack = _stack_flops(config, config.num_layers, batch, length, positions, **options)
        return image + stack + _logits_flops(config, batch * length, config.vocab_size)
    d_hidden, gates, layers = config.hidden_size, CELLS[config.cell][1], config.num_layers
    size = config.d_attention or d_hidden
    token = 2 * gates * d_hidden * (d_model + d_memory + (2 * layers - 1) * d_hidden)
    token += 2 * d_hidden * (size + config.context_gate) + positions * 2 * (
        size + (config.attention == "soft") * d_memory
    )
    token += 2 * d_model * (d_hidden + d_memory + config.vocab_size)  # the output layer and the logits
    once = 2 * d_memory * (positions * size + config.num_state_vectors * d_hidden)
    return image + float(batch) * (once + length * token)


def captioner_recomputed_flops(
    config: RecurrentCaptionerConfig | TransformerCaptionerConfig, batch: int, length: int
) -> float:
    """Returns the operations that a backward pass repeats; see `encoder_decoder_recomputed_flops`."""
    if isinstance(config, RecurrentCaptionerConfig):
        return 0.0
    positions, layers, seen = math.prod(config.image.grid_size), config.num_layers, _seen(config, length)
    options = {"memory_dim": config.image.widths[-1], "seen": seen}
    stack = _stack_flops(config, layers, batch, length, positions, **options)
    return _recomputed_flops(config, stack, (layers, batch * length, seen + positions))


def _seen(config: TransformerConfig, length: int) -> int:
    """Returns the number of tokens that each token of a decoder is counted to see."""
    return length if config.attention_window is None else min(length, config.attention_window)


def _attention_dims(config: TransformerConfig) -> tuple[int, int]:
    """Returns the numbers of features of all query heads, N H, and of all key heads, K H."""
    num_kv_heads = config.num_kv_heads or config.num_heads
    dim = resolve_head_dim(config.d_model, config.num_heads, num_kv_heads, config.head_dim)
    return config.num_heads * dim, num_kv_heads * dim


def _feed_forward_matrices(config: TransformerConfig) -> int:
    """Returns the number of D x F matrices in the feed-forward network."""
    gated = config.experts.gated if config.feed_forward == "experts" else config.feed_forward == "gated"
    return (3 if gated else 2) * (config.experts.num_experts_per_token if config.feed_forward == "experts" else 1)


def _stack_flops(
    config: TransformerConfig,
    num_layers: int,
    batch: int,
    length: int,
    memory_length: int | None = None,
    *,
    memory_dim: int | None = None,
    seen: int | None = None,
) -> float:
    """Returns the operations of a stack's forward pass, with cross-attention if there is a memory.

    Products of queries with position vectors (Shaw, Transformer-XL) and expert routing are left out.

    Args:
      seen: the number of tokens that each token sees in self-attention; None for all.
    """
    d_model, tokens = config.d_model, float(batch * length)
    queries, keys = _attention_dims(config)
    block = tokens * (4 * d_model * (queries + keys) + 4 * (length if seen is None else seen) * queries)
    block += tokens * 2 * d_model * config.d_ff * _feed_forward_matrices(config)
    if memory_length is not None:
        block += tokens * (4 * d_model * queries + 4 * memory_length * queries)
        block += batch * memory_length * 4 * (memory_dim or d_model) * keys  # cross-attention's keys and values
    return num_layers * block


def _encoder_decoder_stack_flops(
    config: EncoderDecoderConfig, batch: int, source_length: int, target_length: int
) -> float:
    encoder = _stack_flops(config, config.num_encoder_layers, batch, source_length)
    seen = _seen(config, target_length)
    return encoder + _stack_flops(config, config.num_decoder_layers, batch, target_length, source_length, seen=seen)


def _logits_flops(config: TransformerConfig, tokens: int, vocab_size: int) -> float:
    return float(tokens) * 2 * config.d_model * vocab_size


def _recomputed_flops(config: TransformerConfig, forward: float, *stacks: tuple[int, int, int]) -> float:
    """Returns the operations that a backward pass repeats.

    Args:
      forward: the operations of the forward pass of all stacks.
      stacks: for each stack, the numbers of layers, of tokens, and of keys that a token attends to in a layer.
    """
    looped = [stack for stack in stacks if not is_unrolled(stack[0], remat=config.remat)]
    tokens = sum(layers * number for layers, number, _ in looped)
    pairs = sum(layers * number * keys for layers, number, keys in looped)
    product, has_experts = 2.0 * config.d_model * config.d_ff * tokens, config.feed_forward == "experts"
    if not config.remat:
        again = product * _feed_forward_matrices(config) if has_experts else 0
        return 4.0 * _attention_dims(config)[0] * pairs + again
    return forward - (product if config.norm_position == "pre" and not has_experts else 0)
