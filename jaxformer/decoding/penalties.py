"""The scores that rank the hypotheses of a beam search, and the rules that stop it.

Toolkits normalize by length in different ways and stop at different times, so the same model gives different
translations; ``docs/search.md`` compares them.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxformer.decoding.api import State
from jaxformer.errors import ConfigError
from jaxformer.reprs import brief

S = TypeVar("S", bound=State)


class Normalization(Protocol):
    """Computes the scores of hypotheses from their log-probabilities and lengths."""

    def __call__(self, log_probs: jax.Array, lengths: jax.Array, *, ended: jax.Array | bool) -> jax.Array:
        """Returns the scores of hypotheses of these lengths; `ended` is True where the last token is `eos`.

        The score must not decrease when a hypothesis gets longer at the same log-probability, which is at most 0.
        """
        ...


@dataclasses.dataclass(frozen=True)
class LengthPenalty:
    r"""Normalization of log-probabilities by length, :math:`\log p / L^\alpha`.

    log p always includes `eos`; `count_eos` concerns only L, which is at least 1.

    Raises:
      ConfigError: the exponent is negative or not finite.

    >>> import jax.numpy as jnp
    >>> words = LengthPenalty(1.0, count_eos=False)
    >>> words(jnp.float32(-6.0), jnp.int32(4), ended=jnp.array([True, False])).tolist()
    [-2.0, -1.5]
    """

    exponent: float = 1.0
    """:math:`\\alpha`: 0 favors short sequences, 1 is the mean log-probability of a token."""
    count_eos: bool = True
    """True if L counts `eos`; False if L is the number of tokens before it, as in textbooks whose sequences have no
    `eos`."""
    count_prefix: bool = True
    """True if L counts the tokens of a prefix, as in CTranslate2; False if it counts only the tokens that the search
    chose, as in Hugging Face after a prompt."""

    def __post_init__(self) -> None:
        check_penalty("length_penalty", self.exponent)

    def __call__(self, log_probs: jax.Array, lengths: jax.Array, *, ended: jax.Array | bool) -> jax.Array:
        """Returns the scores of hypotheses of these lengths; `ended` is True where the last token is `eos`."""
        counted = lengths if self.count_eos else jnp.maximum(lengths - jnp.asarray(ended, lengths.dtype), 1)
        return log_probs / counted.astype(jnp.float32) ** self.exponent


@dataclasses.dataclass(frozen=True)
class GNMTPenalty:
    r"""Normalization of Wu et al. 2016 (equation 14), :math:`\log p / ((5 + L) / 6)^\alpha`; L counts `eos`.

    Raises:
      ConfigError: the exponent is negative or not finite.

    >>> import jax.numpy as jnp
    >>> GNMTPenalty(1.0)(jnp.float32(-6.0), jnp.array([1, 7]), ended=True).tolist()
    [-6.0, -3.0]
    """

    exponent: float = 0.6
    count_prefix: bool = True
    """See `LengthPenalty`."""

    def __post_init__(self) -> None:
        check_penalty("length_penalty", self.exponent)

    def __call__(self, log_probs: jax.Array, lengths: jax.Array, *, ended: jax.Array | bool) -> jax.Array:
        """Returns the scores of hypotheses of these lengths."""
        return log_probs / ((5 + lengths.astype(jnp.float32)) / 6) ** self.exponent


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CoverageState(Generic[S]):
    """A model's state with the attention that each source token has received so far, for a coverage penalty.

    A beam search adds the weighted `coverage` of the source to the score of a finished hypothesis. A step adds the
    attention weights of its token: it returns ``state.attending(weights, inner)``, with the model's new state `inner`.

    Raises:
      ConfigError: the penalty is negative or not finite.
    """

    state: S
    attended: jax.Array  # float32 [B, K, S]: sums over tokens; 1 at padding
    penalty: float = dataclasses.field(metadata={"static": True})
    """The weight of the coverage in the score."""

    __repr__ = brief

    def __post_init__(self) -> None:
        check_penalty("coverage_penalty", self.penalty)

    @classmethod
    def start(cls, state: S, valid: Bool[Array, "B S"], *, penalty: float) -> CoverageState[S]:
        """Returns the state before the first token; `valid` is True where a source token is not padding."""
        attended = jnp.broadcast_to(~valid[:, None], (*state.shape, valid.shape[1])).astype(jnp.float32)
        return cls(state, attended, penalty)

    def attending(self, weights: Float[Array, "B K S"], state: S) -> CoverageState[S]:
        """Returns the state after a token that paid attention with these weights; `state` is the model's new state."""
        return dataclasses.replace(self, state=state, attended=self.attended + weights)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows, B, and of hypotheses per row, K."""
        return self.state.shape

    @property
    def capacity(self) -> int | None:
        """The number of tokens for which the state has room; None if there is no limit."""
        return getattr(self.state, "capacity", None)

    def reorder(self, parents: jax.Array, /) -> CoverageState[S]:
        """Replaces hypothesis k of row b with hypothesis ``parents[b, k]`` of that row."""
        attended = jnp.take_along_axis(self.attended, parents[..., None], axis=1)
        return CoverageState(self.state.reorder(parents), attended, self.penalty)

    def take(self, rows: jax.Array, /) -> CoverageState[S]:
        """Selects rows by index, with all their hypotheses."""
        return CoverageState(self.state.take(rows), self.attended[rows], self.penalty)

    def coverage(self) -> Float[Array, "B K"]:
        r"""Returns :math:`\sum_s \log \min(\sum_t a_{ts}, 1)`, Wu et al. 2016, equation 14."""
        covered = jnp.clip(self.attended, float(jnp.finfo(jnp.float32).tiny), 1)
        return jnp.log(covered).sum(-1)


@dataclasses.dataclass(frozen=True)
class Patience:
    """The rule to stop once ``factor * K`` hypotheses have finished; the best K of them are returned.

    CTranslate2's `patience` (Kasai et al. 2022). A factor of 1 is the rule "first".

    Raises:
      ConfigError: the factor is not positive and finite.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.factor < math.inf:
            raise ConfigError(f"patience must be positive and finite, got {self.factor}")

    def needed(self, beam_size: int) -> int:
        """Returns the number of finished hypotheses at which the search for a row stops; halves round up."""
        return max(1, math.floor(min(self.factor * beam_size, 2**30) + 0.5))  # fits in 32 bits


Stopping: TypeAlias = Literal["first", "now", "limit"] | Patience
"""The rule that stops the search for a row: see `beam_search`."""


def check_penalty(name: str, value: float) -> None:
    """Checks that a penalty is at least 0 and finite."""
    if not 0 <= value < math.inf:  # also refuses NaN
        raise ConfigError(f"{name} must be at least 0 and finite, got {value}")
