"""Untrained translators of a small vocabulary, with sentences for them."""

import dataclasses
import functools

import jax

from jaxformer import demo, models, pure
from jaxformer.tasks.translation import Beam, DecodeConfig, Translator
from jaxformer.tokenizers.subwords import SubwordTokenizer
from tests.modules.small import quick

SENTENCES = ["The old man sees the house.", "", "She sings.", "Why did she sing?", "  "]


@functools.cache
def trained(**options):
    """A network, initial parameters, and a tokenizer."""
    tokenizer = SubwordTokenizer.train([p.english for p in demo.generate(500)], vocab_size=400)
    config = models.EncoderDecoderConfig(
        400, 400, d_model=16, num_heads=2, d_ff=32, num_encoder_layers=1, num_decoder_layers=1, **options
    )
    net = pure(models.EncoderDecoder, config)
    return net, quick(net.init)(jax.random.key(1)), tokenizer


def translator(beam_size=3, **options):
    decode = DecodeConfig(search=Beam(beam_size=beam_size), batch_size=2, max_ratio=1.0, max_extra=5)
    return Translator(*trained(**options), decode)


def with_settings(one, **settings):
    return dataclasses.replace(one, decode=dataclasses.replace(one.decode, **settings))
