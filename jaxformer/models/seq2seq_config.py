"""The shape of recurrent encoder-decoders. Importing it imports no JAX."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

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
    attention: Literal["none", "additive", "dot", "general", "concat"] = "additive"
    """The decoder's view of the source: one fixed vector (none), or attention. Bahdanau's (additive) uses the previous
    state as the query, and its result enters the next state; Luong's (dot, general, concat) use the new state as the
    query."""
    input_feeding: bool = False
    """Feeds the output of Luong's attention into the next state (input feeding)."""
    d_model: int = 512
    """D, the dimension of token vectors and of the decoder's output."""
    d_hidden: int | None = None
    """H, the dimension of the decoder's state; each direction of the encoder has half of it. None for `d_model`."""
    d_attention: int | None = None
    """A, the dimension inside additive and concat attention; None for the state's dimension."""
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
        check_fields(self)
        if self.hidden_size % 2:
            raise ValueError(f"d_hidden must be even, half for each direction of the encoder, got {self.hidden_size}")
        if self.input_feeding and self.attention in ("none", "additive"):
            raise ValueError(
                f"input_feeding is for attention dot, general or concat, got {self.attention!r}, whose context always "
                "enters the next state"
            )
        if self.d_attention is not None and self.attention not in ("additive", "concat"):
            raise ValueError(f"d_attention has no effect: attention is {self.attention!r}, not 'additive' or 'concat'")
        check_tied_vocabularies(self.tie_embeddings, self.source_vocab_size, self.target_vocab_size)

    has_cache: ClassVar[bool] = False

    @property
    def has_attention(self) -> bool:
        """True if the decoder attends to the encoder's states."""
        return self.attention != "none"

    @property
    def hidden_size(self) -> int:
        """H, the dimension of the decoder's state."""
        return self.d_hidden or self.d_model

    @property
    def num_state_vectors(self) -> int:
        """The number of vectors in the decoder's state: one for each layer, two with LSTM cells."""
        return self.num_decoder_layers * (2 if self.cell == "lstm" else 1)

    @property
    def length_limit(self) -> None:
        """The length of the longest sequence that the model can read; None, because a state has no positions."""
        return None
