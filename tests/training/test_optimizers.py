"""Optimizers from configuration."""

import jax
import jax.numpy as jnp
import pytest

from jaxformer import training
from jaxformer.training import optimizers


def test_unknown_schedule():
    with pytest.raises(ValueError, match="no schedule 'cosin'"):
        training.make_optimizer(training.OptimizerConfig(schedule="cosin"), steps=10)


def test_decay_spares_biases_and_norms():
    """By the ends of their names: cross-attention has two biases."""
    config = training.OptimizerConfig(weight_decay=0.5, learning_rate=1.0, warmup_steps=1, schedule="constant")
    optimizer = optimizers.make_optimizer(config, steps=10)
    params = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2), "scale": jnp.ones(2), "query_bias": jnp.ones(2)}
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)
    assert float(updates["kernel"][0, 0]) == pytest.approx(-0.5)
    assert not updates["bias"].any()
    assert not updates["scale"].any()
    assert not updates["query_bias"].any()
