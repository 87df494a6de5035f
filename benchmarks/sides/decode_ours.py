"""This library's greedy and beam search."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.sides.decode_data import BOS, EOS, PAD, sources, weights
from jaxformer import decoding, models
from jaxformer.modules import pure


def build(spec):
    config = models.EncoderDecoderConfig(
        spec["vocab_size"],
        spec["vocab_size"],
        d_model=spec["d_model"],
        num_heads=spec["num_heads"],
        d_ff=spec["d_ff"],
        num_encoder_layers=spec["num_layers"],
        num_decoder_layers=spec["num_layers"],
    )
    net = pure(models.EncoderDecoder, config)
    params = jax.tree.map(jnp.asarray, weights(spec))
    length, beam_size = spec["length"], spec["beam_size"]
    sentences = sources(spec)
    width = max(map(len, sentences))
    source = np.array([np.pad(ids, (0, width - len(ids)), constant_values=PAD) for ids in sentences])

    step_weights = jax.jit(lambda params: net.bind(params).step_weights())(params)

    @jax.jit
    def search(params, step_weights, source):
        model = net.bind(params)
        memory = model.encode(source, source_valid=source != PAD)
        context, state = model.start(memory, beam_size=beam_size, length=length, weights=step_weights)
        step_in = lambda context: lambda tokens, state: model.step(tokens, state, context)
        options = {
            "max_length": length,
            "bos": BOS,
            "eos": EOS,
            "pad": PAD,
            "forced_end": "never",
            "transforms": [decoding.min_length(length + 1, eos=EOS)],
            "narrow": lambda rows: step_in(context.take(rows)),
        }
        if beam_size == 1:
            return decoding.greedy(step_in(context), state, **options)
        return decoding.beam_search(step_in(context), state, beam_size=beam_size, **options)

    def once():
        found = jax.device_get(search(params, step_weights, source))
        return found.tokens[:, 0].tolist()

    return once


def product(size):
    x = jnp.ones((size, size))
    multiply = jax.jit(jnp.matmul)
    return lambda: multiply(x, x).block_until_ready()


def versions():
    return f"jax {jax.__version__}"
