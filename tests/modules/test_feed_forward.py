"""The feed-forward layers: their parameters, and the functions they call."""

import jax
import numpy as np
import pytest

from jaxformer import functional, modules
from tests.modules.small import built, count, normal

D = 8


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


def test_gated_feed_forward():
    net, params = built(lambda rngs: modules.GatedFeedForward(D, rngs=rngs))
    kernels = [params[name]["kernel"] for name in ("gate", "up", "down")]
    assert kernels[0].shape == (D, 8 * D // 3)
    x = normal(2, 5, D)
    np.testing.assert_allclose(net.apply(params, x), functional.gated_feed_forward(x, *kernels), atol=1e-5)
