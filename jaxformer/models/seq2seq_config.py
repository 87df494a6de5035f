"""The shape of recurrent encoder-decoders. Importing it imports no JAX."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from jaxformer.config import check_choices
from jaxformer.models import choices
from jaxformer.models.config import CellName, check_fields, check_tied_vocabularies
from jaxformer.reprs import brief


@dataclasses.dataclass(frozen=True)
class Seq2SeqConfig:
    """The shape of a recurrent encoder-decoder."""

    source_vocab_size: int = 0
    """The number of source token ids; 0 is replaced by the tokenizer's before the model is built."""
    target_vocab_size: int = 0
    """The number of target token ids; 0 is replaced in the same way."""
    kind: ClassVar[str] = "recurrent"
    cell: CellName = "lstm"
    """The cell: Elman's network, gated recurrent unit, or long short-term memory."""
    attention: choices.RecurrentAttention = choices.Additive()
    """The decoder's view of the source: one fixed vector (none), or attention."""
    d_model: int = 512
    """D, the dimension of token vectors and of the decoder's output."""
    d_hidden: int | None = None
    """H, the dimension of the decoder's state; each direction of the encoder has half of it. None for `d_model`."""
    num_encoder_layers: int = 1
    """The number of bidirectional encoder layers."""
    num_decoder_layers: int = 1
    """The number of decoder layers."""
    tie_embeddings: Literal["none", "inputs", "decoder", "all"] = "all"
    """The embeddings that share one table: none; source and target; target and output; source, target and output."""
    dropout: float = 0.1
    """The probability of dropping embeddings, states between layers, and outputs."""
    state_dropout: float = 0.0
    """The probability of dropping an entry of a state, the same entries in all steps of a sequence (variational
    dropout)."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """The dtype of activations; parameters, gates, states, softmax, logits and loss stay float32."""

    __repr__ = brief

    def __post_init__(self) -> None:
        check_choices(self)
        check_fields(self)
        if self.hidden_size % 2:
            raise ValueError(f"d_hidden must be even, half for each direction of the encoder, got {self.hidden_size}")
        check_tied_vocabularies(self.tie_embeddings, self.source_vocab_size, self.target_vocab_size)

    has_cache: ClassVar[bool] = False

    @property
    def has_attention(self) -> bool:
        """True if the decoder attends to the encoder's states."""
        return self.attention is not None

    @property
    def hidden_size(self) -> int:
        """H, the dimension of the decoder's state."""
        return self.d_hidden or self.d_model

    @property
    def num_state_vectors(self) -> int:
        """The number of vectors in the decoder's state: one for each layer, two with LSTM cells."""
        return self.num_decoder_layers * {"lstm": 2}.get(self.cell, 1)

    @property
    def length_limit(self) -> None:
        """The length of the longest sequence that the model can read; None, because a state has no positions."""
        return None
