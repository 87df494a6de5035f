"""Models that have a decoder: their scores are its own, and a search decodes with them; contexts and states."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from jaxformer.dims import check_rank
from jaxformer.functional.cache import KeyValueCache
from jaxformer.models.encoder import Memory
from jaxformer.models.token_model import TokenModel
from jaxformer.modules import KeyValue
from jaxformer.modules.head import Head
from jaxformer.modules.pure import Params
from jaxformer.reprs import brief


class StepWeights(NamedTuple):
    """The parameters of a decoder in the layout that steps read fastest; see `Decoder.step_weights`."""

    layers: tuple[Params, ...]  # of each block
    output: jax.Array | None  # [D, V]; None for the token embedding table

    __repr__ = brief


class Context(NamedTuple):
    """The arrays that the hypotheses of a row share: computed once by `start`, never repeated for each hypothesis."""

    memory: tuple[KeyValue | None, ...]  # of each layer, [B, S, N, H]; None without cross-attention
    valid: jax.Array | None  # Bool [B, S]
    weights: StepWeights

    __repr__ = brief

    def take(self, rows: Int[Array, " B2"]) -> Context:
        """Returns the context of these rows only, in this order."""
        memory, valid = jax.tree.map(lambda leaf: leaf[rows], (self.memory, self.valid))
        return Context(memory, valid, self.weights)


class DecoderState(NamedTuple):
    """The arrays that differ between hypotheses. Only `reorder` and `take` may rely on the layout of the leaves.

    Each hypothesis has its own position, which is also the number of tokens that it has seen. For prefixes
    of different lengths, give the lengths to `prefill`, or step through the longest one and then set the lengths with
    ``state._replace(position=lengths)``: the mask hides later positions, and later steps overwrite them.
    """

    position: jax.Array  # int32 [B, K]: the next token's
    lanes: jax.Array | None  # int32 [B, K, L]: the map of lanes of caches that a row's hypotheses share
    caches: tuple[KeyValueCache, ...]  # of each layer; without lanes, each hypothesis has its own row

    __repr__ = brief

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows, B, and of hypotheses per row, K."""
        batch_size, beam_size = self.position.shape
        return batch_size, beam_size

    @property
    def capacity(self) -> int:
        """The number of positions given to `Decoder.start`, which a search compares with its length limit."""
        return (self.caches[0].key if self.lanes is None else self.lanes).shape[2]

    def is_full(self) -> Bool[Array, ""]:
        """Returns True if a hypothesis has no room for another token."""
        return (self.position >= self.capacity).any()

    def resize(self, capacity: int) -> DecoderState:
        """Returns the state with room for `capacity` positions, at least as many as now."""
        more, num_lanes = capacity - self.capacity, 1 if self.lanes is None else self.lanes.shape[1]
        pad = lambda x, count: jnp.pad(x, [(0, count * (axis == 2)) for axis in range(x.ndim)])
        grown = lambda tree, count: jax.tree.map(lambda x: pad(x, count), tree)
        return DecoderState(self.position, grown(self.lanes, more), grown(self.caches, more * num_lanes))

    def reorder(self, parents: Int[Array, "B K"]) -> DecoderState:
        """Replaces each hypothesis with its parent, a hypothesis of the same row."""
        rows = jnp.arange(parents.shape[0])[:, None]
        position = self.position[rows, parents]
        if self.lanes is not None:
            return DecoderState(position, self.lanes[rows, parents], self.caches)
        cache_rows = (rows * parents.shape[1] + parents).reshape(-1)
        return DecoderState(position, None, jax.tree.map(lambda leaf: leaf[cache_rows], self.caches))

    def take(self, rows: Int[Array, " B2"]) -> DecoderState:
        """Returns the state of these rows only, in this order."""
        position, lanes = jax.tree.map(lambda leaf: leaf[rows], (self.position, self.lanes))
        beam_size = self.shape[1] if self.lanes is None else 1
        cache_rows = (rows[:, None] * beam_size + jnp.arange(beam_size)[None]).reshape(-1)
        return DecoderState(position, lanes, jax.tree.map(lambda leaf: leaf[cache_rows], self.caches))


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
        """Returns the logits after one more token of each hypothesis, equal to a row of the teacher-forced logits."""
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
