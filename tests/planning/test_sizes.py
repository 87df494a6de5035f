"""Bytes and operations of models, against the arrays that the library would make."""

import dataclasses
import math

import jax
import pytest

from jaxformer import models, pure
from jaxformer.models import families
from jaxformer.models.presets import PRESETS, Preset
from jaxformer.planning.sizes import sizes
from jaxformer.training.config import AdamConfig
from jaxformer.training.optimizers import make_optimizer

SMALL = {"d_model": 16, "num_heads": 4, "d_ff": 24}
SMALL_T5 = families.t5(40, **SMALL, head_dim=6, num_encoder_layers=2, num_decoder_layers=3)
DECODERS = {
    "gpt2": families.gpt2(40, **SMALL, num_layers=3, max_positions=12),
    "llama": families.llama(40, **SMALL, num_kv_heads=2, num_layers=2),
    "t5": SMALL_T5,
}


def num_bytes(tree):
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", DECODERS)
def test_the_cache_is_the_one_that_decoding_starts_with(name, dtype):
    """Abstractly: keys and values of every layer for 12 positions, and in an encoder-decoder of 12 of the source."""
    config = dataclasses.replace(DECODERS[name], compute_dtype=dtype)

    def start(params):
        if isinstance(config, models.EncoderDecoderConfig):
            model = pure(models.EncoderDecoder, config).bind(params)
            context, state = model.start(model.encode(jax.numpy.ones((1, 12), int)), beam_size=1, length=12)
            return context.memory, state.caches
        return pure(models.LanguageModel, config).bind(params).start(batch_size=1, beam_size=1, length=12)[1].caches

    network = models.EncoderDecoder if name == "t5" else models.LanguageModel
    held = jax.eval_shape(start, pure(network, config).shapes)
    size = sizes(Preset(config, 12, 1.0, "none"))
    assert size.decoding[dtype]["cache"] == num_bytes(held) > 0


@pytest.mark.parametrize("name", DECODERS)
def test_bytes_of_training(name):
    """Parameters and Adam's moments of the library's own optimizer; gradients are as large as the parameters."""
    config = DECODERS[name]
    params = pure(models.EncoderDecoder if name == "t5" else models.LanguageModel, config).shapes
    optimizer = make_optimizer(AdamConfig(weight_decay=0.1), steps=10)
    moments = [x for x in jax.tree.leaves(jax.eval_shape(optimizer.init, params)) if x.ndim]
    size = sizes(Preset(config, 12, 1.0, "none"))
    found = size.training["float32"]
    assert (found["parameters"], found["moments"]) == (num_bytes(params), num_bytes(moments))
    assert sum(found.values()) == 2 * sum(size.training["bfloat16"].values()) == 16 * size.parameters


def test_an_encoder_decodes_nothing():
    size = sizes(PRESETS["bert-base"])
    assert (size.family, size.decoding, size.cache_token) == ("encoder", {}, 0)


def test_operations_of_a_token():
    """Two for each weight of GPT-2's matrices and its table, four for each of the T D products of attention."""
    size = sizes(PRESETS["gpt2"])
    assert size.forward_flops == 2 * (12 * 12 * 768**2 + 50_257 * 768) + 4 * 12 * 1024 * 768
    assert size.training_flops == 3 * size.forward_flops
    t5 = sizes(Preset(SMALL_T5, 12, 1.0, "none"))
    queries, d_model = 24, 16
    encoder = 2 * (8 * d_model * queries + 4 * 12 * queries + 4 * d_model * 24)
    decoder = 3 * (16 * d_model * queries + 8 * 12 * queries + 4 * d_model * 24)
    assert t5.forward_flops == (encoder + decoder + 2 * d_model * 40) / 2


def test_layers_and_token_ids_of_both_sides():
    size = sizes(Preset(SMALL_T5, 12, 1e4, "none"))
    assert (size.family, size.num_layers, size.vocab_size) == ("encoder-decoder", 5, 40)
    assert size.difference == size.parameters / 1e4 - 1
