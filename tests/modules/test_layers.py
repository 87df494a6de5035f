"""Linear, feed-forward, normalization, embedding and position layers: parameters, and the function they call."""

from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, modules
from jaxformer.modules.initializers import normal as bell_curve
from jaxformer.modules.initializers import uniform
from tests.modules.small import built, count, int32, normal

D = 8


def test_linear():
    net, params = built(lambda rngs: modules.Linear(D, 6, rngs=rngs))
    x = normal(2, 3, D)
    np.testing.assert_allclose(net.apply(params, x), x @ params["kernel"] + params["bias"][None, None], atol=1e-6)
    bare, _ = built(lambda rngs: modules.Linear(D, 6, bias=False, rngs=rngs))
    assert set(bare.shapes) == {"kernel"}
    fresh = net.init(jax.random.key(0))
    assert not np.asarray(fresh["bias"]).any()
    assert np.abs(fresh["kernel"]).max() <= np.sqrt(6 / (D + 6))


@pytest.mark.parametrize("activation", [functional.relu, functional.gelu])
def test_feed_forward(activation):
    """Four times as wide inside by default; dropout between the maps only with a key."""
    net, params = built(lambda rngs: modules.FeedForward(D, activation=activation, dropout=0.5, rngs=rngs))
    assert count(params) == 8 * D * D + 5 * D
    x, up, down = normal(2, 3, D), params["up"], params["down"]
    expected = functional.feed_forward(x, up["kernel"], up["bias"], down["kernel"], down["bias"], activation=activation)
    np.testing.assert_allclose(net.apply(params, x), expected, atol=1e-6)
    key = jax.random.key(4)
    hidden = functional.dropout(activation(functional.linear(x, up["kernel"], up["bias"])), rate=0.5, key=key)
    dropped = functional.linear(hidden, down["kernel"], down["bias"])
    np.testing.assert_allclose(net.apply(params, x, key=key), dropped, atol=1e-6)


def test_norms():
    x = normal(2, 3, D)
    net, params = built(lambda rngs: modules.LayerNorm(D, epsilon=0.1))
    expected = functional.layer_norm(x, params["scale"], params["bias"], epsilon=0.1)
    np.testing.assert_allclose(net.apply(params, x), expected, atol=1e-6)
    fresh = net.init(jax.random.key(0))
    assert np.asarray(fresh["scale"] == 1).all()
    assert np.asarray(fresh["bias"] == 0).all()
    net, params = built(lambda rngs: modules.RMSNorm(D, epsilon=0.1))
    np.testing.assert_allclose(net.apply(params, x), functional.rms_norm(x, params["scale"], epsilon=0.1), atol=1e-6)


def test_embedding():
    """Looked up times sqrt(D) on the way in, the plain table on the way out; logits are float32 in bfloat16 too."""
    net, params = built(lambda rngs: modules.Embedding(11, D, rngs=rngs))
    table = np.asarray(params["table"], np.float64)
    tokens = int32([[3, 0], [10, 3]])
    np.testing.assert_allclose(net.apply(params, tokens), np.sqrt(D) * table[tokens], rtol=1e-6)
    assert net.apply(params, tokens, dtype=jnp.dtype("bfloat16")).dtype == jnp.bfloat16
    x = normal(2, 3, D)
    np.testing.assert_allclose(net.call(modules.Embedding.logits, params, x), x @ table.T, atol=1e-5)
    assert net.call(modules.Embedding.logits, params, x.astype(jnp.bfloat16)).dtype == jnp.float32
    fresh = built(lambda rngs: modules.Embedding(400, 64, rngs=rngs))[0].init(jax.random.key(0))["table"]
    np.testing.assert_allclose(np.std(fresh), 1 / 8, rtol=0.02)  # so that embedded tokens have unit variance


def test_learned_positions():
    net, params = built(lambda rngs: modules.LearnedPositions(4, D, rngs=rngs))
    np.testing.assert_array_equal(net.apply(params, int32([[0, 3]]), length=4), params["table"][jnp.array([[0, 3]])])
    with pytest.raises(ValueError, match="a sequence of length 5 has no learned position beyond 4"):
        net.apply(params, int32([[0]]), length=5)


def test_initializers():
    """Uniform and normal by their quantiles, for many keys and lengths; never infinite; keys and shapes matter."""
    draws = np.asarray(jax.vmap(lambda key: uniform(key, (64, 64)))(jax.random.split(jax.random.key(0), 16))).reshape(
        -1
    )
    assert abs(draws).max() < 1
    quantiles = np.linspace(0.01, 0.99, 99)
    np.testing.assert_allclose(np.quantile(draws, quantiles), 2 * quantiles - 1, atol=0.01)
    bell = np.asarray(bell_curve(jax.random.key(1), (256, 256), deviation=0.5)).reshape(-1)
    expected = [0.5 * NormalDist().inv_cdf(q) for q in quantiles]
    np.testing.assert_allclose(np.quantile(bell, quantiles), expected, atol=0.02)
    ends = jnp.asarray([0, 2**32 - 1], jnp.uint32)
    assert np.isfinite(jax.lax.erf_inv(((ends >> 9).astype(jnp.float32) + 0.5) * 2**-22 - 1)).all()
    columns = np.asarray(uniform(jax.random.key(2), (2048, 2)))
    assert abs(np.corrcoef(columns.T)[0, 1]) < 4 / np.sqrt(2048)
