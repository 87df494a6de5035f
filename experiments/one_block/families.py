"""The block with three masks: the networks of the families, also without their mask or cross-attention."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxformer import models
from jaxformer.functional import Tokens
from jaxformer.models import choices

PAD, BOS, EOS, MASK = 0, 1, 2, 3
"""The special tokens; words follow."""


@dataclasses.dataclass(frozen=True)
class Family:
    """One use of the block."""

    name: str
    goal: Literal["masked word", "next word", "translation"]
    """The words that it is trained to predict."""
    causal: bool
    """Each word sees only the words before it."""
    cross: bool = False
    """It reads the source sentence by cross-attention; otherwise a translation does not depend on the source."""
    loses: str = ""
    """The finding of the results, in words."""


FAMILIES = (
    Family("encoder", "masked word", False, loses="it cannot write: it knows words between words only"),
    Family("decoder", "next word", True, loses="a word does not see those after it"),
    Family("decoder without its mask", "next word", False, loses="everything: it copies the answer"),
    Family("encoder-decoder", "translation", True, True, loses="a second stack, and a source to read"),
    Family("encoder-decoder without its mask", "translation", False, True, loses="everything: it copies the answer"),
    Family("encoder-decoder without cross-attention", "translation", True, loses="the source: it writes any sentence"),
)


@dataclasses.dataclass(frozen=True)
class ModelSizes:
    """The sizes that all families share."""

    vocab_size: int
    d_model: int = 64
    num_layers: int = 2


class Network(nnx.Module):
    """A stack of blocks over words, and with cross-attention an encoder of the same blocks for the source."""

    def __init__(self, given: tuple[Family, ModelSizes], *, rngs: nnx.Rngs):
        family, shape = given
        sizes = {"d_model": shape.d_model, "num_layers": shape.num_layers, "num_heads": 4, "d_ff": 4 * shape.d_model}
        settings = {"positions": choices.Rotary(), "norm_position": "pre", "activation": "gelu", "dropout": 0.0}
        memory_dim = shape.d_model if family.cross else None
        config = models.DecoderConfig(
            shape.vocab_size, **sizes, **settings, causal=family.causal, memory_dim=memory_dim
        )
        self.decoder = models.make_decoder(config, rngs=rngs)
        encoder = models.EncoderConfig(shape.vocab_size, **sizes, **settings)
        self.encoder = models.make_encoder(encoder, rngs=rngs) if family.cross else None

    def __call__(self, words: Int[Array, "B T"], source: Int[Array, "B S"] | None = None) -> Float[Array, "B T V"]:
        """Returns the logits at every position."""
        memory = None
        if self.encoder is not None and source is not None:
            memory, _ = self.encoder(Tokens(source, source != PAD))
        return self.decoder(Tokens(words, words != PAD), memory)


def hide(words: Int[Array, "B T"], key: jax.Array, share: float = 0.15) -> tuple[Array, Array]:
    """Returns the words with a share of them, and always one, replaced by `MASK`, and where they were hidden."""
    noise = jax.random.uniform(key, words.shape)
    noise = jax.numpy.where(words > MASK, noise, 2.0)
    hidden = (noise < share) | (noise == noise.min(1, keepdims=True))
    hidden &= words > MASK
    return jax.numpy.where(hidden, MASK, words), hidden
