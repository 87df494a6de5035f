"""This library's recurrent networks, one layer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.sides.arrays import GATES, recurrent_arrays, save
from benchmarks.sides.ours import compiled
from benchmarks.sides.ours import product as product
from benchmarks.sides.ours import versions as versions
from jaxformer import functional as F


def build(spec):
    cell, gates = getattr(F, f"{spec['cell']}_cell"), GATES[spec["cell"]]
    x, upstream, theirs = recurrent_arrays(spec)
    ours = lambda weight: weight.reshape(gates, -1, *weight.shape[1:]).transpose(
        *((2, 0, 1) if weight.ndim == 2 else (0, 1))
    )
    weights = F.RecurrentWeights(*(jnp.asarray(ours(weight)) for weight in theirs))
    x, upstream = jnp.asarray(x), jnp.asarray(upstream)
    once = compiled(spec, lambda x, weights: F.recurrent(cell, x, weights)[0], (x, weights), upstream)
    output, *gradients = once()
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(gradients)]
    back = lambda leaf: leaf.transpose(1, 2, 0) if leaf.ndim == 3 else leaf
    leaves[1:] = [back(leaf).reshape(-1, *back(leaf).shape[2:]) for leaf in leaves[1:]]
    save(spec, [np.asarray(output), *leaves])
    return once
