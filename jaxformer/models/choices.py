"""The choices in the shape of a model, each with the settings that only it has. Importing them imports no JAX.

On the command line, ``--model.positions rotary`` makes a choice and ``--model.positions.base 5e5`` sets one of its
settings. In Python, a choice may also be an object of your own: see `Own`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from jaxformer.config import at_least

if TYPE_CHECKING:
    from flax import nnx


@runtime_checkable
class Own(Protocol):
    """A choice of your own, in Python: an object that makes the part of the model, as the classes here do not.

    In place of `positions`, the part is a `modules.PositionVectors`, which is added to token vectors, or a
    `modules.PositionScheme` of self-attention; in place of `norm` and `feed_forward`, a module. config.json cannot hold
    it, so a model with it is trained in your own loop.
    """

    def make(self, config: Any, *, rngs: nnx.Rngs) -> Any:
        """Returns the part, with its own parameters, for a model of this shape."""
        ...


@dataclasses.dataclass(frozen=True)
class Sinusoidal:
    """Sines and cosines that are added to token vectors (Vaswani et al. 2017)."""

    kind: ClassVar[str] = "sinusoidal"

    layout: Literal["interleaved", "halves", "fairseq"] = "interleaved"
    """The order of features: sine and cosine in turns (the paper), or all sines before all cosines (Marian); fairseq
    has other frequencies, too (M2M100)."""
    offset: int = 0
    """The number of position 0; 2 in M2M100."""


@dataclasses.dataclass(frozen=True)
class Learned:
    """Learned vectors that are added to token vectors; `max_positions` is the length of their table."""

    kind: ClassVar[str] = "learned"

    offset: int = 0
    """The row of position 0 in the table; 2 in BART and RoBERTa."""


@dataclasses.dataclass(frozen=True)
class Raw:
    """The number t, added to each feature."""

    kind: ClassVar[str] = "raw"


@dataclasses.dataclass(frozen=True)
class Normalized:
    """The number t / (N - 1), added to each feature, where N is the length of the sequence."""

    kind: ClassVar[str] = "normalized"


@dataclasses.dataclass(frozen=True)
class LinearScaling:
    """All positions are divided by the factor (position interpolation)."""

    kind: ClassVar[str] = "linear"

    factor: float = 2.0
    """The ratio of the longer context to the one in training."""

    def __post_init__(self) -> None:
        if not 0 < self.factor < math.inf:
            raise ValueError(f"the factor of rotary positions must be above 0 and finite, got {self.factor}")


@dataclasses.dataclass(frozen=True)
class NTKScaling(LinearScaling):
    """The base grows, so that slow frequencies are scaled and fast ones are not (NTK-aware)."""

    kind: ClassVar[str] = "ntk"


@dataclasses.dataclass(frozen=True)
class YaRNScaling(LinearScaling):
    """Frequencies are scaled by their wavelength in the trained context, and logits by its ratio (YaRN)."""

    kind: ClassVar[str] = "yarn"

    trained_length: int = 2048
    """The context that the model was trained on."""


@dataclasses.dataclass(frozen=True)
class Llama3Scaling(YaRNScaling):
    """Frequencies are scaled by their wavelength in the trained context (Llama 3.1)."""

    kind: ClassVar[str] = "llama3"


@dataclasses.dataclass(frozen=True)
class Rotary:
    """Rotary positions: queries and keys are rotated (Su et al. 2021)."""

    kind: ClassVar[str] = "rotary"

    base: float = 10_000.0
    """The base of the frequencies."""
    pairs: Literal["halves", "neighbors"] = "halves"
    """The pairs of features that rotate together: k and k + H / 2 (Llama), or neighbors (the paper; "interleaved")."""
    scaling: LinearScaling | NTKScaling | YaRNScaling | Llama3Scaling | None = None
    """The scaling of frequencies for contexts longer than in training."""

    def __post_init__(self) -> None:
        if not 1 < self.base < math.inf:  # at 1 or below, no frequency is slower than the first
            raise ValueError(f"the base of rotary positions must be above 1 and finite, got {self.base}")


@dataclasses.dataclass(frozen=True)
class Alibi:
    """A penalty on attention logits that grows with the distance (Press et al. 2022)."""

    kind: ClassVar[str] = "alibi"


@dataclasses.dataclass(frozen=True)
class T5:
    """A learned bias of attention logits for each bucket of distances, shared by the layers (Raffel et al. 2020)."""

    kind: ClassVar[str] = "t5"

    num_buckets: int = 32
    """The number of distance buckets."""
    max_distance: int = 128
    """The distance beyond which distances are treated alike."""

    def __post_init__(self) -> None:
        if self.num_buckets < 4 or self.max_distance <= self.num_buckets // 2:
            got = f"got {self.num_buckets} and {self.max_distance}"
            raise ValueError(f"t5 positions need num_buckets of at least 4 and a max_distance above half of it, {got}")


@dataclasses.dataclass(frozen=True)
class RelativeKeys:
    """A learned key for each distance (Shaw et al. 2018)."""

    kind: ClassVar[str] = "relative_keys"

    max_distance: int = 128
    """The distance beyond which distances are treated alike."""


@dataclasses.dataclass(frozen=True)
class TransformerXL:
    """Relative positions with two learned biases (Dai et al. 2019)."""

    kind: ClassVar[str] = "transformer_xl"


Positions = Sinusoidal | Learned | Raw | Normalized | Rotary | Alibi | T5 | RelativeKeys | TransformerXL | Own | None
"""The position scheme: vectors that are added to token vectors, or a scheme inside self-attention, or none."""


@dataclasses.dataclass(frozen=True)
class LayerNorm:
    """Layer normalization."""

    kind: ClassVar[str] = "layer"

    epsilon: float = 1e-5
    """Added to the variance or the standard deviation."""
    form: Literal["variance", "deviation"] = "variance"
    """The statistic that epsilon is added to."""


@dataclasses.dataclass(frozen=True)
class RMSNorm:
    """Division by the root mean square (Zhang and Sennrich 2019)."""

    kind: ClassVar[str] = "rms"

    epsilon: float = 1e-5
    """Added to the mean square."""


Norm = LayerNorm | RMSNorm | Own
"""The norm."""


@dataclasses.dataclass(frozen=True)
class Plain:
    """Two linear layers with the activation in between."""

    kind: ClassVar[str] = "plain"

    bias: bool = True
    """Adds biases to the linear layers."""
    dropout: float = 0.0
    """The probability of dropping hidden units."""


@dataclasses.dataclass(frozen=True)
class Gated(Plain):
    """Three linear layers, one of them a gate: GLU; SwiGLU with the activation silu, GEGLU with gelu (Shazeer 2020)."""

    kind: ClassVar[str] = "gated"


@dataclasses.dataclass(frozen=True)
class Experts:
    """A mixture of experts, which are feed-forward networks without biases."""

    kind: ClassVar[str] = "experts"

    num_experts: int = 8
    """The number of experts."""
    num_experts_per_token: int = 2
    """The number of experts that each token is sent to (top-k routing)."""
    capacity_factor: float | None = None
    """The maximum number of tokens per expert in training, relative to an even share; None for no limit, in which case
    XLA may compute every expert for every token on a GPU."""
    gated: bool = False
    """Use gated feed-forward networks (GLU) as experts."""
    load_balancing_weight: float = 0.01
    """The weight of the load-balancing loss in training."""

    def __post_init__(self) -> None:
        if 0 < self.num_experts < self.num_experts_per_token:
            got = f"got {self.num_experts_per_token} of {self.num_experts}"
            raise ValueError(f"num_experts_per_token must be at most num_experts, {got}")
        if self.capacity_factor is not None and not 0 < self.capacity_factor < math.inf:
            raise ValueError(f"capacity_factor must be above 0 and finite, or None, got {self.capacity_factor}")
        if not 0 <= self.load_balancing_weight < math.inf:
            raise ValueError(f"load_balancing_weight must be at least 0 and finite, got {self.load_balancing_weight}")


FeedForward = Plain | Gated | Experts | Own
"""The feed-forward network of each block."""


@dataclasses.dataclass(frozen=True)
class Additive:
    """Additive attention of a recurrent decoder, whose query is the previous state (Bahdanau et al. 2015).

    Its result enters the next state.
    """

    kind: ClassVar[str] = "additive"

    d_attention: int | None = None
    """A, the dimension inside the attention; None for the state's dimension."""


@dataclasses.dataclass(frozen=True)
class Dot:
    """Attention of a recurrent decoder, whose query is the new state, by dot products (Luong et al. 2015)."""

    kind: ClassVar[str] = "dot"

    input_feeding: bool = False
    """Feeds the output of the attention into the next state."""


@dataclasses.dataclass(frozen=True)
class General(Dot):
    """Luong's attention by dot products with projected keys."""

    kind: ClassVar[str] = "general"


@dataclasses.dataclass(frozen=True)
class Concat(Dot):
    """Luong's attention by a small network of the new state and the key."""

    kind: ClassVar[str] = "concat"

    d_attention: int | None = None
    """A, the dimension inside the attention; None for the state's dimension."""


RecurrentAttention = Additive | Dot | General | Concat | None
"""The recurrent decoder's view of the source: attention, or one fixed vector."""


@dataclasses.dataclass(frozen=True)
class ScaledAttention:
    """Self-attention over a grid of features, with logits divided by sqrt(C') and a plain residual sum."""

    kind: ClassVar[str] = "scaled"

    stage: int = 2
    """The stage, counted from 1, that attention follows."""
    d_attention: int | None = None
    """C', the dimension of queries, keys and values; None for an eighth of the stage's features."""


@dataclasses.dataclass(frozen=True)
class GainAttention(ScaledAttention):
    """Attention over a grid with unscaled logits and a learned gain that begins at 0 (SAGAN, Zhang et al. 2019)."""

    kind: ClassVar[str] = "gain"


GridAttention = ScaledAttention | GainAttention | None
"""Self-attention over the grid of a residual network."""


@dataclasses.dataclass(frozen=True)
class SoftAttention:
    """The mean of an image's grid, weighted by attention (Xu et al. 2015, 4.2)."""

    kind: ClassVar[str] = "soft"

    doubly_stochastic: float = 0.0
    """The weight, in training, of the squared difference between 1 and the total attention that a position gets over a
    caption (doubly stochastic attention); Xu et al. 2015 use 1."""

    def __post_init__(self) -> None:
        at_least(0, self, "doubly_stochastic")


@dataclasses.dataclass(frozen=True)
class HardAttention:
    """One position of an image's grid: drawn in training, otherwise the most probable one (Xu et al. 2015, 4.1)."""

    kind: ClassVar[str] = "hard"

    entropy: float = 0.002
    """The weight, in training, of an entropy bonus on the attention of each step, as in the code of Xu et al. 2015."""
    soft_attention_rate: float = 0.5
    """The fraction of captions, drawn again in each step, that use soft attention in training; one half in the paper.
    With 0, all attention gradients are estimates with a large variance."""
    baseline_decay: float = 0.9
    """The decay of the moving average of a token's log-probability, the REINFORCE baseline."""

    def __post_init__(self) -> None:
        at_least(0, self, "entropy", "baseline_decay")
        if not 0 <= self.soft_attention_rate <= 1:
            raise ValueError(f"soft_attention_rate must be from 0 to 1, got {self.soft_attention_rate}")
        if self.baseline_decay >= 1:
            raise ValueError(f"baseline_decay must be less than 1, got {self.baseline_decay}")


CaptionAttention = SoftAttention | HardAttention
"""The attention of a recurrent captioner to the grid of an image."""
