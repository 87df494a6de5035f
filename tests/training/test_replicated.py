"""The step of `pmap` is the step of `jit`: the same losses, metrics and parameters, on eight devices and on one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxformer import models, pure, training
from tests.sharding import small

SIZES = small.SIZES | {"num_encoder_layers": 1, "num_decoder_layers": 1}
CONFIG = models.EncoderDecoderConfig(64, 64, norm_position="pre", dropout=0.0, **SIZES)


@pytest.mark.full
def test_ten_steps():
    """Padding is spread unevenly, so a mean over the devices' means would be another loss."""
    net, given = pure(models.EncoderDecoder, CONFIG), small.batch()
    given = given | {"labels": given["labels"].at[:5].set(63)}
    state, step = small.alone(CONFIG)
    want, last = small.ten(state, step, given)
    loss = functools.partial(small.loss, net)
    state = training.create(net.init, small.OPTIMIZER, jax.random.key(0))
    state = jax.tree.map(lambda x: jnp.stack([x] * 8), state)
    step, cut = training.make_replicated_step(loss, small.OPTIMIZER), lambda x: x.reshape(8, 2, -1)
    got = []
    for _ in range(10):
        state, metrics = step(state, jax.tree.map(cut, given))
        got.append(float(metrics["loss_sum"][0] / metrics["count"][0]))
    np.testing.assert_allclose(got[0], want[0], rtol=1e-6)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(state.params), jax.tree.leaves(last.params), strict=True):
        np.testing.assert_allclose(a[0], b, atol=2e-4)
        np.testing.assert_array_equal(a, jnp.broadcast_to(a[0], a.shape))


def test_a_moving_average_is_refused():
    """Its initial values would stay, and be what is evaluated."""
    state = training.create(lambda key: jnp.zeros(2), small.OPTIMIZER, jax.random.key(0), ema=True)
    state = jax.tree.map(lambda x: jnp.stack([x] * 8), state)
    step = training.make_replicated_step(lambda p, x, key: (p.sum(), x.sum(), {}), small.OPTIMIZER)
    with pytest.raises(ValueError, match="keeps no moving average"):
        step(state, jnp.ones((8, 3)))


@pytest.mark.parametrize("weight", [0.0, 0.01, 1.0])
def test_counts_below_one(weight):
    """The update divides by the count, as `make_step` does: by 0.24, not by 1; a count of 0 divides by 1."""
    loss = lambda p, x, key: (weight * jnp.square(p - x).sum(), weight * jnp.float32(x.size), {})
    sgd, x = optax.sgd(0.25), jnp.arange(24.0).reshape(8, 3)
    state = training.create(lambda key: jnp.float32(3), sgd, jax.random.key(0))
    replicated = jax.tree.map(lambda x: jnp.stack([x] * 8), state)
    want, metrics = training.make_step(loss, sgd)(state, x)
    got, found = training.make_replicated_step(loss, sgd)(replicated, x)
    np.testing.assert_allclose(got.params, jnp.full(8, want.params), rtol=1e-6)
    np.testing.assert_allclose(found["gradient_norm"][0], metrics["gradient_norm"], rtol=1e-6)
    np.testing.assert_allclose(got.params[0], 3 if weight == 0 else 3 + 0.5 * (11.5 - 3), rtol=1e-6)
