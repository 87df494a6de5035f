"""The shapes of the models that read or write tokens. Importing them imports no JAX."""

from __future__ import annotations

import dataclasses
import math
import numbers
import typing
from typing import ClassVar, Literal

from jaxformer.config import OTHER_NAMES, check_choices
from jaxformer.dims import resolve_head_dim
from jaxformer.models import choices
from jaxformer.reprs import as_html, brief

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
CellName = Literal["rnn", "gru", "lstm"]
NormPosition = Literal["post", "pre", "sandwich", "deep"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The settings of every transformer. `docs/families.md` lists the settings of published model families."""

    has_attention: ClassVar[bool] = True
    """True if a decoder attends to the encoder's states."""
    has_cache: ClassVar[bool] = True
    """True if a decoder keeps the keys and values of earlier tokens."""

    d_model: int = 512
    """D, the dimension of the model."""
    num_heads: int = 8
    """N, the number of attention heads."""
    num_kv_heads: int | None = None
    """K, the number of key heads, which must divide `num_heads`; None for `num_heads`."""
    head_dim: int | None = None
    """H, the dimension of a head; None for `d_model / num_heads`."""
    d_ff: int = 2048
    """F, the dimension inside the feed-forward network."""
    feed_forward: choices.FeedForward = choices.Plain()
    """The feed-forward network: two linear layers, three with a gate, or a mixture of experts."""
    activation: Activation = "relu"
    """The feed-forward nonlinearity; silu is also called swish."""
    dropout: float = 0.1
    """The probability of dropping sublayer outputs and, without `embedding_dropout`, embeddings."""
    embedding_dropout: float | None = None
    """The probability of dropping embeddings; None for `dropout`."""
    attention_dropout: float = 0.0
    """The probability of dropping attention weights."""
    norm: choices.Norm = choices.LayerNorm()
    """The norm: layer normalization or RMS norm."""
    norm_position: NormPosition = "post"
    """The position of the norms: after the residual sum (the paper), before the sublayer, before and after it, or after
    a residual sum with a scaled-up skip path (DeepNet)."""
    final_norm: bool | None = None
    """Adds a norm after the last block; None adds one if the last block does not end in a norm."""
    attention_bias: bool = False
    """Adds biases to the projections of queries, keys and values."""
    attention_output_bias: bool | None = None
    """Adds biases to the output projections of attention; None to follow `attention_bias`."""
    attention_scale: float | None = None
    """The scale of the attention logits; None for head_dim ** -0.5; 1 in T5."""
    attention_soft_cap: float | None = None
    """Soft cap: keeps attention logits between minus and plus this value, by tanh (Gemma 2)."""
    qk_norm: bool = False
    """QK-norm: divides queries and keys by their root mean square, with the epsilon of the norms (Qwen 3)."""
    attention_sinks: bool = False
    """Adds a learned logit for each head that takes weight away from the keys (gpt-oss)."""
    initialization: Literal["scaled", "fairseq", "xavier", "deepnet"] | None = None
    """The scale of initial kernels: `modules.layers.scaled_gains`, `FAIRSEQ_GAINS`, Xavier for each matrix, or
    that of DeepNet; None for deepnet if `norm_position` is deep, and for scaled otherwise."""
    remat: bool = False
    """Recomputes each block in the backward pass (activation checkpointing): less memory, a third more FLOPs."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """The dtype of activations; parameters, softmax, norms, logits and loss stay float32."""

    __repr__ = brief
    _repr_html_ = as_html

    def __post_init__(self) -> None:
        check_choices(self)
        check_fields(self, "num_token_types", *["num_layers"] * isinstance(self, EncoderConfig | ImageEncoderConfig))
        resolve_head_dim(self.d_model, self.num_heads, self.num_kv_heads or self.num_heads, self.head_dim)

    @property
    def dim_of_heads(self) -> int:
        """H, the dimension of a head."""
        return resolve_head_dim(self.d_model, self.num_heads, self.num_kv_heads or self.num_heads, self.head_dim)

    @property
    def has_final_norm(self) -> bool:
        """True if there is a norm after the last block."""
        return self.norm_position in ("pre", "sandwich") if self.final_norm is None else self.final_norm


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class TextConfig(TransformerConfig):
    """The settings of every transformer that reads or writes tokens."""

    positions: choices.Positions = choices.Sinusoidal()
    """The position scheme: vectors that are added to token vectors, or a scheme inside self-attention."""
    max_positions: int = 512
    """The longest context: the length of the table of learned positions. Other schemes have no table; converted models
    of theirs keep the published number here."""
    embedding_scale: float | None = None
    """The factor of token vectors, and of the first values of learned positions; None for sqrt(d_model)."""
    embedding_norm: bool = False
    """Normalizes the sum of token and position vectors, as in BERT and BART."""
    num_token_types: int = 0
    """The number of token types, each with a learned vector, as in BERT; 0 for none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.positions, choices.Sinusoidal | choices.TransformerXL) and self.d_model % 2:
            raise ValueError(f"{self.positions.kind} positions need an even d_model, got {self.d_model}")
        if isinstance(self.positions, choices.Rotary) and self.dim_of_heads % 2:
            raise ValueError(f"rotary positions need an even head dim, got {self.dim_of_heads}")

    @property
    def length_limit(self) -> int | None:
        """The length of the longest sequence for which there are positions; None if there is no limit."""
        return self.max_positions if isinstance(self.positions, choices.Learned) else None


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class TextDecoderConfig(TextConfig):
    """The settings of every transformer that writes tokens."""

    attention_window: int | None = None
    """Sliding-window attention: the number of tokens that a decoder token sees, itself and those just before it
    (Mistral); None for no limit. Encoders and cross-attention have no window. Caches still hold all tokens."""
    output_bias: bool = False
    """Adds a learned bias to the output logits, as in Marian and BART."""
    output_scale: float = 1.0
    """The factor of the states before the output projection; d_model ** -0.5 in T5 1.0."""


def check_fields(config: object, *may_be_zero: str) -> None:
    """Checks the choices and numbers of a configuration and its parts, by names and types of fields.

    Args:
      may_be_zero: the names of sizes that may be 0, besides the ones that are filled in from the data.
    """
    for name, kind in typing.get_type_hints(type(config)).items():
        value = getattr(config, name)
        if typing.get_origin(kind) is Literal and value not in typing.get_args(kind):
            same = OTHER_NAMES.get(value) if isinstance(value, str) else None
            hint = f"; did you mean {same!r}?" if same in typing.get_args(kind) else ""
            raise ValueError(f"{name} must be one of {typing.get_args(kind)}, got {value!r}{hint}")
        kinds = typing.get_args(kind) or (kind,)
        is_integer = int in kinds and float not in kinds and typing.get_origin(kind) is not tuple
        if is_integer and not issubclass(type(value), numbers.Integral | None):
            raise ValueError(f"{name} must be an integer, got {value!r}")
        least = 0 if name in may_be_zero or name.endswith(("vocab_size", "num_classes")) else 1
        if type(value) is int and value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} must be finite, got {value}")
        if name == "epsilon" and value < 0:
            raise ValueError(f"epsilon must be at least 0, got {value}")
        if name.endswith("soft_cap") and value is not None and value <= 0:
            raise ValueError(f"{name} must be above 0, got {value}")
        if name.endswith("dropout") and value is not None and not 0 <= value < 1:
            raise ValueError(f"{name} must be in [0, 1), got {value}")
        if dataclasses.is_dataclass(value):
            check_fields(value, "offset")


def check_decoder_positions(config: TextConfig) -> None:
    """Checks that positions do not depend on the final length of a sequence, which a decoder does not know."""
    if isinstance(config.positions, choices.Normalized):
        raise ValueError("positions must not be 'normalized', t / (N - 1), in a decoder: N is not known before the end")


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class EncoderConfig(TextConfig):
    """The shape of a stand-alone encoder of tokens."""

    vocab_size: int = dataclasses.field(default=0, kw_only=False)
    """The number of token ids."""
    num_layers: int = 6
    """The number of blocks; 0 for embeddings only."""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ImageEncoderConfig(TransformerConfig):
    """The shape of a stand-alone encoder of the patches of images, with learned positions."""

    image_size: tuple[int, int] = dataclasses.field(default=(224, 224), kw_only=False)
    """The height and width of the images, multiples of `patch_size`."""
    patch_size: int = 16
    """The height and width of a patch, in pixels."""
    num_channels: int = 3
    """The number of color channels."""
    num_layers: int = 6
    """The number of blocks; 0 for embeddings only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(size < 1 or size % self.patch_size for size in self.image_size):
            raise ValueError(f"image_size must be a multiple of patch_size {self.patch_size}, got {self.image_size}")

    @property
    def has_class_vector(self) -> bool:
        """True if a class token comes before the patches of an image."""
        return True


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class PoolingConfig(TransformerConfig):
    """The settings of every classifier: a linear layer on one vector of the sequence."""

    num_classes: int = 0
    """The number of classes; 0 is replaced by the data's before the model is built."""
    pooling: Literal["class_token", "mean"] = "class_token"
    """The vector that is classified: the state of the first token, or the mean of the states of all tokens that are not
    padding."""
    num_layers: int = 6
    """The number of blocks; 0 for embeddings only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_layers == 0 and self.pooling == "class_token":
            raise ValueError("without layers, the first token's state depends on no other token; set pooling='mean'")


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ClassifierConfig(PoolingConfig, EncoderConfig):
    """The shape of a classifier: an encoder, and a linear layer on one vector of the sequence."""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class TokenClassifierConfig(EncoderConfig):
    """The shape of a classifier of each token: an encoder, and a linear layer on every state."""

    num_classes: int = 0
    """The number of classes; 0 is replaced by the data's before the model is built."""


@dataclasses.dataclass(frozen=True, repr=False)
class EncoderDecoderConfig(TextDecoderConfig):
    """The shape of an encoder-decoder; the defaults are the paper's base model (table 3)."""

    source_vocab_size: int = 0
    """The number of source token ids; 0 is replaced by the tokenizer's before the model is built."""
    target_vocab_size: int = 0
    """The number of target token ids; 0 is replaced in the same way."""
    num_encoder_layers: int = 6
    """The number of encoder blocks."""
    num_decoder_layers: int = 6
    """The number of decoder blocks."""
    tie_embeddings: Literal["none", "inputs", "decoder", "all"] = "all"
    """The embeddings that share one table: none; source and target; target and output; source, target and output."""
    kind: ClassVar[str] = "transformer"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tied_vocabularies(self.tie_embeddings, self.source_vocab_size, self.target_vocab_size)
        check_decoder_positions(self)


def check_tied_vocabularies(tie_embeddings: str, source: int, target: int) -> None:
    """Checks that vocabularies of these sizes can share one table."""
    if tie_embeddings in ("inputs", "all") and source != target:
        raise ValueError(
            f"tie_embeddings={tie_embeddings!r} shares one table, so vocabularies must be equal: "
            f"source {source}, target {target}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class LanguageModelConfig(TextDecoderConfig):
    """The shape of a language model, small by default.

    Pre-norm, learned positions, tied embeddings and unscaled token vectors are the choices of GPT-2 (Radford et al.
    2019). Two defaults differ from GPT-2: GELU is exact, and attention has no biases; `families.gpt2` has its values.
    """

    vocab_size: int = dataclasses.field(default=0, kw_only=False)
    """The number of token ids; 0 is replaced by the tokenizer's before the model is built."""
    num_layers: int = 6
    """The number of blocks."""
    norm_position: NormPosition = "pre"
    """The position of the norms: see `TransformerConfig`."""
    activation: Activation = "gelu"
    """The feed-forward nonlinearity."""
    positions: choices.Positions = choices.Learned()
    """The position scheme: see `TextConfig`."""
    embedding_scale: float | None = 1.0
    """The factor of token vectors; None for sqrt(d_model), which suits sinusoidal positions."""
    tie_embeddings: bool = True
    """Uses the token embedding table as the output projection."""
    causal: bool = True
    """Lets a token see only itself and those before it. Otherwise, the model learns only to copy the next token."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.causal:
            check_decoder_positions(self)
        elif self.attention_window is not None:
            raise ValueError(f"attention_window needs a causal model, got {self.attention_window}")


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class DecoderConfig(LanguageModelConfig):
    """The shape of a stand-alone decoder, which may read a memory of any dimension: states of an encoder, or images."""

    memory_dim: int | None = None
    """The dimension of the memory; None for a decoder without cross-attention."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentConfig:
    """The settings of every network with a recurrent decoder."""

    kind: ClassVar[str] = "recurrent"
    has_cache: ClassVar[bool] = False

    cell: CellName = "lstm"
    """The cell: Elman's network, gated recurrent unit, or long short-term memory."""
    d_model: int = 512
    """D, the dimension of token vectors and of the decoder's output."""
    d_hidden: int | None = None
    """H, the dimension of the decoder's state (each direction of an encoder has half of it); None for `d_model`."""
    dropout: float = 0.1
    """The probability of dropping embeddings, states between layers, and outputs."""
    state_dropout: float = 0.0
    """The probability of dropping an entry of a state, the same entries in all steps of a sequence (variational
    dropout)."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """The dtype of activations; parameters, gates, states, softmax, norms, logits and loss stay float32."""

    __repr__ = brief
    _repr_html_ = as_html

    def __post_init__(self) -> None:
        check_choices(self)
        check_fields(self)

    @property
    def hidden_size(self) -> int:
        """H, the dimension of the decoder's state."""
        return self.d_hidden or self.d_model

    def state_vectors(self, num_layers: int) -> int:
        """Returns the number of vectors in the state of these layers: one for each layer, two with LSTM cells."""
        return num_layers * {"lstm": 2}.get(self.cell, 1)

    @property
    def length_limit(self) -> None:
        """The length of the longest sequence that the model can read; None, because a state has no positions."""
        return None


@dataclasses.dataclass(frozen=True, repr=False)
class Seq2SeqConfig(RecurrentConfig):
    """The shape of a recurrent encoder-decoder."""

    source_vocab_size: int = 0
    """The number of source token ids; 0 is replaced by the tokenizer's before the model is built."""
    target_vocab_size: int = 0
    """The number of target token ids; 0 is replaced in the same way."""
    attention: choices.RecurrentAttention = choices.Additive()
    """The decoder's view of the source: one fixed vector (none), or attention."""
    num_encoder_layers: int = 1
    """The number of bidirectional encoder layers."""
    num_decoder_layers: int = 1
    """The number of decoder layers."""
    tie_embeddings: Literal["none", "inputs", "decoder", "all"] = "all"
    """The embeddings that share one table: none; source and target; target and output; source, target and output."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden_size % 2:
            raise ValueError(f"d_hidden must be even, half for each direction of the encoder, got {self.hidden_size}")
        check_tied_vocabularies(self.tie_embeddings, self.source_vocab_size, self.target_vocab_size)

    @property
    def has_attention(self) -> bool:
        """True if the decoder attends to the encoder's states."""
        return self.attention is not None
