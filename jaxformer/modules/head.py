"""The output head: the scores of all tokens, and losses and log-probabilities that never hold all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer

from jaxformer import sharding
from jaxformer.axes import constrain
from jaxformer.functional.feed_forward import scaled
from jaxformer.functional.linear_loss import logits_per_chunk
from jaxformer.functional.losses import LogitLoss, check_labels


@dataclasses.dataclass(frozen=True)
class Head:
    """A view of a model's output projection, without parameters of its own: ``x * scale`` times a table, plus a bias.

    It alone knows whether the table is that of the token embeddings (tied) or a kernel of its own, and computes losses
    and log-probabilities in chunks, so that ``B T V`` logits never exist.
    """

    table: Array | None  # [V, D]; or copies of it, [G, C, V, D]: see `sharding.with_copies`
    kernel: Array | None = None  # [D, V], in place of the table
    bias: Array | None = None  # [V]
    scale: float = 1.0

    def logits(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        """Returns the logits of states, in float32."""
        with jax.named_scope("logits"):
            x = scaled(x, self.scale)
            if self.kernel is not None:  # `linear` would round to x.dtype
                logits = jnp.matmul(x, self.kernel.astype(x.dtype), preferred_element_type=jnp.float32)
            else:
                logits = jnp.einsum(
                    "...d,vd->...v", x, _one_copy(self._rows()).astype(x.dtype), preferred_element_type=jnp.float32
                )
            if self.bias is not None:
                logits = logits + self.bias.reshape((1,) * (logits.ndim - 1) + (-1,))
            return constrain(logits, "batch", "length", "vocab") if logits.ndim == 3 else logits

    def loss(
        self,
        x: Float[Array, "B T D"],
        labels: Integer[Array, "B T"],
        loss: LogitLoss,
        *,
        where: Bool[Array, "B T"] | None = None,
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Returns a loss of the logits, (sum, count), with its gradient in one pass: see `functional.linear_loss`."""
        with jax.named_scope("loss"):
            return sharding.linear_loss(*self._with_bias(x), labels, loss, where=where)

    def log_probs(
        self, x: Float[Array, "B T D"], labels: Integer[Array, "B T"], *, where: Bool[Array, "B T"] | None = None
    ) -> Float[Array, "B T"]:
        """Returns the log-probability of each label, in float32; only the logits of a few positions exist at a time.

        Args:
          where: True where a label counts, by default everywhere; other labels are not checked.

        Raises:
          ValueError: a label is not in the vocabulary.
        """
        return joint_log_probs([self], [x], labels, lambda logits: logits[0], where=where)

    def _rows(self) -> Array:
        """Returns the table, of the kernel if that is given instead."""
        if self.table is not None:
            return self.table
        assert self.kernel is not None
        return self.kernel.T

    def _with_bias(self, x: Array) -> tuple[Array, Array]:
        """Appends the bias to states and table as a feature that is 1 in every state, so that their product has it.

        If the dtype is narrow, a second feature holds the rounding error of the bias, so that it keeps float32
        precision.
        """
        x, table = scaled(x, self.scale), self._rows()
        if self.bias is None:
            return x, table
        parts = [self.bias]
        if jnp.finfo(x.dtype).bits < 32:
            bits = jnp.finfo(x.dtype)
            # Compilers may remove a cast to a narrower dtype and back.
            rounded = jax.lax.stop_gradient(jax.lax.reduce_precision(parts[0], bits.nexp, bits.nmant))
            parts = [rounded, parts[0] - rounded]
        columns = jnp.broadcast_to(jnp.stack(parts, -1), (*table.shape[:-1], len(parts))).astype(table.dtype)
        ones = jnp.ones((*x.shape[:-1], len(parts)), x.dtype)
        return jnp.concatenate([x, ones], -1), jnp.concatenate([table, columns], -1)


def _one_copy(table: Array) -> Array:
    """Returns a table [V, D] of one or of its copies [G, C, V, D]."""
    return table[0, 0] if table.ndim == 4 else table


def joint_log_probs(
    heads: Sequence[Head],
    states: Sequence[Float[Array, "B T _"]],
    labels: Integer[Array, "B T"],
    combine: Callable[[Float[Array, "M V"]], Float[Array, " V"]],
    *,
    where: Bool[Array, "B T"] | None = None,
) -> Float[Array, "B T"]:
    """Returns the log-probability of each label by M models together, such as an ensemble, in float32.

    Args:
      combine: makes scores, which are normalized, of the logits of the models; only those of a few positions exist at a
        time.
      where: True where a label counts, by default everywhere; other labels are not checked.

    Raises:
      ValueError: a label is not in the vocabulary.
    """
    pairs = [head._with_bias(x) for head, x in zip(heads, states, strict=True)]
    tables = [_one_copy(table).astype(x.dtype) for x, table in pairs]
    check_labels(labels, where, len(tables[0]))

    def log_prob(row: tuple[list[Array], Array]) -> Array:
        logits = [
            jnp.einsum("d,vd->v", x, table, preferred_element_type=jnp.float32)
            for x, table in zip(row[0], tables, strict=True)
        ]
        return jax.nn.log_softmax(combine(jnp.stack(logits)))[row[1]]

    rows = [x.reshape(-1, x.shape[-1]) for x, _ in pairs]
    chunk = max(1, logits_per_chunk() // sum(map(len, tables)))
    return jax.lax.map(log_prob, (rows, labels.reshape(-1)), batch_size=chunk).reshape(labels.shape)
