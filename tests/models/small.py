"""Small encoder-decoders that between them meet every option, and one batch."""

import functools

import jax.numpy as jnp
import numpy as np

from jaxformer import models, pure
from tests.modules.small import drawn, quick

V, B, S, T = 13, 2, 6, 5
SIZE = {"d_model": 8, "num_heads": 2, "d_ff": 12, "num_encoder_layers": 2, "num_decoder_layers": 2}
CONFIGS = {
    "post": models.EncoderDecoderConfig(V, V, **SIZE),
    "pre": models.EncoderDecoderConfig(
        11,
        V,
        tie_embeddings="none",
        norm_position="pre",
        positions="learned",
        max_positions=7,
        activation="gelu",
        **SIZE,
    ),
    "biased": models.EncoderDecoderConfig(
        V - 1,
        V,
        tie_embeddings="decoder",
        positions="learned",
        max_positions=8,
        attention_bias=True,
        activation="gelu_tanh",
        **SIZE,
    ),
    "remat": models.EncoderDecoderConfig(V, V, norm_position="pre", remat=True, **SIZE),
}
SOURCE = jnp.asarray([[3, 4, 5, 6, 7, 8], [9, 3, 8, 5, 0, 0]], jnp.int32)
SOURCE_VALID = jnp.asarray([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]], bool)
TARGET = jnp.asarray([[1, 2, 9, 10, 0], [1, 10, 2, 9, 0]], jnp.int32)  # no word of example 0's source
TARGET_VALID = jnp.asarray([[1, 1, 1, 1, 0], [1, 1, 1, 1, 0]], bool)


class Small:
    """A model, parameters, and its methods jitted."""

    def __init__(self, config):
        self.config, self.net = config, pure(models.EncoderDecoder, config)
        self.params = drawn(self.net.shapes, 0.3)
        self.apply = quick(self.net.apply, static_argnames=("method", "beam_size", "length", "names"))

    def logits(self, source=SOURCE, target=TARGET, *, params=None, **options):
        return self.apply(self.params if params is None else params, source, target, **options)


@functools.cache
def model(name):
    return Small(CONFIGS[name])


def different(a, b):
    """Where two arrays differ at all, over the last dimension."""
    return (np.asarray(a) != np.asarray(b)).any(-1)
