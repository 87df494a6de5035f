"""The shapes of captioners. Importing them imports no JAX."""

from __future__ import annotations

import dataclasses
from typing import Literal

from jaxformer.models.config import CellName, LanguageModelConfig, check_fields
from jaxformer.models.vision_config import GridConfig

SMALL_GRID = GridConfig(image_size=(64, 64), widths=(16, 32, 64), num_blocks=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentCaptionerConfig:
    """The shape of a captioner whose decoder is recurrent and attends to the grid of an image (Xu et al. 2015)."""

    kind: Literal["recurrent"] = "recurrent"
    """The kind of the decoder."""
    image: GridConfig = SMALL_GRID
    """The convolutional network whose grid of features is described."""
    grid_positions: bool = False
    """Adds a learned vector to the features of each position, so that the decoder knows where it looks."""
    vocab_size: int = 0
    """The number of token ids; 0 is replaced by the tokenizer's before the model is built."""
    cell: CellName = "lstm"
    """The cell: Elman's network, gated recurrent unit, or long short-term memory."""
    attention: Literal["soft", "hard"] = "soft"
    """A step sees the mean of the grid, or one position: drawn in training, the most probable one otherwise."""
    context_gate: bool = False
    """Multiplies what a step sees by a number between 0 and 1, computed from the last state: beta of Xu et al. 2015."""
    d_model: int = 256
    """D, the dimension of token vectors and of the decoder's output."""
    d_hidden: int | None = None
    """H, the dimension of the decoder's state; None for `d_model`."""
    d_attention: int | None = None
    """A, the dimension inside additive attention; None for that of the state."""
    num_layers: int = 1
    """The number of decoder layers."""
    tie_embeddings: bool = True
    """Uses the table of the token embeddings as the output projection."""
    dropout: float = 0.1
    """Probability of dropping embeddings, the states between two layers, and outputs."""
    state_dropout: float = 0.0
    """Probability of dropping an entry of a state, the same in all steps of a caption (variational dropout)."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Activations' dtype; parameters, gates, states, softmax, norms, logits and loss stay float32."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def hidden_size(self) -> int:
        """H, the dimension of the decoder's state."""
        return self.d_hidden or self.d_model

    @property
    def num_state_vectors(self) -> int:
        """The number of vectors in the decoder's state: one for each layer, two with LSTM cells."""
        return self.num_layers * (2 if self.cell == "lstm" else 1)

    @property
    def length_limit(self) -> None:
        """The length of the longest caption; None, because a state has no positions."""
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerCaptionerConfig(LanguageModelConfig):
    """The shape of a captioner whose decoder is a Transformer with cross-attention to the grid of an image."""

    kind: Literal["transformer"] = "transformer"
    """The kind of the decoder."""
    image: GridConfig = SMALL_GRID
    """The convolutional network whose grid of features is described."""
    grid_positions: bool = True
    """Adds a learned vector to the features of each position, so that the decoder knows where it looks."""
    d_model: int = 256
    """D, the dimension of the model."""
    num_heads: int = 4
    """N, the number of attention heads."""
    d_ff: int = 1024
    """F, the dimension inside the feed-forward network."""
    num_layers: int = 2
    """The number of blocks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.causal:
            raise ValueError("a captioner must be causal: it writes one token after another")

    @property
    def length_limit(self) -> int | None:
        """The length of the longest caption that has positions; None if there is no limit."""
        return self.max_positions if self.positions == "learned" else None
