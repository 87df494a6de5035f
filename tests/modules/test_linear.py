"""The linear layer: its parameters, and the function it calls."""

import jax
import numpy as np

from jaxformer import modules
from tests.modules.small import built, normal

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
