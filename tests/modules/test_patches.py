"""Images as patches."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import modules
from tests.modules.small import built, normal

D = 8


def embeddings(**options):
    return built(lambda rngs: modules.PatchEmbeddings((4, 6), 2, D, rngs=rngs, **options))


def patches(images, size):
    """The patches of images as rows, by a reshape: row by row, and pixels in the same order."""
    batch, height, width, channels = images.shape
    grid = np.asarray(images).reshape(batch, height // size, size, width // size, size, channels)
    return grid.swapaxes(2, 3).reshape(batch, -1, size * size * channels)


def test_each_patch_is_mapped_by_itself():
    """The class vector first, then the patches row by row, each with its position: a reshape and a linear map."""
    net, params = embeddings()
    images = normal(2, 4, 6, 3)
    found = np.asarray(net.apply(params, images))
    assert found.shape == (2, 7, D)
    positions = np.asarray(params["positions"]["table"])
    np.testing.assert_allclose(found[1, 0], params["class_vector"] + positions[0], atol=1e-6)
    kernel, bias = (np.asarray(params["projection"][name]) for name in ("kernel", "bias"))
    assert kernel.shape == (2, 2, 3, D)
    np.testing.assert_allclose(
        found[:, 1:], patches(images, 2) @ kernel.reshape(-1, D) + bias + positions[1:], atol=1e-5
    )


def test_without_a_class_vector():
    """The same patches, with a table of their own."""
    net, params = embeddings(class_vector=False)
    assert sorted(params) == ["positions", "projection"]
    assert params["positions"]["table"].shape == (6, D)
    kernel, bias = (np.asarray(params["projection"][name]) for name in ("kernel", "bias"))
    expected = patches(normal(2, 4, 6, 3), 2) @ kernel.reshape(-1, D) + bias + np.asarray(params["positions"]["table"])
    np.testing.assert_allclose(net.apply(params, normal(2, 4, 6, 3)), expected, atol=1e-5)


def test_sizes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"image_size must be a multiple of patch_size 4, got \(4, 6\)"):
        built(lambda rngs: modules.PatchEmbeddings((4, 6), 4, D, rngs=rngs))
    net, params = embeddings()
    with pytest.raises(ValueError, match=r"images must be .*\(4, 6, 3\).*, got \(1, 6, 4, 3\)"):
        net.net.bind(params)(jnp.zeros((1, 6, 4, 3)))
