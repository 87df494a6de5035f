"""The settings that all transformers share, and the parts that are made of them."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Collection, Mapping
from typing import Any, Literal

from flax import nnx

from jaxformer import functional
from jaxformer.functional.positions.rotary import Scaling
from jaxformer.functional.residual import Arrangement
from jaxformer.functional.residual import Gains as DeepNormGains
from jaxformer.modules import (
    AttentionFunction,
    Block,
    CrossAttention,
    Embedding,
    Embeddings,
    FeedForward,
    Gains,
    GatedFeedForward,
    LayerNorm,
    LearnedPositions,
    Linear,
    Logits,
    MixtureOfExperts,
    NormPair,
    PositionScheme,
    PositionVectors,
    RawPositions,
    RMSNorm,
    SelfAttention,
    SinusoidalPositions,
    Stack,
    T5Bias,
    positions,
)
from jaxformer.modules.attention import resolve_head_dim
from jaxformer.modules.initializers import scaled_gains

ACTIVATIONS = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": functional.gelu_tanh,
    "silu": functional.silu,
}

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
NormPosition = Literal["post", "pre", "sandwich", "deep"]
Positions = Literal[
    "none",
    "sinusoidal",
    "sinusoidal_halves",
    "learned",
    "raw",
    "normalized",
    "rotary",
    "alibi",
    "t5",
    "relative_keys",
    "transformer_xl",
]
Norm = LayerNorm | RMSNorm
T = typing.TypeVar("T")


@dataclasses.dataclass(frozen=True)
class RotaryConfig:
    """Rotary positions."""

    base: float = 10_000.0
    """The base of the frequencies."""
    pairs: Literal["halves", "neighbors"] = "halves"
    """The features that rotate together: k and k + H / 2 (Llama), or neighbors (the paper)."""
    scaling: Literal["none", "linear", "ntk", "yarn", "llama3"] = "none"
    """The change of frequencies for contexts longer than the trained one."""
    factor: float = 1.0
    """The factor by which the context is longer."""
    trained_length: int = 2048
    """The context that the model was trained on, for yarn and llama3."""

    def make_scaling(self) -> Scaling | None:
        """Returns the scaling as a function."""
        match self.scaling:
            case "none":
                return None
            case "linear":
                return functional.linear_scaling(self.factor)
            case "ntk":
                return functional.ntk_scaling(self.factor)
            case "yarn":
                return functional.yarn_scaling(self.factor, self.trained_length)
            case "llama3":
                return functional.llama3_scaling(self.factor, self.trained_length)


@dataclasses.dataclass(frozen=True)
class ExpertsConfig:
    """A mixture of experts in place of each feed-forward network."""

    num_experts: int = 8
    """The number of networks."""
    count: int = 2
    """The number of networks that each token is sent to."""
    capacity_factor: float | None = None
    """The tokens that an expert takes in training, relative to an even share; null for no limit."""
    gated: bool = False
    """Makes the experts gated networks."""
    balance: float = 0.01
    """The weight of the load-balancing loss in training."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The settings that every transformer has. `docs/families.md` has those of published model families."""

    d_model: int = 512
    """D, the dimension of the model."""
    num_heads: int = 8
    """N, the number of attention heads."""
    num_kv_heads: int | None = None
    """K, the number of key heads, which must divide `num_heads`; null for as many as `num_heads`."""
    head_dim: int | None = None
    """H, the dimension of a head; null for `d_model / num_heads`."""
    d_ff: int = 2048
    """F, the dimension inside the feed-forward network."""
    feed_forward: Literal["plain", "gated", "experts"] = "plain"
    """The feed-forward network: two linear maps, three with a gate (GLU), or a mixture of experts."""
    experts: ExpertsConfig = ExpertsConfig()
    """The mixture of experts."""
    activation: Activation = "relu"
    """The feed-forward nonlinearity; silu is also called swish."""
    dropout: float = 0.1
    """Probability of dropping embeddings and sublayer outputs."""
    attention_dropout: float = 0.0
    """Probability of dropping attention weights."""
    activation_dropout: float = 0.0
    """Probability of dropping hidden units of the feed-forward network."""
    norm: Literal["layer", "layer_deviation", "rms"] = "layer"
    """The normalization: layer normalization with epsilon added to the variance or to the deviation, or root mean
    square."""
    norm_position: NormPosition = "post"
    """The position of the norms: after the residual sum (the paper's), before the sublayer, before and after it, or
    after a sum with a larger skip path (DeepNet)."""
    norm_epsilon: float = 1e-5
    """Added to the variance in normalization."""
    final_norm: bool | None = None
    """A norm after the last block; null for one if the last block does not end in a norm."""
    positions: Positions = "sinusoidal"
    """The way in which positions are known: vectors added to token vectors (sines and cosines alternating or in halves,
    learned, the number t, the number t / (N - 1)), or inside self-attention."""
    max_positions: int = 512
    """Longest sequence with learned positions."""
    position_offset: int = 0
    """The row of position 0 in the table of learned positions; 2 in BART and RoBERTa."""
    rotary: RotaryConfig = RotaryConfig()
    """Rotary positions."""
    num_buckets: int = 32
    """Buckets of distances of t5 positions."""
    max_distance: int = 128
    """The distance from which on all are alike: in t5 positions, and (smaller is usual) in relative keys."""
    embedding_scale: float | None = None
    """The factor of token vectors; null for sqrt(d_model)."""
    embedding_norm: bool = False
    """Normalizes the sum of token and position vectors, as in BERT and BART."""
    num_token_types: int = 0
    """Token types with a vector each, as in BERT; 0 for none."""
    attention_bias: bool = False
    """Adds biases to the projections of queries, keys and values."""
    attention_output_bias: bool | None = None
    """Adds biases to the output projections of attention; null for the value of `attention_bias`."""
    feed_forward_bias: bool = True
    """Adds biases to the feed-forward network; experts have none."""
    attention_scale: float | None = None
    """The factor of the logits of attention; null for head_dim ** -0.5, 1 in T5."""
    attention_soft_cap: float | None = None
    """Keeps the logits of attention between minus and plus this value, by tanh (Gemma 2)."""
    qk_norm: bool = False
    """Normalizes queries and keys by their root mean square."""
    attention_sinks: bool = False
    """Adds a learned logit for each head, which takes weight from the keys."""
    output_bias: bool = False
    """Adds a bias to the logits of tokens, as in Marian and BART."""
    output_scale: float = 1.0
    """The factor of the states before the output projection; d_model ** -0.5 in the first T5."""
    initialization: Literal["scaled", "xavier"] = "scaled"
    """The scale of initial kernels: `modules.initializers.scaled_gains`, or Xavier for each matrix."""
    remat: bool = False
    """Recomputes each block in the backward pass: less memory, a third more arithmetic."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Activations' dtype; parameters, softmax, norms, logits and loss stay float32."""

    def __post_init__(self) -> None:
        for name, kind in typing.get_type_hints(type(self)).items():
            value = getattr(self, name)
            if typing.get_origin(kind) is Literal and value not in typing.get_args(kind):
                raise ValueError(f"{name} must be one of {typing.get_args(kind)}, got {value!r}")
            optional = name in ("position_offset", "num_token_types") or name.endswith("vocab_size")
            if type(value) is int and not optional and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
            if name.endswith("dropout") and not 0 <= value < 1:
                raise ValueError(f"{name} must be in [0, 1), got {value}")
        dim = resolve_head_dim(self.d_model, self.num_heads, self.num_kv_heads or self.num_heads, self.head_dim)
        if self.positions.startswith(("sinusoidal", "transformer_xl")) and self.d_model % 2:
            raise ValueError(f"{self.positions} positions need an even d_model, got {self.d_model}")
        if self.positions == "t5" and (self.num_buckets < 4 or self.max_distance <= self.num_buckets // 2):
            raise ValueError(
                "t5 positions need num_buckets of at least 4 and a max_distance above half of it, "
                f"got {self.num_buckets} and {self.max_distance}"
            )
        if self.positions == "rotary" and dim % 2:
            raise ValueError(f"rotary positions need an even head dim, got {dim}")

    @property
    def has_final_norm(self) -> bool:
        """True if there is a norm after the last block."""
        ends_in_sum = self.norm_position in ("pre", "sandwich")
        return ends_in_sum if self.final_norm is None else self.final_norm


def check_decoder_positions(config: TransformerConfig) -> None:
    """Checks that positions do not need the length of a sequence that is still growing.

    Raises:
      ValueError: they do.
    """
    if config.positions == "normalized":
        raise ValueError("positions must not be 'normalized', t / (N - 1), in a decoder: N is not known before the end")


def make_norm(config: TransformerConfig) -> Norm:
    """Returns one norm."""
    if config.norm == "rms":
        return RMSNorm(config.d_model, epsilon=config.norm_epsilon)
    form = "deviation" if config.norm == "layer_deviation" else "variance"
    return LayerNorm(config.d_model, epsilon=config.norm_epsilon, form=form)


def make_final_norm(config: TransformerConfig) -> Norm | None:
    """Returns the norm after the last block, if there is one."""
    return make_norm(config) if config.has_final_norm else None


def make_embeddings(
    config: TransformerConfig, tokens: Embedding, vectors: PositionVectors | None, *, rngs: nnx.Rngs
) -> Embeddings:
    """Returns the input of a stack."""
    types = Embedding(config.num_token_types, config.d_model, scale=1.0, rngs=rngs) if config.num_token_types else None
    norm = make_norm(config) if config.embedding_norm else None
    return Embeddings(tokens, vectors, types=types, norm=norm, dropout=config.dropout, dtype=config.compute_dtype)


def make_tokens(config: TransformerConfig, vocab_size: int, *, rngs: nnx.Rngs) -> Embedding:
    """Returns a table of token vectors."""
    return Embedding(vocab_size, config.d_model, scale=config.embedding_scale, rngs=rngs)


def make_position_vectors(config: TransformerConfig, *, rngs: nnx.Rngs) -> PositionVectors | None:
    """Returns the vectors that are added to token vectors, or None."""
    match config.positions:
        case "sinusoidal" | "sinusoidal_halves":
            layout = "halves" if config.positions == "sinusoidal_halves" else "interleaved"
            return SinusoidalPositions(config.d_model, layout=layout)
        case "learned":
            return LearnedPositions(config.max_positions, config.d_model, offset=config.position_offset, rngs=rngs)
        case "raw" | "normalized":
            return RawPositions(config.d_model, normalized=config.positions == "normalized")
        case _:
            return None


def make_shared_bias(config: TransformerConfig, *, bidirectional: bool, rngs: nnx.Rngs) -> T5Bias | None:
    """Returns the bias of self-attention that all layers of a stack share, or None."""
    if config.positions != "t5":
        return None
    sizes = {"num_buckets": config.num_buckets, "max_distance": config.max_distance}
    return T5Bias(config.num_heads, **sizes, bidirectional=bidirectional, rngs=rngs)


def make_output(config: TransformerConfig, vocab_size: int, *, rngs: nnx.Rngs) -> Linear:
    """Returns an output projection with its own matrix."""
    return Linear(config.d_model, vocab_size, bias=False, axes=("model", "vocab"), rngs=rngs)


def decoder_options(config: TransformerConfig) -> dict[str, Any]:
    """Returns the arguments of a decoder for its output and its loss."""
    balance = config.experts.balance if config.feed_forward == "experts" else 0.0
    return {"output_bias": config.output_bias, "output_scale": config.output_scale, "expert_balance": balance}


def make_stack(
    config: TransformerConfig,
    num_layers: int,
    *,
    cross: bool = False,
    gains: DeepNormGains | None = None,
    attention: AttentionFunction,
    rngs: nnx.Rngs,
) -> Stack[Block]:
    """Returns a stack of blocks with these settings.

    Args:
      cross: True for blocks with cross-attention.
      gains: those of `functional.deep_norm`, by default for a model that consists of this stack.
    """
    deep = functional.deep_norm_gains(num_layers, 0)[0] if gains is None else gains
    arrangement = _arrangement(config, deep)
    initial = _initial_gains(config, num_layers, deep)
    norm = functools.partial(make_norm, config)

    def make_block(rngs: nnx.Rngs) -> Block:
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
        scheme = _scheme(config, rngs=rngs)
        return Block(
            SelfAttention(config.d_model, config.num_heads, positions=scheme, **heads, rngs=rngs),
            _feed_forward(config, initial, rngs=rngs),
            cross=CrossAttention(config.d_model, config.num_heads, **heads, rngs=rngs) if cross else None,
            norm=(lambda: NormPair(norm)) if config.norm_position == "sandwich" else norm,
            arrangement=arrangement,
            dropout=config.dropout,
        )

    return Stack(make_block, num_layers, remat=config.remat, rngs=rngs)


def _arrangement(config: TransformerConfig, deep: DeepNormGains) -> Arrangement:
    return {
        "post": functional.post_norm,
        "pre": functional.pre_norm,
        "sandwich": functional.sandwich_norm,
        "deep": functional.deep_norm(deep.alpha),
    }[config.norm_position]


def _initial_gains(config: TransformerConfig, num_layers: int, deep: DeepNormGains) -> Gains:
    if config.norm_position == "deep":  # the paper's; its queries and keys have a gain of 1
        return Gains(value=deep.beta, output=deep.beta, up=deep.beta, down=deep.beta)
    if config.initialization == "xavier":
        return Gains()
    return scaled_gains(num_layers, after_residual=config.norm_position == "post")


def _logits(config: TransformerConfig) -> Logits:
    score = None if config.attention_soft_cap is None else functional.soft_cap(config.attention_soft_cap)
    return Logits(config.attention_scale, score, config.qk_norm, config.attention_sinks)


def _scheme(config: TransformerConfig, *, rngs: nnx.Rngs) -> PositionScheme | None:
    dim = resolve_head_dim(config.d_model, config.num_heads, config.num_kv_heads or config.num_heads, config.head_dim)
    match config.positions:
        case "rotary":
            rotary = config.rotary
            return positions.Rotary(base=rotary.base, scaling=rotary.make_scaling(), pairs=rotary.pairs)
        case "alibi":
            return positions.Alibi(config.num_heads)
        case "relative_keys":
            return positions.RelativeKeys(dim, config.max_distance, rngs=rngs)
        case "transformer_xl":
            return positions.TransformerXL(config.d_model, config.num_heads, dim, rngs=rngs)
        case _:
            return None


def _feed_forward(
    config: TransformerConfig, gains: Gains, *, rngs: nnx.Rngs
) -> FeedForward | GatedFeedForward | MixtureOfExperts:
    options = {"activation": ACTIVATIONS[config.activation], "gains": gains, "rngs": rngs}
    if config.feed_forward == "experts":
        experts = config.experts
        sizes = {"count": experts.count, "capacity_factor": experts.capacity_factor, "gated": experts.gated}
        return MixtureOfExperts(config.d_model, experts.num_experts, config.d_ff, **sizes, **options)
    kind = GatedFeedForward if config.feed_forward == "gated" else FeedForward
    return kind(
        config.d_model, config.d_ff, bias=config.feed_forward_bias, dropout=config.activation_dropout, **options
    )


def select(captured: Mapping[str, T], names: Collection[str]) -> dict[str, T]:
    """Returns the named entries of `captured`.

    Raises:
      ValueError: a name does not exist; the message has the names that do.
    """
    if unknown := set(names) - captured.keys():
        raise ValueError(f"unknown attention names {sorted(unknown)}; there are {sorted(captured)}")
    return {name: captured[name] for name in names}
