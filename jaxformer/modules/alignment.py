"""Single-head attention with a learned or plain similarity: the alignment of recurrent translation models."""

from __future__ import annotations

import functools
from typing import Literal, get_args

from flax import nnx
from jaxtyping import Array, Bool, Float

from jaxformer import functional
from jaxformer.axes import constrain
from jaxformer.functional.tokens import padding_mask
from jaxformer.modules.initializers import xavier_uniform
from jaxformer.modules.linear import Linear

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
