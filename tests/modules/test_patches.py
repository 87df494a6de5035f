"""Images as patches."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import modules
from tests.modules.small import built, normal

D = 8


def embeddings(**options):
    return built(lambda rngs: modules.PatchEmbeddings((4, 6), 2, D, rngs=rngs, **options))


def test_each_patch_is_mapped_by_itself():
    """The class vector first, then the patches row by row, each with its position."""
    net, params = embeddings()
    images = normal(2, 4, 6, 3)
    found = np.asarray(net.apply(params, images))
    assert found.shape == (2, 7, D)
    positions = np.asarray(params["positions"]["table"])
    np.testing.assert_allclose(found[1, 0], params["class_vector"] + positions[0], atol=1e-6)
    patch = np.asarray(images)[1, 2:4, 4:6].transpose(2, 0, 1).reshape(-1)  # the last
    mapped = patch @ np.asarray(params["projection"]["kernel"]) + np.asarray(params["projection"]["bias"])
    np.testing.assert_allclose(found[1, 6], mapped + positions[6], atol=1e-5)


def test_sizes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"image_size must be a multiple of patch_size 4, got \(4, 6\)"):
        built(lambda rngs: modules.PatchEmbeddings((4, 6), 4, D, rngs=rngs))
    net, params = embeddings()
    with pytest.raises(ValueError, match=r"images must be .*\(4, 6, 3\).*, got \(1, 6, 4, 3\)"):
        net.net.bind(params)(jnp.zeros((1, 6, 4, 3)))
