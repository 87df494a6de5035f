"""CHECKLIST section N: normalization and residuals."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional
from tests.modules.small import normal

TOKEN = jnp.array([1.2, 0.6, -0.2, 0.1])
ONES = jnp.ones(4)


def test_n1_z1_two_published_forms():
    """gamma (x - mu) / (sigma + eps) + beta in 000 and 001; / sqrt(var + eps) in 002, 004. The variance is biased."""
    x, gamma, beta = np.asarray(TOKEN, np.float64), np.array([1.0, 2, 3, 4]), np.array([0.1, 0.2, 0.3, 0.4])
    for form, bottom in (("deviation", x.std() + 0.1), ("variance", np.sqrt(x.var() + 0.1))):
        result = functional.layer_norm(TOKEN, jnp.array(gamma), jnp.array(beta), epsilon=0.1, form=form)
        np.testing.assert_allclose(result, gamma * (x - x.mean()) / bottom + beta, atol=1e-6)


def test_n2_worked_layer_norm():
    """mu .425, squares .600625 .030625 .390625 .105625, sum 1.1275, variance .281875, deviation .530919.

    The document prints .601 .031 .391 .106 and sums the rounded terms to 1.129. The unbiased deviation (.613) would
    give another result.
    """
    x = np.array([1.2, 0.6, -0.2, 0.1])
    np.testing.assert_allclose((x - x.mean()) ** 2, [0.600625, 0.030625, 0.390625, 0.105625])
    assert x.var() == pytest.approx(0.281875)
    assert x.std() == pytest.approx(0.530919, abs=1e-6)
    result = functional.layer_norm(TOKEN, ONES, epsilon=0.0)
    np.testing.assert_allclose(result, [1.459733, 0.329617, -1.177204, -0.612146], atol=2e-6)
    np.testing.assert_allclose(result, [1.46, 0.33, -1.18, -0.61], atol=5e-3)


def test_n3_scale():
    """gamma = [2, 1, .5, 1]."""
    result = functional.layer_norm(TOKEN, jnp.array([2.0, 1.0, 0.5, 1.0]), epsilon=0.0)
    np.testing.assert_allclose(result, [2.9195, 0.3296, -0.5886, -0.6121], atol=5e-5)


def test_n4_where_the_forms_differ():
    """x = 1e-3 [1, -1, 1, -1], eps 1e-5: +-.9901 against +-.3015. A constant vector gives beta, not NaN."""
    x = 1e-3 * jnp.array([1.0, -1.0, 1.0, -1.0])
    for form, expected in (("deviation", 0.9901), ("variance", 0.3015)):
        result = functional.layer_norm(x, ONES, epsilon=1e-5, form=form)
        np.testing.assert_allclose(result, expected * np.array([1, -1, 1, -1]), atol=5e-5)
        beta = jnp.arange(4.0)
        constant = functional.layer_norm(jnp.full(4, 3.0), ONES, beta, epsilon=1e-5, form=form)
        np.testing.assert_array_equal(constant, beta)


def test_n5_mean_zero_deviation_one():
    """x = randn(2, 4, 8) * 10 + 5. Only the epsilons (1e-6, 1e-5) separate the document's two layers. It says that
    their parameters were drawn at random, but both start as ones and zeros."""
    x = normal(2, 4, 8) * 10 + 5
    result = functional.layer_norm(x, jnp.ones(8), epsilon=1e-6)
    np.testing.assert_allclose(result.mean(-1), 0, atol=1e-6)
    np.testing.assert_allclose(result.std(-1), 1, atol=1e-5)
    np.testing.assert_allclose(result, functional.layer_norm(x, jnp.ones(8), epsilon=1e-5), atol=1e-5)


def test_n6_layer_norm_depends_on_one_token():
    """Layer norm ignores batch, length and padding; statistics over the batch would not."""
    x = normal(3, 4, 8)
    result = functional.layer_norm(x, jnp.ones(8))
    np.testing.assert_allclose(functional.layer_norm(x[1:2, :2], jnp.ones(8)), result[1:2, :2], atol=1e-6)
    over_batch = (x - x.mean(0, keepdims=True)) / x.std(0, keepdims=True)
    alone = (x[:2] - x[:2].mean(0, keepdims=True)) / x[:2].std(0, keepdims=True)
    assert not np.allclose(over_batch[:2], alone, atol=0.1)


def test_n7_residual_jacobian():
    """The Jacobian is I + df/dx, and f = 0 is the identity."""
    f = lambda x: jnp.tanh(2 * x)
    x = normal(4)
    expected = np.eye(4) + np.diag(2 / np.cosh(2 * np.asarray(x)) ** 2)
    np.testing.assert_allclose(jax.jacobian(lambda x: functional.residual(x, f))(x), expected, atol=1e-5)
    np.testing.assert_array_equal(functional.residual(x, jnp.zeros_like), x)


def test_n8_residual_sum():
    x = jnp.array([[1.0, 0.5, -0.5, 0.2], [0.8, -0.3, 0.6, 0.1], [-0.2, 0.7, 0.3, -0.4]])
    o = jnp.array([[0.2, 0.1, 0.3, -0.1], [0.1, 0.2, -0.2, 0.1], [0.3, -0.1, 0.1, 0.2]])
    expected = [[1.2, 0.6, -0.2, 0.1], [0.9, -0.1, 0.4, 0.2], [0.1, 0.6, 0.4, -0.2]]
    np.testing.assert_allclose(functional.residual(x, lambda _: o), expected, atol=1e-6)


def test_n9_magnitudes():
    """A sublayer of .01 x gives .01 |x| alone and 1.01 |x| with the residual, 1 % off the "match" of the document."""
    x = normal(6)
    sublayer = lambda x: 0.01 * x
    norm = jnp.linalg.norm
    assert float(norm(sublayer(x)) / norm(x)) == pytest.approx(0.01, rel=1e-5)
    assert float(norm(functional.residual(x, sublayer)) / norm(x)) == pytest.approx(1.01, rel=1e-5)


def test_n10_products_of_slopes():
    """.5^10 = .000977, .5^20 = 9.54e-7, 1.5^10 = 57.665 (the document's 57 is truncated), 1.5^20 = 3325.26.

    So gradients through a plain stack of slopes .5 vanish; each residual adds 1 to the slope.
    """

    def slope(layer, depth):
        def stack(x):
            for _ in range(depth):
                x = layer(x)
            return x

        return float(jax.grad(stack)(1.0))

    half, more = (lambda x: 0.5 * x), (lambda x: 1.5 * x)
    assert slope(half, 10) == pytest.approx(0.000977, abs=5e-7)
    assert slope(half, 20) == pytest.approx(9.54e-7, rel=1e-3)
    assert slope(more, 10) == pytest.approx(57.665, abs=1e-3)
    assert slope(more, 20) == pytest.approx(3325.26, abs=1e-2)
    assert slope(lambda x: functional.residual(x, lambda y: 1e-3 * y), 20) == pytest.approx(1, abs=0.03)


def test_n10_deep_linear_stacks():
    """Gradients through 50 random layers of gain about 1/4 vanish in a plain stack, and survive with residuals."""

    def norm(arrange):
        def stack(x):
            for i in range(50):
                x = arrange(x, functools.partial(jnp.dot, b=normal(16, 16, seed=i) / 16))
            return x.sum()

        return float(jnp.linalg.norm(jax.grad(stack)(normal(16))))

    assert norm(lambda x, f: f(x)) < 1e-10
    assert 1 < norm(functional.residual) < 100


def test_n11_orders():
    """Post: norm(x + f(x)); pre: x + f(norm(x))."""
    f, norm = (lambda x: 3 * x), (lambda x: functional.layer_norm(x, ONES))
    np.testing.assert_allclose(functional.post_norm(TOKEN, f, norm), norm(4 * TOKEN), atol=1e-6)
    np.testing.assert_allclose(functional.pre_norm(TOKEN, f, norm), TOKEN + 3 * norm(TOKEN), atol=1e-6)


def test_n12_scale_drifts_without_normalization():
    """Fifty random residual layers: without norms the deviation explodes; pre-norm grows slowly, post-norm stays 1."""
    norm = lambda x: functional.layer_norm(x, jnp.ones(16))
    plain = pre = post = normal(4, 16)
    for i in range(50):
        f = functools.partial(jnp.dot, b=normal(16, 16, seed=i) / 4)
        plain = functional.residual(plain, f)
        pre, post = functional.pre_norm(pre, f, norm), functional.post_norm(post, f, norm)
    assert float(plain.std()) > 1e4
    assert 1 < float(pre.std()) < 20
    assert float(post.std()) == pytest.approx(1, abs=1e-3)
