"""Small models that together cover every option, and one batch."""

import functools

import jax
import numpy as np

from jaxformer import functional, models, pure
from jaxformer.models import choices
from tests.modules.small import drawn, int32, quick

V, B, S, T = 13, 2, 6, 5
SIZE = {"d_model": 8, "num_heads": 2, "d_ff": 12, "num_encoder_layers": 2, "num_decoder_layers": 2}
CONFIGS = {
    "post": models.EncoderDecoderConfig(V, V, **SIZE),
    "pre": models.EncoderDecoderConfig(
        11,
        V,
        tie_embeddings="none",
        norm_position="pre",
        positions=choices.Learned(),
        max_positions=7,
        activation="gelu",
        **SIZE,
    ),
    "biased": models.EncoderDecoderConfig(
        V - 1,
        V,
        tie_embeddings="decoder",
        positions=choices.Learned(),
        max_positions=8,
        attention_bias=True,
        activation="gelu_tanh",
        **SIZE,
    ),
    "remat": models.EncoderDecoderConfig(V, V, norm_position="pre", remat=True, **SIZE),
}
LANGUAGE_SIZE = {"d_model": 8, "num_heads": 2, "d_ff": 12, "num_layers": 2, "max_positions": 7}
LANGUAGE_CONFIGS = {
    "tied": models.LanguageModelConfig(V, **LANGUAGE_SIZE),
    "untied": models.LanguageModelConfig(
        V,
        tie_embeddings=False,
        norm_position="post",
        positions=choices.Sinusoidal(),
        activation="relu",
        attention_bias=True,
        remat=True,
        **LANGUAGE_SIZE,
    ),
}
SOURCE = int32([[3, 4, 5, 6, 7, 8], [9, 3, 8, 5, 0, 0]])
SOURCE_VALID = jax.device_put(np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]], bool))
TARGET = int32([[1, 2, 9, 10, 0], [1, 10, 2, 9, 0]])  # no word of example 0's source
TARGET_VALID = jax.device_put(np.array([[1, 1, 1, 1, 0], [1, 1, 1, 1, 0]], bool))
SOURCES, TARGETS = functional.Tokens(SOURCE, SOURCE_VALID), functional.Tokens(TARGET, TARGET_VALID)


class Small:
    """A model, parameters, and its methods jitted."""

    def __init__(self, config, network=models.EncoderDecoder):
        self.config, self.net = config, pure(network, config)
        self.params = drawn(self.net.shapes, 0.3)
        self.apply = quick(self.net.apply)
        self.call = quick(self._call, static_argnums=0, static_argnames=("batch_size", "beam_size", "length", "names"))

    def _call(self, method, params, *args, **kwargs):
        """A method of the model's class, with these parameters."""
        return method(self.net.bind(params), *args, **kwargs)

    def logits(self, source=SOURCE, target=TARGET, *, params=None, **options):
        return self.apply(self.params if params is None else params, source, target, **options)


@functools.cache
def model(name):
    return Small(CONFIGS[name])


@functools.cache
def language_model(name):
    return Small(LANGUAGE_CONFIGS[name], models.LanguageModel)


def different(a, b):
    """Where two arrays differ at all, over the last dimension."""
    return (np.asarray(a) != np.asarray(b)).any(-1)


def entry(params, path):
    """The part of nested parameters at a path such as "encoder.norm", or None."""
    for name in path.split("."):
        if name not in params:
            return None
        params = params[name]
    return params


def replaced(params, values):
    """Nested parameters with the parts at these paths replaced."""
    result = dict(params)
    for path, value in values.items():
        name, _, rest = path.partition(".")
        result[name] = replaced(result.get(name, {}), {rest: value}) if rest else value
    return result
