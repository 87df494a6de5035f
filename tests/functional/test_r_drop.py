"""The loss of two passes agrees with the paper's formula, with all logits and in chunks; padding is inert."""

import inspect

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional
from tests.modules.small import quick

DRAW = np.random.default_rng(3)
X = jnp.asarray(DRAW.standard_normal((4, 5, 3)), jnp.float32)  # two sentences, two passes each
TABLE = jnp.asarray(DRAW.standard_normal((7, 3)), jnp.float32)
LABELS = np.repeat(DRAW.integers(0, 7, (2, 5)), 2, axis=0)
WHERE = np.repeat(np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool), 2, axis=0)
WEIGHT, SMOOTHING = 5.0, 0.1


def direct(x, table):
    """Half of -log p - log q + alpha / 2 (KL(p|q) + KL(q|p)), summed over the counted labels, one by one."""
    total = 0.0
    for sentence in range(2):
        for t in range(5):
            if not WHERE[2 * sentence, t]:
                continue
            p, q = (jax.nn.softmax(table @ x[2 * sentence + i, t]) for i in range(2))
            target = (1 - SMOOTHING) * jnp.eye(7)[LABELS[2 * sentence, t]] + SMOOTHING / 7
            likelihood = -(target * jnp.log(p)).sum() - (target * jnp.log(q)).sum()
            divergence = (p * jnp.log(p / q)).sum() + (q * jnp.log(q / p)).sum()
            total += 0.5 * (likelihood + WEIGHT / 2 * divergence)
    return total


@pytest.fixture(scope="module")
def expected():
    return quick(jax.value_and_grad(direct, (0, 1)))(X, TABLE)


def all_logits(x, table):
    logits = (x @ table.T).reshape(2, 2, 5, 7)
    labels, where = (jnp.asarray(a)[::2] for a in (LABELS, WHERE))
    options = {"weight": WEIGHT, "smoothing": SMOOTHING, "where": where}
    return functional.r_drop(logits[:, 0], logits[:, 1], labels, **options)


def in_chunks(x, table, chunk=4, where=WHERE):
    loss, where = functional.RDrop(WEIGHT, SMOOTHING), None if where is None else jnp.asarray(where)
    return functional.linear_loss(x, table, jnp.asarray(LABELS), loss, where=where, chunk=chunk)


@pytest.mark.parametrize(
    "loss",
    [all_logits, in_chunks, pytest.param(lambda x, table: in_chunks(x, table, chunk=None), marks=pytest.mark.full)],
)
def test_value_and_gradient(loss, expected):
    (total, count), slopes = quick(jax.value_and_grad(loss, (0, 1), has_aux=True))(X, TABLE)
    np.testing.assert_allclose(total, expected[0], rtol=1e-5)
    chex.assert_trees_all_close(slopes, expected[1], rtol=1e-4, atol=1e-5)
    assert float(count) == 8  # the labels of one pass
    assert total.dtype == count.dtype == jnp.float32


def test_without_a_gradient(expected):
    """Another program."""
    np.testing.assert_allclose(in_chunks(X, TABLE)[0], expected[0], rtol=1e-5)


def test_equal_passes_have_the_cross_entropy():
    x = functional.duplicate_rows(X[:2])
    given = jnp.asarray(LABELS[::2]), functional.CrossEntropy(SMOOTHING)
    plain, count = functional.linear_loss(x[::2], TABLE, *given, where=jnp.asarray(WHERE[::2]))
    total, same = in_chunks(x, TABLE)
    np.testing.assert_allclose(total, plain, rtol=1e-6)
    assert float(count) == float(same)


@pytest.mark.parametrize("fill", [np.nan, pytest.param(np.inf, marks=pytest.mark.full)])
def test_padding_is_inert(fill):
    dirty = jnp.where(jnp.asarray(WHERE)[..., None], X, fill)
    both = [quick(jax.value_and_grad(lambda x: in_chunks(x, TABLE)[0]))(x) for x in (X, dirty)]
    chex.assert_trees_all_equal(*both)
    first, second = X[:, 0], jnp.where(jnp.array([True, False, True, True])[:, None], X[:, 1], fill)
    divergence, count = functional.symmetric_divergence(first, second, where=jnp.array([True, False, True, True]))
    assert np.isfinite(divergence)
    assert float(count) == 3


def test_the_divergence_is_symmetric_and_zero_for_equal_distributions():
    """A shift of all logits changes no distribution."""
    first, second = X[:2], X[2:]
    one, count = functional.symmetric_divergence(first, second)
    other, _ = functional.symmetric_divergence(second + 3, first)
    np.testing.assert_allclose(one, other, rtol=1e-5)
    assert float(one) > 0.1
    assert float(count) == 10
    np.testing.assert_allclose(functional.symmetric_divergence(first, first + 2)[0], 0, atol=1e-6)


def test_rows_come_twice():
    np.testing.assert_array_equal(functional.duplicate_rows(X), np.repeat(X, 2, axis=0))


def test_refusals():
    unchecked = inspect.unwrap(functional.linear_loss)  # without the type checks of the tests
    for x, labels in ((X[:3], LABELS[:3]), (X, LABELS[:2]), (X[..., :2], LABELS)):
        with pytest.raises(ValueError, match=r"shapes must be x \[B, T, D\], .* with B a multiple of 2, got "):
            unchecked(x, TABLE, jnp.asarray(labels), functional.RDrop(1.0))
    with pytest.raises(ValueError, match="smoothing must be in"):
        functional.RDrop(1.0, 1.0)


@pytest.mark.parametrize("shape", [(2, 0), (0, 5)])
def test_no_labels_have_no_loss(shape):
    labels = functional.duplicate_rows(jnp.zeros((shape[0] // 2, shape[1]), jnp.int32))
    total, count = functional.linear_loss(jnp.ones((*shape, 3)), TABLE, labels, functional.RDrop(WEIGHT))
    assert (float(total), float(count)) == (0.0, 0.0)


def test_a_class_that_neither_pass_can_choose_adds_nothing():
    logits = jnp.array([[0.0, 1.0, -jnp.inf]])
    loss = lambda x: functional.symmetric_divergence(x, logits)[0]
    value, slope = jax.value_and_grad(loss)(logits + jnp.array([[0.0, 1.0, 0.0]]))
    expected, _ = functional.symmetric_divergence(logits[:, :2] + jnp.array([[0.0, 1.0]]), logits[:, :2])
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert np.isfinite(slope).all()


def test_labels_outside_of_the_vocabulary_are_refused():
    x, labels = jnp.ones((2, 3, 2)), jnp.full((2, 3), -100)
    with pytest.raises(ValueError, match=r"labels must be in \[0, V = 4\) where they count, got -100"):
        functional.linear_loss(x, jnp.zeros((4, 2)), labels, functional.RDrop(1.0))


def test_shapes_that_would_broadcast_are_rejected():
    logits = jnp.zeros((4, 5, 7))
    with pytest.raises(ValueError, match=r"one shape, got \[4, 5, 7\] and \[1, 5, 7\]"):
        inspect.unwrap(functional.symmetric_divergence)(logits, logits[:1])
    with pytest.raises(ValueError, match=r"where must be Bool \[4, 5\], got bool \[4, 1\]"):
        inspect.unwrap(functional.symmetric_divergence)(logits, logits, where=jnp.ones((4, 1), bool))
    with pytest.raises(ValueError, match=r"where must be Bool \[4, 5\], got bool \[4, 1\]"):
        inspect.unwrap(functional.linear_loss)(
            X, TABLE, jnp.asarray(LABELS), functional.RDrop(1.0), where=jnp.ones((4, 1), bool)
        )
