"""Cross entropy against the direct formula, and what uncounted labels must not do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional

DRAW = np.random.default_rng(2)
LOGITS = DRAW.standard_normal((2, 5, 7)) * 3
LABELS = DRAW.integers(0, 7, (2, 5))
COUNTED = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], bool)
SETTINGS = pytest.mark.parametrize(
    ("smoothing", "z_loss", "counted"),
    [(0.0, 0.0, None), (0.1, 0.0, None), (0.3, 1e-2, COUNTED), (0.0, 0.5, COUNTED), (0.1, 0.0, COUNTED)],
)


def direct(logits, labels, counted, smoothing, z_loss):
    """The sum of -target . log softmax + z log^2 Z, and its gradient, in float64 from the definition."""
    shifted = logits - logits.max(-1, keepdims=True)
    log_z = np.log(np.exp(shifted).sum(-1)) + logits.max(-1)
    probability = np.exp(logits - log_z[..., None])
    target = (1 - smoothing) * np.eye(logits.shape[-1])[labels] + smoothing / logits.shape[-1]
    loss = -(target * (logits - log_z[..., None])).sum(-1) + z_loss * log_z**2
    slope = probability - target + 2 * z_loss * log_z[..., None] * probability
    counted = np.ones(labels.shape, bool) if counted is None else counted
    return loss[counted].sum(), slope * counted[..., None], counted.sum()


def ours(logits, counted, **options):
    where = None if counted is None else jnp.asarray(counted)
    call = lambda x: functional.cross_entropy(x, jnp.asarray(LABELS, jnp.int32), where=where, **options)
    (total, count), slope = jax.jit(jax.value_and_grad(call, has_aux=True))(logits)
    return total, count, slope


@SETTINGS
def test_value_and_gradient(smoothing, z_loss, counted):
    total, count, slope = ours(jnp.asarray(LOGITS, jnp.float32), counted, smoothing=smoothing, z_loss=z_loss)
    expected, expected_slope, expected_count = direct(LOGITS, LABELS, counted, smoothing, z_loss)
    np.testing.assert_allclose(total, expected, rtol=1e-6)
    np.testing.assert_allclose(slope, expected_slope, atol=2e-6)
    assert float(count) == expected_count
    assert total.dtype == count.dtype == jnp.float32


@SETTINGS
@pytest.mark.parametrize("fill", [np.nan, np.inf, -np.inf])
def test_uncounted_labels_add_nothing(smoothing, z_loss, counted, fill):
    """Whatever the logits of padding hold, value and gradient are those of the clean ones, to the bit."""
    counted = COUNTED if counted is None else counted
    clean = jnp.asarray(LOGITS, jnp.float32)
    dirty = jnp.where(jnp.asarray(counted)[..., None], clean, fill)
    for a, b in zip(*(ours(x, counted, smoothing=smoothing, z_loss=z_loss) for x in (clean, dirty)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_nothing_counted():
    total, count, slope = ours(jnp.asarray(LOGITS, jnp.float32), np.zeros_like(COUNTED), smoothing=0.1)
    assert (float(total), float(count)) == (0, 0)
    assert not np.asarray(slope).any()


def test_large_logits():
    logits = jnp.zeros((1, 3)).at[0, 1].set(1e4)
    total, _ = functional.cross_entropy(logits, jnp.array([0]))
    assert float(total) == 1e4
    assert float(functional.cross_entropy(logits, jnp.array([1]))[0]) == 0


def test_a_forbidden_token_costs_nothing_until_it_is_the_label():
    """Logits of minus infinity, as constrained decoding writes them: finite loss, finite gradient."""
    logits = jnp.array([[1.0, -jnp.inf, 2.0]])
    loss = lambda x: functional.cross_entropy(x, jnp.array([0]))[0]
    np.testing.assert_allclose(loss(logits), np.log(1 + np.e), rtol=1e-6)
    assert np.isfinite(jax.grad(loss)(logits)).all()


def test_bfloat16_logits_are_summed_in_float32():
    logits = jnp.asarray(LOGITS, jnp.bfloat16)
    total, _, slope = ours(logits, None)
    expected, _, _ = direct(np.asarray(logits, np.float64), LABELS, None, 0.0, 0.0)
    np.testing.assert_allclose(total, expected, rtol=1e-6)
    assert slope.dtype == jnp.bfloat16


def test_smoothed_loss_is_smallest_at_the_smoothed_distribution():
    """Not at certainty: the gradient vanishes where softmax equals the target distribution."""
    target = np.full(4, 0.2 / 4) + 0.8 * np.eye(4)[2]
    slope = jax.grad(lambda x: functional.cross_entropy(x[None], jnp.array([2]), smoothing=0.2)[0])
    np.testing.assert_allclose(slope(jnp.log(jnp.asarray(target, jnp.float32))), 0, atol=1e-7)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_refuses_smoothing_outside_its_range(smoothing):
    with pytest.raises(ValueError, match=rf"smoothing must be in \[0, 1\), got {smoothing}"):
        functional.cross_entropy(jnp.zeros((1, 3)), jnp.array([0]), smoothing=smoothing)
