"""The parts that all transformers share, built from their configuration."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float

from jaxformer import functional, modules
from jaxformer.functional import RotaryScaling
from jaxformer.functional.bias import Bias
from jaxformer.functional.normalization import Arrangement, DeepNormGains
from jaxformer.models import choices
from jaxformer.models.config import TextConfig, TransformerConfig
from jaxformer.modules.layers import FAIRSEQ_GAINS, UNIT_GAINS, Norm, scaled_gains

ACTIVATIONS = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": functional.gelu_tanh,
    "silu": functional.silu,
}


def make_norm(config: TransformerConfig, *, rngs: nnx.Rngs) -> Norm:
    """Returns one norm, which may be a module of your own."""
    match config.norm:
        case choices.LayerNorm(epsilon, form):
            return modules.LayerNorm(config.d_model, epsilon=epsilon, form=form)
        case choices.RMSNorm(epsilon):
            return modules.RMSNorm(config.d_model, epsilon=epsilon)
        case own:
            return own.make(config, rngs=rngs)


def make_final_norm(config: TransformerConfig, *, rngs: nnx.Rngs) -> Norm | None:
    """Returns the norm after the last block, if there is one."""
    return make_norm(config, rngs=rngs) if config.has_final_norm else None


def make_embeddings(
    config: TextConfig, tokens: modules.Embedding, vectors: modules.PositionVectors | None, *, rngs: nnx.Rngs
) -> modules.Embeddings:
    """Returns the input of a stack."""
    types = None
    if config.num_token_types:
        types = modules.Embedding(config.num_token_types, config.d_model, scale=1.0, rngs=rngs)
    norm = make_norm(config, rngs=rngs) if config.embedding_norm else None
    dropout = dropout_of_embeddings(config)
    return modules.Embeddings(tokens, vectors, types=types, norm=norm, dropout=dropout, dtype=config.compute_dtype)


def dropout_of_embeddings(config: TransformerConfig) -> float:
    """Returns the probability of dropping embeddings."""
    return config.dropout if config.embedding_dropout is None else config.embedding_dropout


def make_tokens(config: TextConfig, vocab_size: int, *, rngs: nnx.Rngs) -> modules.Embedding:
    """Returns a table of token vectors."""
    return modules.Embedding(vocab_size, config.d_model, scale=config.embedding_scale, rngs=rngs)


def make_position_vectors(
    config: TextConfig, tokens: modules.Embedding, *, rngs: nnx.Rngs
) -> modules.PositionVectors | None:
    """Returns the vectors that are added to token vectors, or None; learned ones are as large as those at first."""
    match config.positions:
        case choices.Sinusoidal(layout, offset):
            return modules.SinusoidalPositions(config.d_model, layout=layout, offset=offset)
        case choices.Learned(offset):
            size = tokens.scale * config.d_model**-0.5
            return modules.LearnedPositions(
                config.max_positions, config.d_model, offset=offset, deviation=size, rngs=rngs
            )
        case choices.Raw():
            return modules.RawPositions(config.d_model, normalized=False)
        case choices.Normalized():
            return modules.RawPositions(config.d_model, normalized=True)
        case (
            choices.Rotary() | choices.Alibi() | choices.T5() | choices.RelativeKeys() | choices.TransformerXL() | None
        ):
            return None
        case own:
            part = own.make(config, rngs=rngs)
            return part if isinstance(part, modules.PositionVectors) else None


def check_steps(vectors: modules.PositionVectors | None) -> None:
    """Checks that position vectors do not depend on the final length of a sequence, which a decoder does not know."""
    if vectors is not None and vectors.needs_length:
        raise ValueError("a decoder cannot have normalized positions t / (N - 1): N is not known before the end")


def make_shared_bias(config: TextConfig, *, bidirectional: bool, rngs: nnx.Rngs) -> modules.T5Bias | None:
    """Returns the bias of self-attention that all layers of a stack share, or None."""
    if not isinstance(config.positions, choices.T5):
        return None
    sizes = dataclasses.asdict(config.positions)
    return modules.T5Bias(config.num_heads, **sizes, bidirectional=bidirectional, rngs=rngs)


def shared_bias(part: modules.T5Bias | None) -> Bias | None:
    """Returns the bias that all layers share, if they share one."""
    return None if part is None else part()


def make_output(config: TransformerConfig, vocab_size: int, *, rngs: nnx.Rngs) -> modules.Linear:
    """Returns an output projection with its own matrix."""
    return modules.Linear(config.d_model, vocab_size, bias=False, axes=("model", "vocab"), rngs=rngs)


def balance_weight(config: TransformerConfig) -> float:
    """Returns the weight of the load-balancing loss in training; 0 without experts."""
    network = config.feed_forward
    return network.load_balancing_weight if isinstance(network, choices.Experts) else 0.0


def balance_loss(routing: functional.Routing, valid: Bool[Array, "B T"] | None = None) -> Float[Array, ""]:
    """Returns the mean load-balancing loss of the layers of a stack: see `functional.load_balancing_loss`."""
    return jax.vmap(lambda layer: functional.load_balancing_loss(layer, valid))(routing).mean()


def make_stack(
    config: TransformerConfig,
    num_layers: int,
    *,
    memory_dim: int | None = None,
    gains: DeepNormGains | None = None,
    attention: modules.AttentionFunction,
    rngs: nnx.Rngs,
) -> modules.Stack[modules.Block]:
    """Returns a stack of blocks with these settings.

    Args:
      memory_dim: the dimension of the memory that the blocks read by cross-attention; None for blocks without it.
      gains: the gains of `functional.deep_norm`, by default for a model with only this stack.
    """
    if gains is None:
        gains = functional.deep_norm_gains(num_layers, 0)[0]
    arrangement = _arrangement(config, gains)
    initial = _initial_gains(config, num_layers, gains)
    make_cross = functools.partial(modules.CrossAttention, config.d_model, config.num_heads)

    def make_block(rngs: nnx.Rngs) -> modules.Block:
        heads = {
            "num_kv_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "bias": config.attention_bias,
            "output_bias": config.attention_output_bias,
            "logits": _logits(config),
            "dropout": config.attention_dropout,
            "attention": attention,
            "gains": initial,
        }
        scheme = _scheme(config, rngs=rngs) if isinstance(config, TextConfig) else None
        norm = functools.partial(make_norm, config, rngs=rngs)
        return modules.Block(
            modules.SelfAttention(config.d_model, config.num_heads, positions=scheme, **heads, rngs=rngs),
            _feed_forward(config, initial, rngs=rngs),
            cross=None if memory_dim is None else make_cross(memory_dim=memory_dim, **heads, rngs=rngs),
            norm=(lambda: modules.NormPair(norm)) if config.norm_position == "sandwich" else norm,
            arrangement=arrangement,
            dropout=config.dropout,
        )

    return modules.Stack(make_block, num_layers, remat=config.remat, rngs=rngs)


def _arrangement(config: TransformerConfig, deep: DeepNormGains) -> Arrangement:
    return {
        "post": functional.post_norm,
        "pre": functional.pre_norm,
        "sandwich": functional.sandwich_norm,
        "deep": functional.deep_norm(deep.alpha),
    }[config.norm_position]


def _initial_gains(config: TransformerConfig, num_layers: int, deep: DeepNormGains) -> modules.Gains:
    match config.initialization or ("deepnet" if config.norm_position == "deep" else "scaled"):
        case "fairseq":
            return FAIRSEQ_GAINS
        case "xavier":
            return UNIT_GAINS
        case "scaled":
            return scaled_gains(num_layers, after_residual=config.norm_position in ("post", "deep"))
        case "deepnet":  # for queries and keys, the gains of DeepNet are 1
            return modules.Gains(value=deep.beta, output=deep.beta, up=deep.beta, down=deep.beta)


def _logits(config: TransformerConfig) -> modules.Logits:
    score = None if config.attention_soft_cap is None else functional.soft_cap(config.attention_soft_cap)
    norms = {"qk_norm": config.qk_norm, "qk_norm_epsilon": getattr(config.norm, "epsilon", 1e-6)}
    return modules.Logits(config.attention_scale, score, sinks=config.attention_sinks, **norms)


def _scheme(config: TextConfig, *, rngs: nnx.Rngs) -> modules.PositionScheme | None:
    dim = config.dim_of_heads
    match config.positions:
        case choices.Rotary(base, pairs, scaling):
            return modules.positions.Rotary(base=base, scaling=_scaling(scaling), pairs=pairs)
        case choices.Alibi():
            return modules.positions.Alibi(config.num_heads)
        case choices.RelativeKeys(max_distance):
            return modules.positions.RelativeKeys(dim, max_distance, rngs=rngs)
        case choices.TransformerXL():
            return modules.positions.TransformerXL(config.d_model, config.num_heads, dim, rngs=rngs)
        case choices.Sinusoidal() | choices.Learned() | choices.Raw() | choices.Normalized() | choices.T5() | None:
            return None
        case own:
            part = own.make(config, rngs=rngs)
            return None if isinstance(part, modules.PositionVectors) else part


def _scaling(scaling: choices.LinearScaling | None) -> RotaryScaling | None:
    """Returns the scaling of rotary positions as a function."""
    match scaling:
        case choices.Llama3Scaling(factor, trained_length):
            return functional.llama3_scaling(factor, trained_length)
        case choices.YaRNScaling(factor, trained_length):
            return functional.yarn_scaling(factor, trained_length)
        case choices.NTKScaling(factor):
            return functional.ntk_scaling(factor)
        case choices.LinearScaling(factor):
            return functional.linear_scaling(factor)
        case None:
            return None


def _feed_forward(
    config: TransformerConfig, gains: modules.Gains, *, rngs: nnx.Rngs
) -> modules.FeedForward | modules.MixtureOfExperts | Callable[..., Array]:
    shared = {"activation": ACTIVATIONS[config.activation], "gains": gains, "rngs": rngs}
    match config.feed_forward:
        case choices.Experts(num_experts, num_experts_per_token, capacity_factor, gated):
            return modules.MixtureOfExperts(
                config.d_model,
                num_experts,
                config.d_ff,
                num_experts_per_token=num_experts_per_token,
                capacity_factor=capacity_factor,
                gated=gated,
                **shared,
            )
        case choices.Gated(bias, dropout):
            return modules.GatedFeedForward(config.d_model, config.d_ff, bias=bias, dropout=dropout, **shared)
        case choices.Plain(bias, dropout):
            return modules.FeedForward(config.d_model, config.d_ff, bias=bias, dropout=dropout, **shared)
        case own:
            return own.make(config, rngs=rngs)
