"""Optimizers from configuration."""

import math
import re

import jax
import jax.numpy as jnp
import pytest

from jaxformer import training
from jaxformer.errors import ConfigError
from jaxformer.training import optimizers


def test_unknown_schedule():
    with pytest.raises(ValueError, match="no schedule 'cosin'"):
        training.make_optimizer(training.OptimizerConfig(schedule="cosin"), steps=10)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": -1.0}, "learning_rate must be at least 0, got -1.0"),
        ({"learning_rate": math.nan}, "learning_rate must be at least 0, got nan"),
        ({"learning_rate": math.inf}, "learning_rate must be finite, got inf"),
        ({"warmup_steps": -5}, "warmup_steps must be at least 0, got -5"),
        ({"decay_steps": -4}, "decay_steps must be at least 0, got -4"),
        ({"decay_steps": 4}, "decay_steps 4 has no effect, because schedule is inverse_sqrt"),
        ({"decay_steps": 4, "schedule": "constant"}, "decay_steps 4 has no effect, because schedule is constant"),
        ({"cooldown": math.nan}, "cooldown must be at least 0, got nan"),
        ({"b1": 1.0}, "b1 must be less than 1, got 1.0"),
        ({"b2": math.nan}, "b2 must be at least 0, got nan"),
        ({"epsilon": -1.0}, "epsilon must be at least 0, got -1.0"),
        ({"weight_decay": -1.0}, "weight_decay must be at least 0, got -1.0"),
        ({"clip_norm": math.nan}, "clip_norm must be at least 0, got nan"),
    ],
)
def test_refusals(settings, message):
    """A rate below 0 climbs the loss, and NaN would end the training only after it had claimed its run directory."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        training.OptimizerConfig(**settings)


@pytest.mark.parametrize(("cooldown", "expected"), [(0.04, [1.0] * 10), (0.5, [1.0] * 6 + [0.8, 0.6, 0.4, 0.2])])
def test_cooldown_is_a_fraction_of_the_training(cooldown, expected):
    """A fraction that rounds to no step is one step, whose rate is that of the schedule."""
    config = training.OptimizerConfig(learning_rate=1.0, schedule="constant", warmup_steps=0, cooldown=cooldown)
    rate = optimizers.make_schedule(config, steps=10)
    assert [float(rate(step)) for step in range(10)] == pytest.approx(expected)


def test_refuses_a_cooldown_longer_than_the_training():
    with pytest.raises(ValueError, match="cooldown must last between 1 and all 10 steps"):
        optimizers.make_schedule(training.OptimizerConfig(cooldown=1.1), steps=10)


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


def test_a_moving_average_keeps_its_decay_under_clipping_and_any_rate():
    config = training.OptimizerConfig(clip_norm=0.1, weight_decay=0.5, learning_rate=1.0, warmup_steps=5)
    params = {"kernel": jnp.ones((2, 2)), "mean": jnp.float32(3.0)}
    plain = optimizers.make_optimizer(config, steps=10)
    optimizer = optimizers.averaging(plain, {"kernel": False, "mean": True}, decay=0.9)
    state, alone = optimizer.init(params), plain.init({"kernel": params["kernel"]})
    for seen in (8.0, -1.0):
        gradient = {"kernel": jnp.full((2, 2), 7.0), "mean": params["mean"] - seen}  # of (mean - seen) ** 2 / 2
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimizer.update(gradient, state, params)
            own, alone = plain.update({"kernel": gradient["kernel"]}, alone, {"kernel": params["kernel"]})
        assert float(params["mean"] + updates["mean"]) == pytest.approx(0.9 * float(params["mean"]) + 0.1 * seen)
        assert (updates["kernel"] == own["kernel"]).all()
        params = jax.tree.map(jnp.add, params, updates)
