"""The settings and parts that all transformers share."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Collection, Mapping
from typing import Literal

from flax import nnx

from jaxformer import functional
from jaxformer.modules import (
    AttentionFunction,
    Block,
    CrossAttention,
    FeedForward,
    LayerNorm,
    LearnedPositions,
    Linear,
    SelfAttention,
    Stack,
)
from jaxformer.modules.attention import head_dim

ARRANGEMENTS = {"post": functional.post_norm, "pre": functional.pre_norm}
ACTIVATIONS = {"relu": functional.relu, "gelu": functional.gelu, "gelu_tanh": functional.gelu_tanh}

T = typing.TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The settings that every transformer has."""

    d_model: int = 512
    """D, the dimension of the model."""
    num_heads: int = 8
    """N, the number of attention heads; it must divide `d_model`."""
    d_ff: int = 2048
    """F, the dimension inside the feed-forward network."""
    dropout: float = 0.1
    """Probability of dropping embeddings and sublayer outputs."""
    attention_dropout: float = 0.0
    """Probability of dropping attention weights."""
    activation_dropout: float = 0.0
    """Probability of dropping hidden units of the feed-forward network."""
    norm_position: Literal["post", "pre"] = "post"
    """The position of layer normalization: after the residual sum (the paper's) or before the sublayer."""
    activation: Literal["relu", "gelu", "gelu_tanh"] = "relu"
    """The feed-forward nonlinearity."""
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    """The kind of position vectors that are added to the token vectors."""
    max_positions: int = 512
    """Longest sequence with learned positions."""
    attention_bias: bool = False
    """Adds biases to the attention projections."""
    norm_epsilon: float = 1e-5
    """Added to the variance in layer normalization."""
    remat: bool = False
    """Recomputes each block in the backward pass: less memory, a third more arithmetic."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Activations' dtype; parameters, softmax, norms, logits and loss stay float32."""

    def __post_init__(self) -> None:
        for name, kind in typing.get_type_hints(type(self)).items():
            value = getattr(self, name)
            if typing.get_origin(kind) is Literal and value not in typing.get_args(kind):
                raise ValueError(f"{name} must be one of {typing.get_args(kind)}, got {value!r}")
            if kind is int and not name.endswith("vocab_size") and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
            if name.endswith("dropout") and not 0 <= value < 1:
                raise ValueError(f"{name} must be in [0, 1), got {value}")
        head_dim(self.d_model, self.num_heads, self.num_heads)
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"sinusoidal positions need an even d_model, got {self.d_model}")


def make_stack(
    config: TransformerConfig, num_layers: int, *, cross: bool = False, attention: AttentionFunction, rngs: nnx.Rngs
) -> Stack[Block]:
    """Returns a stack of blocks with these settings; with `cross`, each has cross-attention."""
    d_model = config.d_model

    def make_block(rngs: nnx.Rngs) -> Block:
        heads = {"bias": config.attention_bias, "dropout": config.attention_dropout, "attention": attention}
        activation = ACTIVATIONS[config.activation]
        return Block(
            SelfAttention(d_model, config.num_heads, rngs=rngs, **heads),
            FeedForward(d_model, config.d_ff, activation=activation, dropout=config.activation_dropout, rngs=rngs),
            cross=CrossAttention(d_model, config.num_heads, rngs=rngs, **heads) if cross else None,
            norm=lambda: LayerNorm(d_model, epsilon=config.norm_epsilon),
            arrangement=ARRANGEMENTS[config.norm_position],
            dropout=config.dropout,
        )

    return Stack(make_block, num_layers, remat=config.remat, rngs=rngs)


def make_final_norm(config: TransformerConfig) -> LayerNorm | None:
    """Returns the norm after the last block. Post-norm blocks end in one; pre-norm blocks leave an unnormalized sum."""
    return LayerNorm(config.d_model, epsilon=config.norm_epsilon) if config.norm_position == "pre" else None


def make_positions(config: TransformerConfig, *, rngs: nnx.Rngs) -> LearnedPositions | None:
    """Returns a table of learned positions, or None if they are sinusoidal."""
    learned = config.positions == "learned"
    return LearnedPositions(config.max_positions, config.d_model, rngs=rngs) if learned else None


def make_output(config: TransformerConfig, vocab_size: int, *, rngs: nnx.Rngs) -> Linear:
    """Returns an output projection with its own matrix."""
    return Linear(config.d_model, vocab_size, bias=False, axes=("model", "vocab"), rngs=rngs)


def select(captured: Mapping[str, T], names: Collection[str]) -> dict[str, T]:
    """Returns the named entries of `captured`.

    Raises:
      ValueError: a name does not exist; the message has the names that do.
    """
    if unknown := set(names) - captured.keys():
        raise ValueError(f"unknown attention names {sorted(unknown)}; there are {sorted(captured)}")
    return {name: captured[name] for name in names}
