"""The shapes of the models. Importing them imports no JAX."""

from __future__ import annotations

import dataclasses
import math
import numbers
import typing
from typing import Any, ClassVar, Literal

from jaxformer.dims import resolve_head_dim
from jaxformer.models.experts_config import ExpertsConfig as ExpertsConfig
from jaxformer.reprs import brief

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
CellName = Literal["rnn", "gru", "lstm"]
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


@dataclasses.dataclass(frozen=True)
class RotaryConfig:
    """Rotary positions."""

    base: float = 10_000.0
    """The base of the frequencies."""
    pairs: Literal["halves", "neighbors"] = "halves"
    """The pairs of features that rotate together: k and k + H / 2 (Llama), or neighbors (the paper; "interleaved")."""
    scaling: Literal["none", "linear", "ntk", "yarn", "llama3"] = "none"
    """The scaling of frequencies for contexts longer than in training."""
    factor: float = 1.0
    """The ratio of the longer context to the one in training; 1 only without scaling."""
    trained_length: int = 2048
    """The context that the model was trained on, for yarn and llama3."""

    def __post_init__(self) -> None:
        if not 1 < self.base < math.inf:  # at 1 or below, no frequency is slower than the first
            raise ValueError(f"the base of rotary positions must be above 1 and finite, got {self.base}")
        if not 0 < self.factor < math.inf:
            raise ValueError(f"the factor of rotary positions must be above 0 and finite, got {self.factor}")
        if self.scaling == "none" and self.factor != 1:
            raise ValueError(f"the factor of rotary positions, {self.factor}, has no effect: scaling is 'none'")
        if self.scaling not in ("yarn", "llama3") and self.trained_length != RotaryConfig.trained_length:
            reason = f"scaling is {self.scaling!r}, not 'yarn' or 'llama3'"
            raise ValueError(f"the trained_length of rotary positions, {self.trained_length}, has no effect: {reason}")
        if self.scaling != "none" and self.factor == 1:
            raise ValueError(f"the scaling of rotary positions, {self.scaling!r}, has no effect: factor is 1")


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
    feed_forward: Literal["plain", "gated", "experts"] = "plain"
    """The feed-forward network: two linear layers, three with a gate (GLU; SwiGLU with the activation silu, GEGLU with
    gelu), or a mixture of experts."""
    experts: ExpertsConfig = ExpertsConfig()
    """The mixture of experts."""
    activation: Activation = "relu"
    """The feed-forward nonlinearity; silu is also called swish."""
    dropout: float = 0.1
    """The probability of dropping sublayer outputs and, without `embedding_dropout`, embeddings."""
    embedding_dropout: float | None = None
    """The probability of dropping embeddings; None for `dropout`."""
    attention_dropout: float = 0.0
    """The probability of dropping attention weights."""
    activation_dropout: float = 0.0
    """The probability of dropping hidden units of the feed-forward network; must be 0 with experts."""
    norm: Literal["layer", "layer_deviation", "rms"] = "layer"
    """The norm: layer normalization, with epsilon added to the variance or to the standard deviation, or RMS norm."""
    norm_position: NormPosition = "post"
    """The position of the norms: after the residual sum (the paper), before the sublayer, before and after it, or after
    a residual sum with a scaled-up skip path (DeepNet)."""
    norm_epsilon: float = 1e-5
    """The epsilon of the norms; see `norm`."""
    final_norm: bool | None = None
    """Adds a norm after the last block; None adds one if the last block does not end in a norm."""
    positions: Positions = "sinusoidal"
    """The position scheme: vectors that are added to token vectors (sines and cosines, interleaved or in halves;
    learned vectors; the number t; the number t / (N - 1)), or a scheme inside self-attention."""
    max_positions: int = 512
    """The length of the table of learned positions."""
    position_offset: int = 0
    """The row of position 0 in the table of learned positions; 2 in BART and RoBERTa."""
    rotary: RotaryConfig = RotaryConfig()
    """Rotary positions."""
    num_buckets: int = 32
    """The number of distance buckets of t5 positions."""
    max_distance: int = 128
    """The distance beyond which distances are treated alike, in t5 positions and (usually smaller) relative keys."""
    embedding_scale: float | None = None
    """The factor of token vectors, and of the first values of learned positions; None for sqrt(d_model)."""
    embedding_norm: bool = False
    """Normalizes the sum of token and position vectors, as in BERT and BART."""
    num_token_types: int = 0
    """The number of token types, each with a learned vector, as in BERT; 0 for none."""
    attention_bias: bool = False
    """Adds biases to the projections of queries, keys and values."""
    attention_output_bias: bool | None = None
    """Adds biases to the output projections of attention; None to follow `attention_bias`."""
    feed_forward_bias: bool = True
    """Adds biases to the feed-forward network; experts have none."""
    attention_scale: float | None = None
    """The scale of the attention logits; None for head_dim ** -0.5; 1 in T5."""
    attention_soft_cap: float | None = None
    """Soft cap: keeps attention logits between minus and plus this value, by tanh (Gemma 2)."""
    qk_norm: bool = False
    """QK-norm: divides queries and keys by their root mean square, with the epsilon of the norms (Qwen 3)."""
    attention_sinks: bool = False
    """Adds a learned logit for each head that takes weight away from the keys (gpt-oss)."""
    attention_window: int | None = None
    """Sliding-window attention: the number of tokens that a decoder token sees, itself and those just before it
    (Mistral); None for no limit. Encoders and cross-attention have no window. Caches still hold all tokens."""
    output_bias: bool = False
    """Adds a learned bias to the output logits, as in Marian and BART."""
    output_scale: float = 1.0
    """The factor of the states before the output projection; d_model ** -0.5 in T5 1.0."""
    initialization: Literal["scaled", "fairseq", "xavier"] = "scaled"
    """The scale of initial kernels: `modules.initializers.scaled_gains`, `FAIRSEQ_GAINS`, or Xavier for each matrix.
    With `norm_position` deep it is that of DeepNet."""
    remat: bool = False
    """Recomputes each block in the backward pass (activation checkpointing): less memory, a third more FLOPs."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """The dtype of activations; parameters, softmax, norms, logits and loss stay float32."""

    __repr__ = brief

    def __post_init__(self) -> None:
        check_fields(self, "position_offset", "num_token_types", *["num_layers"] * isinstance(self, EncoderConfig))
        dim = resolve_head_dim(self.d_model, self.num_heads, self.num_kv_heads or self.num_heads, self.head_dim)
        if self.positions.startswith(("sinusoidal", "transformer_xl")) and self.d_model % 2:
            raise ValueError(f"{self.positions} positions need an even d_model, got {self.d_model}")
        if self.positions == "t5" and (self.num_buckets < 4 or self.max_distance <= self.num_buckets // 2):
            got = f"got {self.num_buckets} and {self.max_distance}"
            raise ValueError(f"t5 positions need num_buckets of at least 4 and a max_distance above half of it, {got}")
        if self.positions == "rotary" and dim % 2:
            raise ValueError(f"rotary positions need an even head dim, got {dim}")
        for name, (setting, values) in _READ_BY.items():
            if getattr(self, setting) not in values and getattr(self, name) != getattr(TransformerConfig, name):
                which = f"{getattr(self, setting)!r}, not {' or '.join(map(repr, values))}"
                raise ValueError(f"{name} has no effect: {setting} is {which}")
        if self.feed_forward == "experts" and self.activation_dropout:
            raise ValueError(f"activation_dropout must be 0 with experts, got {self.activation_dropout}")

    @property
    def has_final_norm(self) -> bool:
        """True if there is a norm after the last block."""
        return self.norm_position in ("pre", "sandwich") if self.final_norm is None else self.final_norm


_READ_BY = {
    "rotary": ("positions", ("rotary",)),
    "num_buckets": ("positions", ("t5",)),
    "max_distance": ("positions", ("t5", "relative_keys")),
    "position_offset": ("positions", ("learned",)),
    "experts": ("feed_forward", ("experts",)),
    "initialization": ("norm_position", ("post", "pre", "sandwich")),
}
"""The settings that only have an effect if another setting has one of the given values."""


def check_fields(config: object, *may_be_zero: str) -> None:
    """Checks the choices, sizes and dropout rates of a configuration and its parts, by names and types of fields.

    Args:
      may_be_zero: the names of sizes that may be 0, besides the ones that are filled in from the data.

    Raises:
      ValueError: an unknown choice, a size that is too small or not an integer, or a rate that is not in [0, 1).
    """
    for name, kind in typing.get_type_hints(type(config)).items():
        value = getattr(config, name)
        if typing.get_origin(kind) is Literal and value not in typing.get_args(kind):
            same = _OTHER_NAMES.get(value) if isinstance(value, str) else None
            hint = f"; did you mean {same!r}?" if same in typing.get_args(kind) else ""
            raise ValueError(f"{name} must be one of {typing.get_args(kind)}, got {value!r}{hint}")
        _check_integers(name, kind, value)
        least = 0 if name in may_be_zero or name.endswith(("vocab_size", "num_classes")) else 1
        if type(value) is int and value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
        if name.endswith("dropout") and value is not None and not 0 <= value < 1:
            raise ValueError(f"{name} must be in [0, 1), got {value}")
        if dataclasses.is_dataclass(value):
            check_fields(value)


def _check_integers(name: str, kind: Any, value: object) -> None:
    """Checks that the value of an integer field is an integer, or a tuple of integers."""
    kinds = typing.get_args(kind) or (kind,)
    if int in kinds and float not in kinds and typing.get_origin(kind) is not tuple:
        if value is not None and not isinstance(value, numbers.Integral):
            raise ValueError(f"{name} must be an integer, got {value!r}")
    elif several := next((x for x in (kind, *kinds) if typing.get_origin(x) is tuple), None):
        count = len(typing.get_args(several)) if ... not in typing.get_args(several) else None
        given = value if isinstance(value, tuple) else ()
        if value is not None and (value is not given or not all(isinstance(x, numbers.Integral) for x in given)):
            raise ValueError(f"{name} must be a tuple of integers, got {value!r}")
        if value is not None and count not in (None, len(given)):
            raise ValueError(f"{name} must have {count} integers, got {value!r}")


_OTHER_NAMES = {
    **{"rope": "rotary", "sine": "sinusoidal", "layernorm": "layer", "rmsnorm": "rms", "swish": "silu"},
    **{"swiglu": "gated", "geglu": "gated", "moe": "experts", "bf16": "bfloat16", "fp32": "float32"},
}
"""Choices by the different names that other libraries use for them."""


def check_decoder_positions(config: TransformerConfig) -> None:
    """Checks that positions do not depend on the final length of a sequence, which a decoder does not know.

    Raises:
      ValueError: they depend on it.
    """
    if config.positions == "normalized":
        raise ValueError("positions must not be 'normalized', t / (N - 1), in a decoder: N is not known before the end")


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class EncoderConfig(TransformerConfig):
    """The shape of a stand-alone encoder of tokens or, with an image size, of image patches."""

    vocab_size: int = dataclasses.field(default=0, kw_only=False)
    """The number of token ids."""
    num_layers: int = 6
    """The number of blocks; 0 for embeddings only."""
    image_size: tuple[int, int] | None = None
    """The height and width of the images; None for tokens."""
    patch_size: int = 16
    """The height and width of a patch, in pixels."""
    num_channels: int = 3
    """The number of color channels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attention_window is not None:
            raise ValueError(f"attention_window is for decoders, not for encoders, got {self.attention_window}")
        if self.output_bias or self.output_scale != 1.0:
            raise ValueError("output_bias and output_scale are for decoders, not for encoders")
        if self.image_size is None:
            if (self.patch_size, self.num_channels) != (EncoderConfig.patch_size, EncoderConfig.num_channels):
                raise ValueError("patch_size and num_channels have no effect: image_size is None")
            return
        if any(size < 1 or size % self.patch_size for size in self.image_size):
            raise ValueError(f"image_size must be a multiple of patch_size {self.patch_size}, got {self.image_size}")
        if self.positions != "learned":
            raise ValueError(f"the positions of patches must be learned, got {self.positions!r}")
        for name in ("position_offset", "embedding_scale", "embedding_norm", "num_token_types", "vocab_size"):
            if value := getattr(self, name):
                raise ValueError(f"{name} is for tokens, not for patches of images, got {value}")

    @property
    def has_class_vector(self) -> bool:
        """True if a class token comes before the patches of an image."""
        return True


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ClassifierConfig(EncoderConfig):
    """The shape of a classifier: an encoder, and a linear layer on one vector of the sequence."""

    num_classes: int = 0
    """The number of classes; 0 is replaced by the data's before the model is built."""
    pooling: Literal["class_token", "mean"] = "class_token"
    """The vector that is classified: the state of the first token, or the mean of the states of all tokens that are not
    padding."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_layers == 0 and self.pooling == "class_token":
            raise ValueError("without layers, the first token's state depends on no other token; set pooling='mean'")

    @property
    def has_class_vector(self) -> bool:
        """True if a class token comes before the patches of an image: the one that is classified."""
        return self.pooling == "class_token"


@dataclasses.dataclass(frozen=True, repr=False)
class EncoderDecoderConfig(TransformerConfig):
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

    @property
    def length_limit(self) -> int | None:
        """The length of the longest sequence for which there are positions; None if there is no limit."""
        return self.max_positions if self.positions == "learned" else None


def check_tied_vocabularies(tie_embeddings: str, source: int, target: int) -> None:
    """Checks that vocabularies of these sizes can share one table.

    Raises:
      ValueError: they have to share one, but the sizes differ.
    """
    if tie_embeddings in ("inputs", "all") and source != target:
        raise ValueError(
            f"tie_embeddings={tie_embeddings!r} shares one table, so vocabularies must be equal: "
            f"source {source}, target {target}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class LanguageModelConfig(TransformerConfig):
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
    positions: Positions = "learned"
    """The position scheme: see `TransformerConfig`."""
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
