"""A decoder of recurrent layers, with a fixed context or with attention over the memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from jaxformer import functional
from jaxformer.axes import constrain, num_shards
from jaxformer.functional import RecurrentState
from jaxformer.functional.attention.weights import chosen_maps
from jaxformer.functional.dropout import fold_in_name
from jaxformer.functional.recurrent import scan_shared
from jaxformer.functional.tokens import Tokens, as_tokens
from jaxformer.masks import Mask, as_mask
from jaxformer.models.encoder import Memory
from jaxformer.models.token_model import Input
from jaxformer.modules import Alignment, Embeddings, Linear, RecurrentStack
from jaxformer.modules.captured import check_layer
from jaxformer.modules.head import Head
from jaxformer.reprs import brief, brief_with_methods

Feed = Literal["nothing", "context", "output"]


def in_order(tokens: Input) -> Tokens:
    """Returns the tokens of a recurrent network, which reads each row from its beginning as one sequence."""
    tokens = as_tokens(tokens)
    for name in ("positions", "segments"):
        if getattr(tokens, name) is not None:
            raise ValueError(f"a recurrent network reads each row in order, as one sequence, so it takes no {name}")
    return tokens


class RecurrentContext(NamedTuple):
    """The arrays that the hypotheses of a row share: computed once by `start`, never repeated for each hypothesis."""

    fixed: jax.Array  # [B, M]: the summary of the memory that sets the initial state
    states: jax.Array | None  # [B, S, M]: the states of the memory; None without attention
    keys: jax.Array | None  # [B, S, A]
    valid: jax.Array | None  # Bool [B, S]
    mean: jax.Array | None = None  # Bool [B]: with hard attention, True where all steps use the mean

    __repr__ = brief

    def take(self, rows: Int[Array, " B2"]) -> RecurrentContext:
        """Returns the context of these rows only, in this order."""
        return jax.tree.map(lambda leaf: leaf[rows], self)


class RecurrentDecoderState(NamedTuple):
    """The arrays that differ between hypotheses: their size does not grow with the number of tokens."""

    layers: tuple[RecurrentState, ...]  # [B, K, H]
    fed: jax.Array | None  # [B, K, D]: the last output, with input feeding

    __repr__ = brief

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows, B, and of hypotheses per row, K."""
        batch_size, beam_size, _ = self.layers[0].hidden.shape
        return batch_size, beam_size

    def reorder(self, parents: Int[Array, "B K"]) -> RecurrentDecoderState:
        """Replaces each hypothesis with its parent, a hypothesis of the same row."""
        rows = jnp.arange(parents.shape[0])[:, None]
        return jax.tree.map(lambda leaf: leaf[rows, parents], self)

    def take(self, rows: Int[Array, " B2"]) -> RecurrentDecoderState:
        """Returns the state of these rows only, in this order."""
        return jax.tree.map(lambda leaf: leaf[rows], self)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CapturedWeights:
    """Captured weights of an attention that has no queries and keys of heads; for a stack, the first dimension is L."""

    values: jax.Array  # [B, N, T, S]

    __repr__ = brief_with_methods

    def layer(self, index: int) -> CapturedWeights:
        """Returns one layer; layers count from 0."""
        check_layer(index, self.values.shape[0])
        return CapturedWeights(self.values[index])

    def weights(
        self,
        *,
        mask: Mask | Array | None = None,
        rows: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
    ) -> Float[Array, "*L B heads rows S"]:
        """Returns the weights in the chosen rows and heads, over the keys that the mask allows.

        For a stack, these are the weights of all layers, with a leading dimension L; `layer` selects one.

        Raises:
          ValueError: a row or a head does not exist.
        """
        if self.values.ndim == 5:
            return jax.vmap(lambda layer: layer.weights(mask=mask, rows=rows, heads=heads))(self)
        values = self.values
        if mask is not None:
            kept = jnp.where(as_mask(mask).dense(*values.shape[2:]), values, 0.0)
            total = kept.sum(-1, keepdims=True)
            values = kept / jnp.where(total == 0, 1.0, total)
        return chosen_maps(values, rows, heads)


def captured_weights(weights: Float[Array, "B T S"] | None) -> dict[str, CapturedWeights]:
    """Returns the weights of attention to a memory as "decoder.cross", of one layer with one head; nothing for None."""
    return {} if weights is None else {"decoder.cross": CapturedWeights(weights[None, :, None])}


class RecurrentDecoder(nnx.Module):
    """``tokens, memory -> outputs``, and logits from them: the decoder of `Seq2Seq`, which has the formulas."""

    def __init__(
        self,
        embeddings: Embeddings,
        stack: RecurrentStack,
        bridge: Linear,
        readout: Linear,
        *,
        alignment: Alignment | None = None,
        output: Linear | None = None,
        gate: Linear | None = None,
        feed: Feed = "nothing",
        summary: Callable[[Memory], Array] | None = None,
        hard: bool = False,
        dropout: float = 0.0,
    ):
        """Builds a decoder from its parts.

        Args:
          bridge: maps the fixed context to the initial states of all layers.
          readout: maps a state and its context to an output.
          alignment: attention over the memory; None to use the fixed context.
          output: the output projection; None for the token embedding table.
          gate: maps a query to one number, whose sigmoid multiplies the query's context; None for no gate.
          feed: the input of a step besides its token: nothing, its context (the query is the previous state), or the
            previous output.
          summary: the function that computes the fixed context of a memory; by default the last states of both
            directions.
          hard: hard attention: each step uses one state of the memory instead of a mean: see
            `functional.pick_position`.
          dropout: the probability of dropping an entry of an output before the logits.
        """
        self.embeddings, self.stack, self.bridge, self.readout = embeddings, stack, bridge, readout
        self.alignment, self.output, self.gate = alignment, output, gate
        self.feed: Feed = feed
        self.summary, self.hard = summary or _last_states, hard
        self.dropout, self.load_balancing_weight = dropout, 0.0

    def __call__(
        self,
        tokens: Input,
        memory: Memory,
        *,
        key: jax.Array | None = None,
        noise: Float[Array, "B T S"] | None = None,
        mean: Bool[Array, " B"] | None = None,
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T S"] | None]:
        """Returns the outputs of a teacher-forced target, and the weights of attention, if there is any.

        Args:
          key: the key of dropout; None means no dropout.
          noise: with hard attention, see `functional.pick_position`; None for the most probable positions.
          mean: with hard attention, True for rows that use soft attention; default: none.

        Raises:
          ValueError: see `in_order`.
        """
        tokens = in_order(tokens)
        valid = tokens.valid
        with jax.named_scope("embedding"):
            x = self.embeddings(tokens, key=fold_in_name(key, "embedding"))
        context, state = self.start(memory, beam_size=1)
        context = context._replace(mean=mean)
        layers_key = fold_in_name(key, "layers")
        if self.feed == "output" or (self.feed == "context" and self.alignment is not None):
            # A step needs the result of the previous one.
            steps, valid = jnp.moveaxis(x, 1, 0)[:, :, None], None if valid is None else valid[:, None]
            scanned = self._scan(steps, state, context, valid=valid, key=layers_key, noise=noise)[:2]
            outputs, weights = jax.tree.map(lambda leaf: jnp.moveaxis(leaf[:, :, 0], 0, 1), scanned)
        else:
            if self.feed == "context":
                x = _beside(x, context.fixed[:, None])
            first = jax.tree.map(lambda leaf: leaf[:, 0], state.layers)
            x, _ = self.stack(x, states=first, valid=valid, key=layers_key)
            seen, weights = self._attend(x, context, noise)
            outputs = self._read(x, seen)
        outputs = functional.dropout(outputs, rate=self.dropout, key=fold_in_name(key, "output"))
        return constrain(outputs, "batch", "length", "model"), weights

    @property
    def head(self) -> Head:
        """The output projection of the outputs."""
        if self.output is None:
            return Head(self.embeddings.tokens.table[...])
        return Head(None, self.output.kernel[...])

    def step_weights(self) -> None:
        """Returns None, because steps need no copy of the parameters."""

    def start(
        self,
        memory: Memory,
        *,
        beam_size: int,
        batch_size: int | None = None,
        length: int | None = None,
        weights: None = None,
        cache_dtype: DTypeLike | None = None,
    ) -> tuple[RecurrentContext, RecurrentDecoderState]:
        """Prepares to decode with `beam_size` hypotheses per row.

        Args:
          batch_size, length, weights: of `Decoder.start`; they have no effect, since any length is possible.

        Raises:
          ValueError: `cache_dtype` is given.
        """
        if cache_dtype is not None:
            raise ValueError(
                f"cache_dtype must be None: a recurrent decoder keeps no keys and values, got {cache_dtype}"
            )
        fixed = self.summary(memory)
        leaves = jnp.tanh(self.bridge(fixed)).astype(jnp.float32)
        leaves = jnp.broadcast_to(leaves[:, None], (leaves.shape[0], beam_size, leaves.shape[1]))
        empty, structure = jax.tree.flatten(self.stack.start(leaves.shape[0], beam_size))
        layers = jax.tree.unflatten(structure, jnp.split(leaves, len(empty), -1))
        d_model = self.embeddings.d_model
        fed = jnp.zeros((leaves.shape[0], beam_size, d_model), fixed.dtype) if self.feed == "output" else None
        context = RecurrentContext(fixed, None, None, None)
        if self.alignment is not None:
            context = RecurrentContext(fixed, memory.states, self.alignment.keys(memory.states), memory.valid)
        return context, RecurrentDecoderState(layers, fed)

    def prefill(
        self,
        tokens: Int[Array, "B K T"],
        state: RecurrentDecoderState,
        context: RecurrentContext,
        *,
        lengths: Int[Array, "B K"] | None = None,
    ) -> tuple[Float[Array, "B K V"], RecurrentDecoderState]:
        """Returns the logits after T more tokens of each hypothesis, and the state.

        Args:
          lengths: the number of tokens of each hypothesis, from 0 to T, if they differ; the rest is padding.
        """
        x = self.embeddings.step(tokens, jnp.zeros_like(tokens)).reshape(*tokens.shape, -1)
        valid, index = None, tokens.shape[2] - 1
        if lengths is not None:
            valid, index = jnp.arange(tokens.shape[2])[None, None] < lengths[..., None], lengths - 1
        outputs, _, state = self._scan(jnp.moveaxis(x, 2, 0), state, context, valid=valid)
        last = jnp.take_along_axis(outputs, jnp.broadcast_to(index, tokens.shape[:2])[None, ..., None], 0)[0]
        return self.head.logits(last), state

    def attending_step(
        self, tokens: Int[Array, "B K"], state: RecurrentDecoderState, context: RecurrentContext
    ) -> tuple[Float[Array, "B K V"], Float[Array, "B K S"], RecurrentDecoderState]:
        """Returns the logits after one more token of each hypothesis, its attention to the memory, and the state."""
        x = self.embeddings.step(tokens[..., None], jnp.zeros_like(tokens[..., None])).reshape(*tokens.shape, -1)
        outputs, weights, state = self._advance(x, state, context)
        if weights is None:
            raise ValueError("a decoder with a fixed context has no attention to a memory")
        return self.head.logits(outputs), weights.astype(jnp.float32), state

    def _scan(
        self,
        x: Array,
        state: RecurrentDecoderState,
        context: RecurrentContext,
        *,
        valid: Array | None = None,
        key: jax.Array | None = None,
        noise: Array | None = None,
    ) -> tuple[Array, Array | None, RecurrentDecoderState]:
        """Returns the outputs and the weights of all steps, time first, and the last state.

        Args:
          x: token vectors ``[T, B, K, D]``.
          valid: ``[B, K, T]``; a step at padding keeps the state.
          noise: ``[B, T, S]``, of one hypothesis.
        """

        graph, parameters = nnx.split(self)

        def advance(shared, state: RecurrentDecoderState, x: Array, other):
            (parameters, context), (valid, noise, step_key, state_key) = shared, other
            decoder = nnx.merge(graph, parameters)
            output, weights, new = decoder._advance(x, state, context, noise, key=step_key, state_key=state_key)
            if valid is not None:
                new = jax.tree.map(lambda a, b: jnp.where(valid[..., None], a, b), new, state)
            return new, (output, weights)

        keys = (
            (None, None)
            if key is None
            else (jax.random.split(key, len(x)), jnp.broadcast_to(key, (len(x), *key.shape)))
        )
        valid = jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), valid)
        noise = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0)[:, :, None], noise)
        shared, others = (parameters, context), (valid, noise, *keys)
        if num_shards("batch") == 1:  # no communication, and nothing is computed twice
            step = lambda state, of_step: advance(shared, state, *of_step)
            state, (outputs, weights) = jax.lax.scan(step, state, (x, others))
        else:
            state, (outputs, weights) = scan_shared(advance, shared, state, x, others)
        return outputs, weights, state

    def _advance(
        self,
        x: Array,
        state: RecurrentDecoderState,
        context: RecurrentContext,
        noise: Array | None = None,
        **keys: jax.Array | None,
    ) -> tuple[Array, Array | None, RecurrentDecoderState]:
        """Returns the outputs ``[B, K, D]``, the weights ``[B, K, S]`` and the state after one more token."""
        seen = weights = None
        if self.feed == "context":
            seen, weights = self._attend(state.layers[-1].hidden.astype(x.dtype), context, noise)
            x = _beside(x, seen)
        elif state.fed is not None:
            x = _beside(x, state.fed)
        x, layers = self.stack.step(x, state.layers, **keys)
        if seen is None:
            seen, weights = self._attend(x, context, noise)
        output = self._read(x, seen)
        return output, weights, RecurrentDecoderState(layers, output if self.feed == "output" else None)

    def _attend(
        self, query: Array, context: RecurrentContext, noise: Array | None = None
    ) -> tuple[Array, Array | None]:
        if self.alignment is None or context.keys is None or context.states is None:
            return context.fixed[:, None], None
        with jax.named_scope("attention"):
            seen, weights = self.alignment(query, context.keys, context.states, valid=context.valid)
            if self.hard:
                chosen = functional.pick_position(weights, noise)[..., None]
                one = jnp.take_along_axis(context.states, chosen, 1)
                if context.mean is not None:
                    one = jnp.where(context.mean[:, None, None], seen, one)
                seen = one
            if self.gate is not None:
                seen = jax.nn.sigmoid(self.gate(query)) * seen
            return seen, weights

    def _read(self, x: Array, seen: Array) -> Array:
        return jnp.tanh(self.readout(_beside(x, seen)))


def _beside(x: Array, features: Array) -> Array:
    """Concatenates the features ``[B, 1 or T, H]`` to the vectors of ``x [B, T, D]``."""
    return jnp.concatenate([x, jnp.broadcast_to(features, (*x.shape[:2], features.shape[2]))], -1)


def _last_states(memory: Memory) -> Float[Array, "B H"]:
    """Returns the forward state of the last token (not padding), concatenated with the backward state of the first.

    For an empty sequence it is the initial state of both directions, zeros.
    """
    forward, backward = jnp.split(memory.states, 2, -1)
    if not memory.states.shape[1]:
        return jnp.zeros_like(memory.states, shape=(memory.states.shape[0], memory.states.shape[2]))
    if memory.valid is None:
        return jnp.concatenate([forward[:, -1], backward[:, 0]], -1)
    length = memory.valid.shape[1]
    first, last = memory.valid.argmax(1), length - 1 - memory.valid[:, ::-1].argmax(1)
    at = lambda x, index: jnp.take_along_axis(x, index[:, None, None], 1)[:, 0]
    return jnp.concatenate([at(forward, last), at(backward, first)], -1)
