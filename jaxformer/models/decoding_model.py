"""Models that have a decoder: their scores are its own, and a search decodes with them."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxformer.dims import check_rank
from jaxformer.models.decoder_state import StepWeights
from jaxformer.models.encoder import Memory
from jaxformer.models.token_model import TokenModel
from jaxformer.modules.head import Head

ContextT = TypeVar("ContextT")
StateT = TypeVar("StateT")


class DecodingModel(TokenModel, Generic[ContextT, StateT]):
    """A model that scores and decodes by `decoder`, with its head, its contexts and its states."""

    decoder: Any

    @property
    def head(self) -> Head:
        """The output projection of the decoder's states."""
        return self.decoder.head

    @property
    def load_balancing_weight(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The weight of the load-balancing loss of experts, which training adds to each loss."""
        return self.decoder.load_balancing_weight

    def step_weights(self) -> StepWeights | None:
        """Returns a copy of the parameters that steps read, for many searches: see `Decoder.step_weights`.

        It is None for a recurrent decoder, whose steps need no copy.
        """
        return self.decoder.step_weights()

    def step(self, tokens: Int[Array, "B K"], state: StateT, context: ContextT) -> tuple[Float[Array, "B K V"], StateT]:
        """Returns the logits after one more token of each hypothesis, equal to a row of the teacher-forced logits.

        Raises:
          ValueError: `tokens` do not have two dimensions, rows and hypotheses.
        """
        check_rank("tokens", tokens, "B K")
        return self.decoder.prefill(tokens[..., None], state, context)

    def prefill(
        self, tokens: Int[Array, "B K T"], state: StateT, context: ContextT, *, lengths: Int[Array, "B K"] | None = None
    ) -> tuple[Float[Array, "B K V"], StateT]:
        """Returns the logits after T more tokens of each hypothesis, as after T calls of `step`: see the decoder."""
        return self.decoder.prefill(tokens, state, context, lengths=lengths)


class MemoryDecodingModel(DecodingModel[ContextT, StateT]):
    """Decoding by `decoder` with attention to a memory."""

    def start(
        self,
        memory: Memory,
        *,
        beam_size: int,
        length: int,
        weights: StepWeights | None = None,
        cache_dtype: DTypeLike | None = None,
    ) -> tuple[ContextT, StateT]:
        """Prepares to decode `length` positions with `beam_size` hypotheses per row of the memory: see the decoder.

        With a Transformer decoder, the logits of a `step` beyond `length` are NaN.

        Args:
          weights, cache_dtype: see `Decoder.start`; a recurrent decoder uses neither.

        Raises:
          ValueError: a `cache_dtype` is given for a recurrent decoder; see also `Decoder.start`.
        """
        sizes = {"batch_size": memory.states.shape[0], "beam_size": beam_size, "length": length}
        return self.decoder.start(memory, **sizes, weights=weights, cache_dtype=cache_dtype)

    def attending_step(
        self, tokens: Int[Array, "B K"], state: StateT, context: ContextT
    ) -> tuple[Float[Array, "B K V"], Float[Array, "B K S"], StateT]:
        """Returns the logits, the attention to the memory and the state: see the decoder's method of the same name."""
        return self.decoder.attending_step(tokens, state, context)
