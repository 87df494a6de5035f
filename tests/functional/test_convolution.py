"""Convolution and pooling follow their formulas, gradients those of the formulas, and padding changes nothing."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional
from tests.modules.small import normal, quick
from tests.selection import first


def formula(x, kernel, bias, dilation, causal):
    result, taps = np.zeros((*x.shape[:2], kernel.shape[2])), len(kernel)
    offset = (taps - 1) * dilation if causal else (taps - 1) * dilation // 2
    for t in range(x.shape[1]):
        for k in range(taps):
            if 0 <= (s := t + k * dilation - offset) < x.shape[1]:
                result[:, t] += x[:, s] @ kernel[k]
    return result + bias


SIZES = first([(1, 1, 4), (3, 1, 7), (4, 1, 7), (2, 3, 7), (2, 9, 5)], (3, 1, 7), (4, 1, 7), (2, 9, 5))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_formula_and_gradient(sizes, causal):
    """Even kernels have a longer side; the last case reaches beyond both ends, where there is nothing."""
    taps, dilation, length = sizes
    x, kernel, bias, upstream = normal(2, length, 4), normal(taps, 4, 3, seed=1), normal(3), normal(2, length, 3)
    run = lambda x, kernel, bias: functional.convolution(x, kernel, bias, dilation=dilation, causal=causal)
    output, slopes = quick(lambda *args: (run(*args), jax.vjp(run, *args)[1](upstream)))(x, kernel, bias)
    arrays = [np.asarray(a, np.float64) for a in (x, kernel, bias)]
    np.testing.assert_allclose(output, formula(*arrays, dilation, causal), atol=1e-5)
    for slope, i in zip(slopes, range(3), strict=True):
        move = np.random.default_rng(i).standard_normal(arrays[i].shape)
        nudged = [[a + sign * 1e-4 * move if j == i else a for j, a in enumerate(arrays)] for sign in (1, -1)]
        high, low = ((formula(*a, dilation, causal) * np.asarray(upstream)).sum() for a in nudged)
        assert float((slope * move.astype(np.float32)).sum()) == pytest.approx((high - low) / 2e-4, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("content", [np.nan, *(pytest.param(x, marks=pytest.mark.full) for x in (1e30, np.inf))])
def test_padding_of_any_content_changes_no_bit(content, causal):
    kernel, bias, upstream = normal(3, 4, 4, seed=1), normal(4), normal(2, 7, 4, seed=2)
    valid = jnp.asarray([[1, 1, 1, 1, 0, 0, 0], [0, 1, 0, 1, 1, 1, 0]], bool)
    run = lambda x, kernel, bias: functional.convolution(x, kernel, bias, dilation=2, causal=causal, valid=valid)
    both = quick(lambda *args: (run(*args), jax.vjp(run, *args)[1](upstream)))
    zeros, dirty = (jnp.where(valid[..., None], normal(2, 7, 4), x) for x in (0.0, content))
    chex.assert_trees_all_equal(both(zeros, kernel, bias), both(dirty, kernel, bias))
    output, (slope, _, d_bias) = both(dirty, kernel, bias)
    assert not np.asarray(output)[~np.asarray(valid)].any()
    assert not np.asarray(slope)[~np.asarray(valid)].any()
    np.testing.assert_allclose(d_bias, jnp.where(valid[..., None], upstream, 0).sum((0, 1)), rtol=1e-5)
    expected = functional.convolution(zeros, kernel, bias, dilation=2, causal=causal)
    np.testing.assert_allclose(output, jnp.where(valid[..., None], expected, 0), atol=1e-6)


def image_formula(x, kernel, bias, stride, dilation, padding):
    """The sum over a window, pixel by pixel, of an image with zeros around it."""
    reaches = [(size - 1) * dilation for size in kernel.shape[:2]]
    if padding == "same":
        x = np.pad(x, ((0, 0), *[(reach // 2, reach - reach // 2) for reach in reaches], (0, 0)))
    sizes = [-(-(n - reach) // stride) for n, reach in zip(x.shape[1:3], reaches, strict=True)]
    result = np.zeros((len(x), *sizes, kernel.shape[3])) + bias
    for u, v in np.ndindex(*sizes):
        for k, m in np.ndindex(*kernel.shape[:2]):
            result[:, u, v] += x[:, u * stride + k * dilation, v * stride + m * dilation] @ kernel[k, m]
    return result


@pytest.mark.parametrize(
    ("sizes", "stride", "dilation", "padding"),
    [((3, 3), 1, 1, "same"), ((3, 2), 2, 1, "same"), ((1, 1), 2, 1, "valid"), ((2, 3), 2, 2, "valid")],
)
def test_images(sizes, stride, dilation, padding):
    x, kernel, bias = normal(2, 7, 6, 4), normal(*sizes, 4, 3, seed=1), normal(3)
    options = {"stride": stride, "dilation": dilation, "padding": padding}
    run = quick(lambda x, kernel, bias: functional.convolution(x, kernel, bias, **options))
    arrays = [np.asarray(a, np.float64) for a in (x, kernel, bias)]
    np.testing.assert_allclose(run(x, kernel, bias), image_formula(*arrays, **options), atol=1e-5)


def test_a_stride_selects_outputs():
    x, kernel, valid = normal(2, 7, 4), normal(3, 4, 4, seed=1), jnp.asarray(np.arange(7) < np.array([[7], [4]]))
    every = functional.convolution(x, kernel, valid=valid)
    np.testing.assert_allclose(functional.convolution(x, kernel, stride=3, valid=valid), every[:, ::3], atol=1e-6)


def test_a_shifted_image_gives_a_shifted_result():
    """Away from the borders, bit for bit; with a stride of 2, for even shifts only."""
    image, kernel = np.zeros((1, 16, 16, 3), np.float32), normal(3, 3, 3, 2)
    image[:, 5:9, 5:9] = normal(1, 4, 4, 3)
    moved = np.roll(image, (2, 4), (1, 2))
    for stride, equal in ((1, True), (2, True), (4, False)):
        run = quick(lambda x, stride=stride: functional.convolution(x, kernel, stride=stride))
        expected = np.roll(run(image), (2 // stride, 4 // stride), (1, 2))
        assert np.array_equal(run(moved), expected) == equal


def test_parameters_take_the_dtype_of_the_input():
    output = functional.convolution(normal(1, 5, 4).astype(jnp.bfloat16), normal(3, 4, 2), normal(2))
    assert output.dtype == jnp.bfloat16


@pytest.mark.parametrize(("taps", "dilations", "expected"), [(3, [], 1), (3, [1] * 5, 11), (2, [1, 2, 4], 8)])
def test_receptive_field(taps, dilations, expected):
    assert functional.receptive_field(taps, dilations) == expected


POOLS = {functional.max_pool: np.max, functional.average_pool: np.mean}


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(
    ("shape", "size", "stride"), [((2, 7, 3), 2, None), ((2, 7, 6, 3), 3, 2), ((1, 4, 4, 2), 4, 1)]
)
def test_windows(pool, shape, size, stride):
    x, dims = normal(*shape), len(shape) - 2
    found = quick(lambda x: pool(x, size, stride=stride))(x)
    step = stride or size
    assert found.shape[1:-1] == tuple((n - size) // step + 1 for n in shape[1:-1])
    for place in np.ndindex(*found.shape[1:-1]):
        window = np.asarray(x)[(slice(None), *(slice(p * step, p * step + size) for p in place))]
        expected = POOLS[pool](window, tuple(range(1, dims + 1)))
        np.testing.assert_allclose(found[(slice(None), *place)], expected, atol=1e-6)


def test_gradients_reach_the_maximum_and_every_part_of_a_mean():
    x = jnp.array([1.0, 3.0, 2.0, 5.0]).reshape(1, 4, 1)
    slope = lambda pool: quick(jax.grad(lambda x: pool(x, 2).sum()))(x).ravel().tolist()
    assert slope(functional.max_pool) == [0, 1, 0, 1]
    assert slope(functional.average_pool) == [0.5] * 4


def test_the_sum_of_a_mean_is_float32():
    x = jnp.ones((1, 4096, 1), jnp.bfloat16)
    found = functional.average_pool(x, 4096)
    assert (found.dtype, float(found[0, 0, 0])) == (jnp.bfloat16, 1)
    assert functional.max_pool(x, 2).dtype == jnp.bfloat16
