"""A small model on a mesh and on one device: its batch, loss, state and step."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxformer import functional, models, pure, sharding, training

SIZES = {"d_model": 16, "num_heads": 4, "d_ff": 32, "num_encoder_layers": 2, "num_decoder_layers": 2}
CONFIG = models.EncoderDecoderConfig(64, 64, norm_position="pre", dropout=0.1, **SIZES)
OPTIMIZER = optax.adam(1e-2)


@functools.cache
def batch():
    draw = np.random.default_rng(0)
    return {name: jnp.asarray(draw.integers(3, 64, (16, 12)), jnp.int32) for name in ("source", "target", "labels")}


def loss(net, params, batch, key):
    source = functional.Tokens(batch["source"], batch["source"] < 60)
    target = functional.Tokens(batch["target"], batch["labels"] < 60)
    model = net.bind(sharding.with_copies(params, net.axes, batch))
    return *model.loss(source, target, labels=batch["labels"], key=key), {}


def network(placement, config=CONFIG):
    """As a task makes it: each device attends with its rows and heads, round a ring where lengths are sharded."""
    attention = sharding.sharded_attention(placement.mesh)
    return pure(models.EncoderDecoder, config, attention=attention)


def placed(text, config=CONFIG, **options):
    """State and step on this mesh, and the batch there."""
    placement = sharding.Placement(sharding.mesh(text))
    net = network(placement, config)
    make = functools.partial(training.create, net.init, OPTIMIZER, jax.random.key(0))
    where = placement.state(make, placement.params(net.shapes, net.axes), OPTIMIZER)
    within = placement.with_axis_rules(functools.partial(loss, net))
    step = training.make_step(within, OPTIMIZER, shardings=where, **options)
    return make(shardings=where), step, placement.assemble(batch())


def alone(config=CONFIG, **options):
    net = pure(models.EncoderDecoder, config)
    state = training.create(net.init, OPTIMIZER, jax.random.key(0))
    return state, training.make_step(functools.partial(loss, net), OPTIMIZER, **options)


def ten(state, step, given):
    losses = []
    for _ in range(10):
        state, metrics = step(state, given)
        losses.append(float(metrics["loss_sum"] / metrics["count"]))
    return losses, state


@functools.cache
def expected(**options):
    return ten(*alone(**options), batch())


def assert_ten_steps(found, want, last):
    losses, final = found
    np.testing.assert_allclose(losses[0], want[0], rtol=1e-6)
    np.testing.assert_allclose(losses, want, rtol=1e-5)
    chex.assert_trees_all_close(final.params, last.params, rtol=0, atol=2e-4)
