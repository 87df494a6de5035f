"""Recurrent layers: cells with weights, stacks in one or two directions, and the alignment of recurrent decoders."""

from __future__ import annotations

import functools
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from jaxformer import functional
from jaxformer.axes import constrain
from jaxformer.functional import Dropout, RecurrentState, RecurrentWeights
from jaxformer.functional.dropout import fold_in_name
from jaxformer.functional.recurrent import Cell
from jaxformer.functional.tokens import padding_mask
from jaxformer.modules.layers import Linear, xavier_uniform

CellName = Literal["rnn", "gru", "lstm"]
CELLS: dict[CellName, tuple[Cell, int]] = {
    "rnn": (functional.rnn_cell, 1),
    "gru": (functional.gru_cell, 3),
    "lstm": (functional.lstm_cell, 4),
}
"""Each cell and the number of its gates."""


class Recurrent(nnx.Module):
    """A cell with its weights, for one direction.

    The forget gates of an LSTM start open, with a bias of 1 (Jozefowicz et al. 2015).

    Raises:
      ValueError: the cell is unknown.
    """

    def __init__(self, in_features: int, hidden_size: int, *, cell: CellName = "lstm", rngs: nnx.Rngs):
        if cell not in CELLS:
            raise ValueError(f"cell must be one of {', '.join(CELLS)}, got {cell!r}")
        self.cell, num_gates = CELLS[cell]
        self.hidden_size = hidden_size
        kernel = lambda size: xavier_uniform(
            rngs.params(), (size, num_gates, hidden_size), fan_in=size, fan_out=hidden_size
        )
        bias = jnp.zeros((num_gates, hidden_size), jnp.float32)
        self.input = nnx.Param(kernel(in_features), axes=("model", None, None))
        self.hidden = nnx.Param(kernel(hidden_size), axes=("model", None, None))
        self.input_bias = nnx.Param(bias.at[1].set(1.0) if cell == "lstm" else bias, axes=(None, None))
        self.hidden_bias = nnx.Param(bias, axes=(None, None))

    def __call__(
        self,
        x: Float[Array, "B T D"],
        *,
        state: RecurrentState | None = None,
        valid: Bool[Array, "B T"] | None = None,
        reverse: bool = False,
        dropout: Dropout | None = None,
    ) -> tuple[Float[Array, "B T H"], RecurrentState]:
        """Returns the outputs of all steps and the last state: see `functional.recurrent`."""
        run = functools.partial(functional.recurrent, self.cell, x, self.weights, state=state)
        return run(valid=valid, reverse=reverse, dropout=dropout)

    def step(
        self, x: Float[Array, "*batch D"], state: RecurrentState, *, dropout: Dropout | None = None
    ) -> RecurrentState:
        """Returns the state after one more input."""
        return functional.recurrent_step(self.cell, x, state, self.weights, dropout=dropout)

    def start(self, *batch: int) -> RecurrentState:
        """Returns a state of zeros."""
        return functional.recurrent_start(self.cell, (*batch, self.hidden_size))

    @property
    def weights(self) -> RecurrentWeights:
        """The weights for `functional.recurrent`, replicated on every device: shards would be gathered every step."""
        whole = lambda kernel: constrain(kernel[...], None, None, None)
        return RecurrentWeights(whole(self.input), whole(self.hidden), self.input_bias[...], self.hidden_bias[...])


class RecurrentStack(nnx.Module):
    """A stack of recurrent layers, with dropout between layers and on states.

    A bidirectional layer has a cell for each direction; their outputs, `hidden_size` from each, are concatenated.
    """

    def __init__(
        self,
        in_features: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        cell: CellName = "lstm",
        bidirectional: bool = False,
        dropout: float = 0.0,
        state_dropout: float = 0.0,
        rngs: nnx.Rngs,
    ):
        """Creates the layers.

        Args:
          dropout: the probability of dropping an output between two layers.
          state_dropout: the probability of dropping an entry of a state, the same in all steps (variational dropout).

        Raises:
          ValueError: `num_layers` is below 1.
        """
        if num_layers < 1:
            raise ValueError(f"num_layers must be at least 1, got {num_layers}")
        directions = ("forward", "backward")[: 1 + bidirectional]
        sizes = [in_features] + [hidden_size * len(directions)] * (num_layers - 1)
        self.layers = nnx.Dict(
            {
                f"{i}": nnx.Dict({name: Recurrent(size, hidden_size, cell=cell, rngs=rngs) for name in directions})
                for i, size in enumerate(sizes)
            }
        )
        self.directions, self.num_layers = directions, num_layers
        self.dropout, self.state_dropout = dropout, state_dropout

    def __call__(
        self,
        x: Float[Array, "B T D"],
        *,
        states: tuple[RecurrentState, ...] | None = None,
        valid: Bool[Array, "B T"] | None = None,
        key: jax.Array | None = None,
    ) -> tuple[Float[Array, "B T H"], tuple[RecurrentState, ...]]:
        """Returns the outputs of the last layer, and the last state of each layer and direction.

        Args:
          states: the initial states in the same order; zeros by default.
          valid: True where a step is not padding; default: everywhere. Padding has no effect.
          key: the key of dropout; None means no dropout.

        Raises:
          ValueError: there is not one state for each layer and direction.
        """
        if states is not None:
            self._check_states(states)
        last, remaining = [], iter(states or ())
        for i in range(self.num_layers):
            x, outputs = self._between(x, i, key), []
            for name in self.directions:
                run = functools.partial(self.layers[f"{i}"][name], x, valid=valid, reverse=name == "backward")
                output, state = run(state=next(remaining, None), dropout=self._of_state(i, name, key))
                outputs.append(output)
                last.append(state)
            x = constrain(jnp.concatenate(outputs, -1), "batch", "length", "model")
        return x, tuple(last)

    def step(
        self,
        x: Float[Array, "*batch D"],
        states: tuple[RecurrentState, ...],
        *,
        key: jax.Array | None = None,
        state_key: jax.Array | None = None,
    ) -> tuple[Float[Array, "*batch H"], tuple[RecurrentState, ...]]:
        """Returns the output and the states after one more input; for unidirectional layers only.

        Args:
          key: the key of dropout between layers, different in each step.
          state_key: the key of dropout on states, the same in all steps of a sequence.

        Raises:
          ValueError: the layers are bidirectional, or there is not one state for each layer.
        """
        if len(self.directions) > 1:
            raise ValueError("a bidirectional stack has no step: the states of one direction depend on later inputs")
        self._check_states(states)
        new: list[RecurrentState] = []
        for i, state in enumerate(states):
            x = self._between(x, i, key)
            new.append(self.layers[f"{i}"]["forward"].step(x, state, dropout=self._of_state(i, "forward", state_key)))
            x = new[-1].hidden.astype(x.dtype)
        return x, tuple(new)

    def start(self, *batch: int) -> tuple[RecurrentState, ...]:
        """Returns states of zeros."""
        cells = (self.layers[f"{i}"][name] for i in range(self.num_layers) for name in self.directions)
        return tuple(cell.start(*batch) for cell in cells)

    def _check_states(self, states: tuple[RecurrentState, ...]) -> None:
        if len(states) != (expected := self.num_layers * len(self.directions)):
            raise ValueError(f"there must be a state for each layer and direction, {expected}, got {len(states)}")

    def _between(self, x: Array, layer: int, key: jax.Array | None) -> Array:
        if layer == 0:
            return x
        return functional.dropout(x, rate=self.dropout, key=fold_in_name(key, f"layer {layer}"))

    def _of_state(self, layer: int, direction: str, key: jax.Array | None) -> Dropout | None:
        own_key = fold_in_name(key, f"state {layer} {direction}")
        return None if own_key is None or self.state_dropout == 0 else Dropout(self.state_dropout, own_key)


AlignmentKind = Literal["additive", "dot", "general", "concat"]


class Alignment(nnx.Module):
    r"""Attention over a memory, with one of four similarities between a query q and a state k of the memory.

    ============  =============================================  ==============================
    kind          similarity                                     source
    ============  =============================================  ==============================
    additive      :math:`v_a^\top \tanh(W_a q + U_a k)`          Bahdanau et al. 2015, A.1.2
    concat        the same: :math:`v_a^\top \tanh(W_a [q; k])`   Luong et al. 2015, 3.1
    general       :math:`q^\top W_a k`                           Luong et al. 2015, 3.1
    dot           :math:`q^\top k`, unscaled                     Luong et al. 2015, 3.1
    ============  =============================================  ==============================

    The kernels of `w_query` and `w_key` are W_a and U_a (for "general", `w_key` is W_a), and `v` is v_a.
    """

    def __init__(
        self, query_dim: int, memory_dim: int, hidden_dim: int, *, kind: AlignmentKind = "additive", rngs: nnx.Rngs
    ):
        """Creates the parameters.

        Args:
          hidden_dim: A, the dimension inside tanh.

        Raises:
          ValueError: the kind is unknown, or it is "dot", and queries and memory differ in size.
        """
        if kind not in get_args(AlignmentKind):
            raise ValueError(f"kind must be one of {', '.join(get_args(AlignmentKind))}, got {kind!r}")
        if kind == "dot" and query_dim != memory_dim:
            raise ValueError(f"dot attention needs equal sizes of queries and memory, got {query_dim}, {memory_dim}")
        additive = kind in ("additive", "concat")
        linear = functools.partial(Linear, bias=False, axes=("model", "hidden"), rngs=rngs)
        self.w_query = linear(query_dim, hidden_dim) if additive else None
        self.w_key = None if kind == "dot" else linear(memory_dim, hidden_dim if additive else query_dim)
        draw = lambda: xavier_uniform(rngs.params(), (hidden_dim,), fan_in=hidden_dim, fan_out=1)
        self.v = nnx.Param(draw(), axes=("hidden",)) if additive else None

    def keys(self, memory: Float[Array, "B S M"]) -> Float[Array, "B S A"]:
        """Returns the part of the similarity that does not depend on queries; compute it once for each memory."""
        return memory if self.w_key is None else constrain(self.w_key(memory), "batch", "length", "hidden")

    def __call__(
        self,
        query: Float[Array, "B T D"],
        keys: Float[Array, "B S A"],
        memory: Float[Array, "B S M"],
        *,
        valid: Bool[Array, "B S"] | None = None,
    ) -> tuple[Float[Array, "B T M"], Float[Array, "B T S"]]:
        """Returns the context of each query, a weighted mean of the memory, and the weights.

        Args:
          keys: the result of the method `keys` for this memory.
          valid: True where a state of the memory is not padding; default: everywhere.
        """
        if self.w_query is not None:
            query = self.w_query(query)
        return functional.general_attention(query, keys, memory, self._similarity, mask=padding_mask(valid))

    def _similarity(self, query: Array, key: Array) -> Array:
        if self.v is None:
            return functional.dot_similarity(query, key)
        return functional.additive_similarity(query, key, self.v[...])
