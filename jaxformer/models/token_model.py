"""The base of networks that score tokens: logits, losses, scores and maps from the states and the head."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxformer.functional.losses import CrossEntropy, LogitLoss
from jaxformer.functional.tokens import Tokens, as_tokens
from jaxformer.models.transformer import balance_loss
from jaxformer.modules.captured import Intermediates
from jaxformer.modules.head import Head

Input = Tokens | Array
"""The input of a network: tokens, an array of token ids, or images. Labels belong to the last input of a network."""

CROSS_ENTROPY = CrossEntropy()


class TokenModel(nnx.Module):
    """A network that scores tokens; a subclass defines `states`, `head` and the names of its attentions."""

    attention_names: tuple[str, ...] = ()
    """The names for `captured`, such as "decoder.self"."""
    load_balancing_weight: float = 0.0
    """The weight of the load-balancing loss of experts, which training adds to each loss."""

    @property
    def head(self) -> Head:
        """The output projection of the states."""
        raise NotImplementedError(f"{type(self).__name__} does not define head")

    def states(
        self, *inputs: Any, key: jax.Array | None = None, capture: Collection[str] = ()
    ) -> tuple[Float[Array, "B T D"], Intermediates]:
        """Returns the states from which the head computes scores, and what is captured of the layers.

        Args:
          key: the key of dropout; None means no dropout.
          capture: names of attentions (see `captured`), and of routings of experts, such as "decoder.experts".
        """
        raise NotImplementedError(f"{type(self).__name__} does not define states")

    def __call__(self, *inputs: object, key: jax.Array | None = None) -> Float[Array, "B T V"]:
        """Returns the logits of every token at every position, float32: the method `states` names the inputs."""
        return self.head.logits(self.states(*inputs, key=key)[0])

    def loss(
        self,
        *inputs: object,
        labels: Int[Array, "B T"],
        where: Bool[Array, "B T"] | None = None,
        loss: LogitLoss = CROSS_ENTROPY,
        key: jax.Array | None = None,
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Returns a loss of the logits, (sum, count), without holding them; training minimizes it.

        In training (with a `key`) it includes the load-balancing loss of the experts, if there are any.

        Args:
          labels: the token to predict at each position of the last input.
          where: True for labels to count, such as those of completions (prompts are valid too); by default, the valid
            tokens of the last input.
          loss: any `functional.LogitLoss`, such as ``functional.CrossEntropy(smoothing=0.1)``.
        """
        routings = self._routings if self.load_balancing_weight and key is not None else ()
        x, captured = self.states(*inputs, key=key, capture=routings)
        if where is None:
            where = self._counted(*inputs)
        total, count = self.head.loss(x, labels, loss, where=where)
        for name in routings:
            total += self.load_balancing_weight * count * balance_loss(captured[name])
        return total, count

    def log_probs(
        self, *inputs: object, labels: Int[Array, "B T"], where: Bool[Array, "B T"] | None = None
    ) -> Float[Array, "B T"]:
        """Returns the log-probability of each label, without dropout and without holding the logits.

        Args:
          where: True for labels that count, by default as in `loss`; the values of others are not checked.

        Raises:
          ValueError: a label that counts is not in the vocabulary.
        """
        if where is None:
            where = self._counted(*inputs)
        return self.head.log_probs(self.states(*inputs)[0], labels, where=where)

    def captured(self, *inputs: object, names: Collection[str] | None = None) -> Intermediates:
        """Returns named attentions in every layer, a `CapturedAttention` or `CapturedWeights` each; by default, all.

        Get the weights of some heads and rows by ``captured["decoder.cross"].layer(2).weights(rows=..., heads=...)``;
        layers count from 0.

        Raises:
          ValueError: a name does not exist; the message lists the names that do.
        """
        if names is None:
            names = self.attention_names
        check_names(names, self.attention_names)
        captured = self.states(*inputs, capture=names)[1]
        return {name: captured[name] for name in names}

    def _counted(self, *inputs: Any) -> Array | None:
        """Returns True for the labels that count by default; None if all do."""
        return as_tokens(inputs[-1]).valid

    @property
    def _routings(self) -> tuple[str, ...]:
        """The names of the routings of experts, the decoder's first."""
        parts = {name.split(".")[0] for name in self.attention_names}
        return tuple(f"{part}.experts" for part in ("decoder", "encoder") if part in parts)


def check_names(names: Collection[str], known: Collection[str]) -> None:
    """Checks the names of attentions to capture."""
    if unknown := set(names) - set(known):
        raise ValueError(f"unknown attention names {sorted(unknown)}; there are {sorted(known)}")


def part_of(capture: Collection[str], part: str) -> list[str]:
    """Returns the names of one part of a network: "self" for "decoder.self" in the decoder.

    >>> part_of(["encoder.self", "decoder.self", "decoder.cross"], "decoder")
    ['self', 'cross']
    """
    return [name.removeprefix(f"{part}.") for name in capture if name.startswith(f"{part}.")]


def of_part(intermediates: Intermediates, part: str) -> Intermediates:
    """Returns intermediates under the names of their part, such as "decoder.self"."""
    return {f"{part}.{name}": x for name, x in intermediates.items()}
