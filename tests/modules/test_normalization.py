"""Normalization layers: parameters that begin at one and zero, and the functions they call."""

import jax
import numpy as np

from jaxformer import functional, modules
from tests.modules.small import built, normal

D = 8


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
