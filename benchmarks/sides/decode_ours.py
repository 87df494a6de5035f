"""This library's greedy and beam search."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.sides.decode_data import BOS, EOS, PAD, sources, weights
from benchmarks.sides.ours import network
from benchmarks.sides.ours import product as product
from benchmarks.sides.ours import versions as versions
from jaxformer import decoding
from jaxformer.functional import Tokens


def build(spec):
    net = network(spec)
    params = jax.tree.map(jnp.asarray, weights(spec))
    length, beam_size = spec["length"], spec["beam_size"]
    sentences = sources(spec)
    width = max(map(len, sentences))
    source = np.array([np.pad(ids, (0, width - len(ids)), constant_values=PAD) for ids in sentences])

    step_weights = jax.jit(lambda params: net.bind(params).step_weights())(params)

    @jax.jit
    def search(params, step_weights, source):
        model = net.bind(params)
        memory = model.encode(Tokens(source, source != PAD))
        context, state = model.start(memory, beam_size=beam_size, length=length, weights=step_weights)
        step = decoding.ContextStep(model.step, context)
        limits = decoding.Limits(max_length=length, bos=BOS, eos=EOS, pad=PAD, forced_end="never")
        transforms = [decoding.min_length(length + 1, eos=EOS)]
        if beam_size == 1:
            return decoding.greedy(step, state, limits, transforms=transforms)
        return decoding.beam_search(step, state, limits, beam_size=beam_size, transforms=transforms)

    def once():
        found = jax.device_get(search(params, step_weights, source))
        return found.tokens[:, 0].tolist()

    return once
