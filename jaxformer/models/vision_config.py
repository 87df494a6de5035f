"""The shapes of models that read images, captioners included. Importing them imports no JAX."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from jaxformer.config import check_choices
from jaxformer.models import choices
from jaxformer.models.config import (
    Activation,
    ImageEncoderConfig,
    LanguageModelConfig,
    NormPosition,
    PoolingConfig,
    RecurrentConfig,
    check_fields,
)
from jaxformer.reprs import as_html, brief


@dataclasses.dataclass(frozen=True, kw_only=True)
class VisionTransformerConfig(PoolingConfig, ImageEncoderConfig):
    """The shape of a vision Transformer (Dosovitskiy et al. 2021), by default a small one for small images."""

    kind: ClassVar[str] = "transformer"
    image_size: tuple[int, int] = (32, 32)
    """The height and width of the images, multiples of `patch_size`."""
    patch_size: int = 4
    """The height and width of a patch, in pixels."""
    d_model: int = 128
    """D, the dimension of the model."""
    num_heads: int = 4
    """N, the number of attention heads."""
    d_ff: int = 256
    """F, the dimension inside the feed-forward network."""
    norm_position: NormPosition = "pre"
    """The position of the norms: see `TransformerConfig`."""
    activation: Activation = "gelu"
    """The feed-forward nonlinearity."""
    attention_bias: bool = True
    """Adds biases to the projections of queries, keys and values."""

    __repr__ = brief

    @property
    def has_class_vector(self) -> bool:
        """True if a class token comes before the patches of an image: the one that is classified."""
        return self.pooling == "class_token"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GridConfig:
    """The shape of a residual convolutional network up to its grid of features, with optional self-attention."""

    image_size: tuple[int, int] = (32, 32)
    """The height and width of the images; the network itself takes images of any size."""
    num_channels: int = 3
    """The number of color channels."""
    widths: tuple[int, ...] = (32, 64, 128)
    """The number of features of each stage; every stage except the first halves height and width."""
    num_blocks: int = 2
    """The number of residual blocks per stage, with two convolutions each."""
    attention: choices.GridAttention = None
    """Self-attention over the grid."""

    __repr__ = brief
    _repr_html_ = as_html

    def __post_init__(self) -> None:
        check_choices(self)
        check_fields(self)
        for name, sizes in (("image_size", self.image_size), ("widths", self.widths)):
            if min(sizes, default=1) < 1:
                raise ValueError(f"{name} must be at least 1, got {sizes}")
        if not self.widths:
            raise ValueError("widths must have one number for each stage, got none")
        if self.attention is not None and self.attention.stage > len(self.widths):
            raise ValueError(f"stage must be one of the {len(self.widths)} stages, got {self.attention.stage}")

    @property
    def attention_dim(self) -> int:
        """C', the dimension of queries, keys and values; 0 without attention."""
        if self.attention is None:
            return 0
        return self.attention.d_attention or max(1, self.widths[self.attention.stage - 1] // 8)

    @property
    def grid_size(self) -> tuple[int, int]:
        """The height and width of the last stage."""
        height, width = (-(-size // 2 ** (len(self.widths) - 1)) for size in self.image_size)
        return height, width


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResidualNetworkConfig(GridConfig):
    """The shape of a residual convolutional network that classifies images."""

    kind: ClassVar[str] = "convolution"
    num_classes: int = 0
    """The number of classes; 0 is replaced by the data's before the model is built."""
    dropout: float = 0.0
    """The probability of dropping entries of the mean feature before the output layer."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """The dtype of activations; parameters, norms, logits and loss stay float32."""

    __repr__ = brief


SMALL_GRID = GridConfig(image_size=(64, 64), widths=(16, 32, 64), num_blocks=1)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class RecurrentCaptionerConfig(RecurrentConfig):
    """The shape of a captioner whose recurrent decoder attends to the feature grid of an image (Xu et al. 2015)."""

    has_attention: ClassVar[bool] = True
    image: GridConfig = SMALL_GRID
    """The convolutional network that computes the grid of features."""
    grid_positions: bool = False
    """Adds a learned position vector to the features at each position of the grid."""
    vocab_size: int = 0
    """The number of token ids; 0 is replaced by the tokenizer's before the model is built."""
    attention: choices.CaptionAttention = choices.SoftAttention()
    """The attention to the grid: soft, its weighted mean, or hard, one position."""
    context_gate: bool = False
    """Multiplies the context by a gate between 0 and 1 that is computed from the last state: beta of Xu et al. 2015."""
    d_model: int = 256
    """D, the dimension of token vectors and of the decoder's output."""
    d_attention: int | None = None
    """A, the dimension inside additive attention; None for the state's dimension."""
    num_layers: int = 1
    """The number of decoder layers."""
    tie_embeddings: bool = True
    """Uses the token embedding table as the output projection."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerCaptionerConfig(LanguageModelConfig):
    """The shape of a captioner whose Transformer decoder has cross-attention to the feature grid of an image."""

    kind: ClassVar[str] = "transformer"
    image: GridConfig = SMALL_GRID
    """The convolutional network that computes the grid of features."""
    grid_positions: bool = True
    """Adds a learned position vector to the features at each position of the grid."""
    d_model: int = 256
    """D, the dimension of the model."""
    num_heads: int = 4
    """N, the number of attention heads."""
    d_ff: int = 1024
    """F, the dimension inside the feed-forward network."""
    num_layers: int = 2
    """The number of blocks."""

    __repr__ = brief

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.causal:
            raise ValueError("a captioner must be causal: it writes one token after another")
