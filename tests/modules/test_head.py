"""Logits, losses and log-probabilities of a head agree with the direct formula, for every kind of table and bias."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import decoding, functional, modules, sharding
from jaxformer.modules import head as implementation
from tests.modules.small import int32, normal, quick
from tests.selection import first

B, T, D, V = 2, 5, 4, 7
X, TABLE, BIAS = normal(B, T, D), normal(V, D, seed=1), normal(V, seed=2)
LABELS = int32([[3, 0, 6, 2, 1], [5, 5, 4, 0, -100]])
WHERE = LABELS >= 0
HEADS = {
    "tied": modules.Head(TABLE),
    "kernel": modules.Head(None, TABLE.T),
    "bias": modules.Head(TABLE, bias=BIAS),
    "kernel, bias, scale": modules.Head(None, TABLE.T, BIAS, 0.3),
    "scale": modules.Head(TABLE, scale=2.5),
}
SMOOTHED = functional.CrossEntropy(smoothing=0.1, z_loss=0.01)


def direct(x, head):
    """All logits, in the dtype of NumPy's `x`."""
    table = np.asarray(head.table) if head.kernel is None else np.asarray(head.kernel).T
    return np.asarray(x) * head.scale @ table.T + (0 if head.bias is None else np.asarray(head.bias))


def arrays(head):
    """What a gradient can be taken of."""
    return {name: x for name, x in dataclasses.asdict(head).items() if isinstance(x, jax.Array)}


@pytest.mark.parametrize("name", HEADS)
def test_logits_are_the_product_with_the_table(name):
    found = quick(HEADS[name].logits)(X)
    np.testing.assert_allclose(found, direct(X, HEADS[name]), rtol=1e-5, atol=1e-5)
    assert quick(HEADS[name].logits)(X.astype(jnp.bfloat16)).dtype == jnp.float32
    np.testing.assert_allclose(HEADS[name].logits(X[0, 0]), found[0, 0], atol=1e-6)  # of any leading dimensions


@pytest.mark.parametrize("name", first(HEADS, "tied", "kernel, bias, scale"))
def test_the_loss_is_that_of_the_logits(name):
    """Value, count, and the gradients of states, table, kernel and bias."""
    head = HEADS[name]

    def chunked(x, parts):
        return dataclasses.replace(head, **parts).loss(x, LABELS, SMOOTHED, where=WHERE)

    def whole(x, parts):
        logits = dataclasses.replace(head, **parts).logits(x)
        return functional.cross_entropy(logits, LABELS, where=WHERE, smoothing=0.1, z_loss=0.01)

    slopes = [jax.value_and_grad(loss, (0, 1), has_aux=True) for loss in (chunked, whole)]
    found, expected = quick(lambda *args: [slope(*args) for slope in slopes])(X, arrays(head))
    assert float(found[0][1]) == 9
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", HEADS)
def test_log_probs_are_those_of_the_logits(name):
    labels = jnp.where(WHERE, LABELS, 0)
    expected = np.take_along_axis(np.asarray(jax.nn.log_softmax(direct(X, HEADS[name]))), labels[..., None], 2)[..., 0]
    np.testing.assert_allclose(quick(HEADS[name].log_probs)(X, labels), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("average", ["log", "probability"])
def test_joint_log_probs_are_the_mean(average, monkeypatch):
    """Of heads of other widths and kinds; also in chunks of one position."""
    other = modules.Head(None, normal(3, V, seed=3))
    heads, states, labels = [HEADS["bias"], other], [X, normal(B, T, 3, seed=4)], jnp.where(WHERE, LABELS, 0)

    @quick
    def joint(states):
        each = [jax.nn.log_softmax(head.logits(x)) for head, x in zip(heads, states, strict=True)]
        return jax.nn.log_softmax(sum(each) / 2 if average == "log" else jnp.log(sum(map(jnp.exp, each)) / 2))

    expected = np.take_along_axis(np.asarray(joint(states)), labels[..., None], 2)[..., 0]
    combine = lambda logits: decoding.mean_log_probs(logits, average=average)
    for most in (1 << 20, 1):
        monkeypatch.setattr(implementation, "logits_per_chunk", lambda most=most: most)
        found = quick(lambda states: implementation.joint_log_probs(heads, states, labels, combine))(states)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_bias_has_float32_precision_in_bfloat16():
    """bfloat16 would round all of these to -10, in logits, losses and log-probabilities."""
    bias = jnp.where(jnp.arange(V) < 3, -9.97, -10.03)
    head, x, labels = modules.Head(TABLE, bias=bias), jnp.zeros((B, T, D), jnp.bfloat16), jnp.maximum(LABELS, 0)
    expected = np.asarray(jax.nn.log_softmax(bias))[labels]
    assert np.ptp(expected) > 0.05
    np.testing.assert_allclose(head.logits(x), np.broadcast_to(bias, (B, T, V)), rtol=1e-6)
    np.testing.assert_allclose(quick(head.log_probs)(x, labels), expected, atol=1e-4)
    loss = lambda bias: modules.Head(TABLE, bias=bias).loss(x, labels, functional.CrossEntropy())[0]
    value, slope = quick(jax.value_and_grad(loss))(bias)
    np.testing.assert_allclose(value, -expected.sum(), rtol=1e-5)
    counts = np.bincount(np.asarray(labels).ravel(), minlength=V)
    np.testing.assert_allclose(slope, B * T * np.exp(jax.nn.log_softmax(bias)) - counts, atol=2e-2)


def test_copies_of_a_table_are_one_table():
    """As `sharding.with_copies` gives them to a model."""
    copies, labels = sharding.table_copies(TABLE, rows=B, length=T, dtype=jnp.dtype("float32")), jnp.maximum(LABELS, 0)
    groups = jnp.broadcast_to(TABLE, (B, 1, *TABLE.shape))  # of a mesh; log-probabilities were over all their rows
    heads = (HEADS["bias"], *(dataclasses.replace(HEADS["bias"], table=table) for table in (copies, groups)))
    run = quick(
        lambda x: [(head.logits(x), head.loss(x, labels, SMOOTHED), head.log_probs(x, labels)) for head in heads]
    )
    expected, *found = run(X)
    for results in found:
        chex.assert_trees_all_close(results, expected, rtol=1e-5)


def test_logits_never_exist_at_once(monkeypatch):
    """A loss with its gradient, and log-probabilities, take a fraction of the memory of ``B T V`` logits."""
    for module in (implementation, sharding.tables):
        monkeypatch.setattr(module, "logits_per_chunk", lambda: 1 << 15)
    x, labels, rows = normal(2, 256, 4), int32(np.zeros((2, 256))), 2048
    head = modules.Head(normal(rows, 4), bias=normal(rows))
    loss = jax.value_and_grad(lambda x: head.loss(x, labels, SMOOTHED)[0])
    for program in (loss, lambda x: head.log_probs(x, labels)):
        memory = quick(program).lower(x).compile().memory_analysis()
        assert memory.temp_size_in_bytes < 4 * 2 * 256 * rows / 4
