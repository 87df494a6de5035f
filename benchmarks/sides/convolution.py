"""Convolution of this library, and the same as K shifted matrix products."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from benchmarks.sides.arrays import convolution_arrays, save
from benchmarks.sides.ours import compiled
from benchmarks.sides.ours import product as product
from benchmarks.sides.ours import versions as versions
from jaxformer import functional


def build(spec):
    *inputs, upstream = map(jnp.asarray, convolution_arrays(spec["shape"]))
    dilation, causal = spec["shape"][4], spec["causal"]

    def call(x, kernel, bias):
        if spec["side"] == "jaxformer":
            return functional.convolution(x, kernel, bias, dilation=dilation, causal=causal)
        reach = (len(kernel) - 1) * dilation
        before = reach if causal else reach // 2
        padded = jnp.pad(x, ((0, 0), (before, reach - before), (0, 0)))
        starts = range(0, reach + 1, dilation)
        return sum(padded[:, i : i + x.shape[1]] @ w for i, w in zip(starts, kernel, strict=True)) + bias

    once = compiled(spec, call, inputs, upstream)
    save(spec, [np.asarray(x) for x in once()])
    return once
