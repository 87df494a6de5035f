"""The transforms that settings ask for, and the sums of scored texts."""

import jax.numpy as jnp
import numpy as np

from jaxformer import decoding
from jaxformer.tasks.config import GenerationConfig
from jaxformer.tasks.search import Scored, sampling_transforms


def test_settings_are_transforms_in_the_order_of_hugging_face():
    """Temperature, then the filters; nothing for the values that change nothing."""
    assert sampling_transforms(GenerationConfig()) == []
    made = sampling_transforms(GenerationConfig(min_p=0.1, top_p=0.9, top_k=3, temperature=0.5))
    assert made == [decoding.temperature(0.5), decoding.top_k(3), decoding.top_p(0.9), decoding.min_p(0.1)]
    history = decoding.History(jnp.zeros((1, 1, 1), jnp.int32), jnp.zeros((1, 1), jnp.int32), jnp.arange(1))
    probs = np.exp(decoding.chain(*made)(jnp.log(jnp.array([[[0.4, 0.3, 0.2, 0.1]]])), history))
    np.testing.assert_allclose(probs, [[[16 / 29, 9 / 29, 4 / 29, 0]]], rtol=1e-5)


def test_a_scored_text():
    scored = Scored(("a", "b"), (-1.0, -2.0))
    assert (scored.log_prob, scored.mean) == (-3.0, -1.5)
    assert Scored((), ()).mean == 0.0
