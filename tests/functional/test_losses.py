"""Losses agree with their formulas, from all logits and in chunks, also a user's own; uncounted labels are inert."""

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, targets
from tests.selection import first

DRAW = np.random.default_rng(2)
LOGITS = DRAW.standard_normal((2, 5, 7)) * 3
LABELS = DRAW.integers(0, 7, (2, 5))
COUNTED = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], bool)
SETTINGS = pytest.mark.parametrize(
    ("smoothing", "z_loss", "counted"),
    [
        *((0.0, 0.0, None), (0.3, 1e-2, COUNTED)),
        *(pytest.param(*case, marks=pytest.mark.full) for case in ((0.1, 0.0, None), (0.0, 0.5, COUNTED))),
        pytest.param(0.1, 0.0, COUNTED, marks=pytest.mark.full),
    ],
)


def direct(logits, labels, counted, smoothing, z_loss):
    """Returns the sum of -target . log softmax + z log^2 Z and its gradient, in float64 from the definition."""
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
@pytest.mark.parametrize("fill", first([np.nan, np.inf, -np.inf], np.nan))
def test_uncounted_labels_add_nothing(smoothing, z_loss, counted, fill):
    """For any logits of padding, value and gradient equal those of clean ones to the bit."""
    counted = COUNTED if counted is None else counted
    clean = jnp.asarray(LOGITS, jnp.float32)
    dirty = jnp.where(jnp.asarray(counted)[..., None], clean, fill)
    chex.assert_trees_all_equal(*(ours(x, counted, smoothing=smoothing, z_loss=z_loss) for x in (clean, dirty)))


def test_nothing_counted():
    total, count, slope = ours(jnp.asarray(LOGITS, jnp.float32), np.zeros_like(COUNTED), smoothing=0.1)
    assert (float(total), float(count)) == (0, 0)
    assert not np.asarray(slope).any()


def test_large_logits():
    logits = jnp.zeros((1, 3)).at[0, 1].set(1e4)
    total, _ = functional.cross_entropy(logits, jnp.array([0]))
    assert float(total) == 1e4
    assert float(functional.cross_entropy(logits, jnp.array([1]))[0]) == 0


def test_a_forbidden_token_has_no_effect_unless_it_is_the_label():
    """Logits of minus infinity, as in constrained decoding, give a finite loss and gradient."""
    logits = jnp.array([[1.0, -jnp.inf, 2.0]])
    loss = lambda x: functional.cross_entropy(x, jnp.array([0]))[0]
    np.testing.assert_allclose(loss(logits), np.log(1 + np.e), rtol=1e-6)
    assert np.isfinite(jax.grad(loss)(logits)).all()


@pytest.mark.full
@pytest.mark.parametrize("vocab_size", [3, 2])
def test_linear_with_a_forbidden_token(vocab_size):
    """The loss computed with the gradient equals that without; a logit of minus infinity has gradient 0."""
    x, labels, where = jnp.ones((1, 1, 1)), jnp.array([[0]]), jnp.ones((1, 1, 1), bool)
    table = jnp.array([[1.0], [-jnp.inf], [2.0]])[:vocab_size]
    call = lambda x: functional.linear_loss(x, table, labels)[0]
    expected = float(np.log(1 + np.e)) if vocab_size == 3 else 0.0
    np.testing.assert_allclose([call(x), jax.value_and_grad(call)(x)[0]], expected, rtol=1e-6)
    logits = jnp.array([1.0, -jnp.inf, 2.0])[None, None, None]
    slope = functional.CrossEntropy().value_and_gradient(logits, labels[None], where, vocab_size)[1]
    one = jax.nn.sigmoid(1.0) if vocab_size == 3 else 0.0
    np.testing.assert_allclose(slope.ravel(), [-one, 0, one], rtol=1e-6)


def test_bfloat16_logits_are_summed_in_float32():
    logits = jnp.asarray(LOGITS, jnp.bfloat16)
    total, _, slope = ours(logits, None)
    expected, _, _ = direct(np.asarray(logits, np.float64), LABELS, None, 0.0, 0.0)
    np.testing.assert_allclose(total, expected, rtol=1e-6)
    assert slope.dtype == jnp.bfloat16


def test_smoothed_loss_is_smallest_at_the_smoothed_distribution():
    """The gradient is zero where the softmax equals the target distribution, not at certainty."""
    target = np.full(4, 0.2 / 4) + 0.8 * np.eye(4)[2]
    slope = jax.grad(lambda x: functional.cross_entropy(x[None], jnp.array([2]), smoothing=0.2)[0])
    np.testing.assert_allclose(slope(jnp.log(jnp.asarray(target, jnp.float32))), 0, atol=1e-7)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_refuses_smoothing_outside_its_range(smoothing):
    with pytest.raises(ValueError, match=rf"smoothing must be in \[0, 1\), got {smoothing}"):
        functional.cross_entropy(jnp.zeros((1, 3)), jnp.array([0]), smoothing=smoothing)
    with pytest.raises(ValueError, match=rf"smoothing must be in \[0, 1\), got {smoothing}"):
        functional.CrossEntropy(smoothing)


@pytest.mark.parametrize("dtype", first(["uint8", "int8", "int16", "uint16"], "uint8"))
def test_labels_of_few_bits(dtype):
    """More classes than the dtype has numbers: losses and gradients equal those of int32 labels bit for bit."""
    draw = np.random.default_rng(5)
    x, table = (jnp.asarray(draw.standard_normal(shape), jnp.float32) for shape in ((1, 4, 1), (70_000, 1)))
    labels = jnp.array([[0, 5, 100, 127]])

    def both(x, table, labels):
        total, _ = functional.cross_entropy(jnp.einsum("btd,vd->btv", x, table), labels)
        return total + functional.linear_loss(x, table, labels)[0]

    slopes = jax.jit(jax.value_and_grad(both, (0, 1)))
    narrow, wide = (slopes(x, table, labels.astype(d)) for d in (dtype, jnp.int32))
    chex.assert_trees_all_equal(narrow, wide)


WIDE = DRAW.standard_normal((2, 5, 3))
TABLE = DRAW.standard_normal((7, 3))


def ours_linear(x, counted, loss=None, **options):
    where = None if counted is None else jnp.asarray(counted)
    labels = jnp.asarray(LABELS, jnp.int32)
    call = lambda x, t: functional.linear_loss(x, t, labels, loss, where=where, **options)
    return jax.jit(jax.value_and_grad(call, (0, 1), has_aux=True))(x, jnp.asarray(TABLE, jnp.float32))


@SETTINGS
@pytest.mark.parametrize("chunk", first([1, 4, 7, None], 4), ids="chunk={}".format)
def test_linear_value_and_gradients(smoothing, z_loss, counted, chunk):
    """The chain rule in float64, for chunks of one position, of two and a rest, and of all."""
    logits = WIDE @ TABLE.T
    expected, slope, expected_count = direct(logits, LABELS, counted, smoothing, z_loss)
    loss = functional.CrossEntropy(smoothing, z_loss)
    (total, count), (d_x, d_table) = ours_linear(jnp.asarray(WIDE, jnp.float32), counted, loss, chunk=chunk)
    np.testing.assert_allclose(total, expected, rtol=1e-6)
    np.testing.assert_allclose(d_x, slope @ TABLE, atol=5e-6)
    np.testing.assert_allclose(d_table, np.einsum("btv,btd->vd", slope, WIDE), atol=1e-5)
    assert float(count) == expected_count
    where = None if counted is None else jnp.asarray(counted)
    call = functional.linear_loss  # without a gradient it is another program
    inputs = (jnp.asarray(WIDE, jnp.float32), jnp.asarray(TABLE, jnp.float32), jnp.asarray(LABELS, jnp.int32))
    np.testing.assert_allclose(call(*inputs, loss, where=where, chunk=chunk)[0], expected, rtol=1e-6)


def check_padding_of_the_vocabulary(loss, counted):
    """The added columns change neither the loss nor the gradients, and no array has V of them."""
    labels, where = jnp.asarray(LABELS, jnp.int32), None if counted is None else jnp.asarray(counted)
    call = lambda x, t: functional.linear_loss(x, t, labels, loss, where=where, chunk=4)[0]
    inputs = jnp.asarray(WIDE, jnp.float32), jnp.asarray(TABLE, jnp.float32)
    expected = call(*inputs), jax.value_and_grad(call, (0, 1))(*inputs)
    with targets.compiling_for([types.SimpleNamespace(platform="gpu", device_kind="")]):
        program = str(jax.make_jaxpr(jax.grad(call, (0, 1)))(*inputs))
        found = call(*inputs), jax.value_and_grad(call, (0, 1))(*inputs)
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-6)
    return "f32[1,1,4,16]" in program, "f32[1,1,4,7]" in program


@pytest.mark.full
@SETTINGS
def test_linear_pads_an_odd_vocabulary_on_an_accelerator(smoothing, z_loss, counted):
    assert check_padding_of_the_vocabulary(functional.CrossEntropy(smoothing, z_loss), counted) == (True, False)


@pytest.mark.full
def test_own_loss_does_not_see_the_columns_that_pad_a_vocabulary():
    assert check_padding_of_the_vocabulary(Focal(), COUNTED)[0]


@pytest.mark.full
def test_linear_gradient_of_a_scaled_loss():
    """The gradient is computed in the forward pass, and the upstream gradient still multiplies it."""
    inputs = jnp.asarray(WIDE, jnp.float32), jnp.asarray(TABLE, jnp.float32), jnp.asarray(LABELS, jnp.int32)
    loss = lambda x: functional.linear_loss(x, *inputs[1:])[0]
    np.testing.assert_allclose(jax.grad(lambda x: -3 * loss(x))(inputs[0]), -3 * jax.grad(loss)(inputs[0]), rtol=1e-6)


def test_linear_uncounted_labels_add_nothing():
    """NaN in padding reaches neither the loss nor the table."""
    clean = jnp.asarray(WIDE, jnp.float32)
    dirty = jnp.where(jnp.asarray(COUNTED)[..., None], clean, jnp.nan)
    chex.assert_trees_all_equal(*(ours_linear(x, COUNTED) for x in (clean, dirty)))


@dataclasses.dataclass(frozen=True)
class Focal(functional.LogitLoss):
    """A user's own loss, without a gradient of its own: -(1 - p)^gamma log p (Lin et al. 2017)."""

    gamma: float = 2.0

    def value(self, logits, labels, where):
        log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)[..., 0]
        return -jnp.where(where, (1 - jnp.exp(log_p)) ** self.gamma * log_p, 0.0).sum()


def direct_focal(logits, counted, gamma):
    """The focal loss and its gradient, (1-p)^(gamma-1) (gamma p log p - (1 - p)) (onehot - softmax), in float64."""
    probability = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    hit = np.eye(logits.shape[-1])[LABELS]
    p = (probability * hit).sum(-1)
    loss = -((1 - p) ** gamma) * np.log(p)
    slope = ((1 - p) ** (gamma - 1) * (gamma * p * np.log(p) - (1 - p)))[..., None] * (hit - probability)
    return loss[counted].sum(), slope * counted[..., None]


@pytest.mark.parametrize("chunk", first([1, 4, 7, None], 4), ids="chunk={}".format)
@pytest.mark.parametrize("gamma", first([2.0, 1.0], 2.0))
def test_own_loss_has_its_value_and_gradients(gamma, chunk):
    """With states that are NaN where labels do not count."""
    expected, slope = direct_focal(WIDE @ TABLE.T, COUNTED, gamma)
    x = jnp.where(jnp.asarray(COUNTED)[..., None], jnp.asarray(WIDE, jnp.float32), jnp.nan)
    (total, count), (d_x, d_table) = ours_linear(x, COUNTED, Focal(gamma), chunk=chunk)
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    np.testing.assert_allclose(d_x, slope @ TABLE, atol=5e-6)
    np.testing.assert_allclose(d_table, np.einsum("btv,btd->vd", slope, WIDE), atol=1e-5)
    assert float(count) == COUNTED.sum()
    inputs = x, jnp.asarray(TABLE, jnp.float32), jnp.asarray(LABELS, jnp.int32)
    alone, _ = functional.linear_loss(*inputs, Focal(gamma), where=jnp.asarray(COUNTED), chunk=chunk)
    np.testing.assert_allclose(alone, expected, rtol=1e-5)


def test_own_loss_in_bfloat16():
    """It receives float32 logits; gradients have the dtypes of the states and of the table."""
    (total, count), (d_x, d_table) = ours_linear(jnp.asarray(WIDE, jnp.bfloat16), COUNTED, Focal())
    expected, slope = direct_focal(WIDE @ TABLE.T, COUNTED, 2.0)
    np.testing.assert_allclose(total, expected, rtol=1e-2)
    np.testing.assert_allclose(d_table, np.einsum("btv,btd->vd", slope, WIDE), atol=0.1)
    assert (total.dtype, count.dtype, d_x.dtype, d_table.dtype) == (*(jnp.float32,) * 2, jnp.bfloat16, jnp.float32)


def test_a_loss_without_a_value_is_refused():
    class Empty(functional.LogitLoss):
        pass

    with pytest.raises(NotImplementedError, match="Empty does not define value"):
        ours_linear(jnp.asarray(WIDE, jnp.float32), None, Empty())


@dataclasses.dataclass(frozen=True)
class Visits(functional.LogitLoss):
    """The sum of the logits that count; each visit of a chunk is reported."""

    report: Callable[[], None]

    def value(self, logits, labels, where):
        jax.debug.callback(self.report)
        return jnp.where(where[..., None], logits, 0.0).sum()

    def value_and_gradient(self, logits, labels, where, vocab_size):
        return self.value(logits, labels, where), jnp.broadcast_to(where[..., None], logits.shape).astype(jnp.float32)


@pytest.mark.parametrize(("counted", "visits"), [([5, 1], 2), ([5, 5], 3), ([0, 1], 1), ([0, 0], 0)])
def test_chunks_of_padding_are_skipped(counted, visits):
    """Three chunks of four of the ten positions; those that count are moved to the first."""
    where = jnp.asarray(np.arange(5) < np.asarray(counted)[:, None])
    visited = []
    loss = Visits(lambda: visited.append(None))
    arrays = jnp.asarray(WIDE, jnp.float32), jnp.asarray(TABLE, jnp.float32), jnp.asarray(LABELS, jnp.int32)
    run = lambda *arrays: functional.linear_loss(*arrays, loss, where=where, chunk=4)[0]
    expected = (WIDE @ TABLE.T)[np.asarray(where)].sum()
    np.testing.assert_allclose(jax.jit(run)(*arrays), expected, rtol=1e-5)
    jax.effects_barrier()
    assert len(visited) == visits
    d_x = jax.grad(run)(*arrays)
    np.testing.assert_allclose(d_x, np.asarray(where)[..., None] * TABLE.sum(0), rtol=1e-5)
    jax.effects_barrier()
    assert len(visited) == 2 * visits


def test_linear_of_logits_whose_square_overflows():
    """The loss that is computed with the gradient was NaN: 0, the factor of the z-loss, times infinity."""
    logits, labels, where = jnp.array([1e30, 0.0])[None, None, None], jnp.array([[[0]]]), jnp.array([[[True]]])
    both = functools.partial(functional.CrossEntropy().value_and_gradient, vocab_size=2)
    value, slope = jax.jit(both)(logits, labels, where)
    assert value == 0
    np.testing.assert_array_equal(slope, jnp.zeros_like(logits))


def test_linear_in_bfloat16():
    """Products in bfloat16, sums in float32: near the float32 loss, the table's gradient in the table's dtype."""
    (total, _), (d_x, d_table) = ours_linear(jnp.asarray(WIDE, jnp.bfloat16), None, functional.CrossEntropy(0.1))
    expected, slope, _ = direct(WIDE @ TABLE.T, LABELS, None, 0.1, 0.0)
    np.testing.assert_allclose(total, expected, rtol=1e-2)
    np.testing.assert_allclose(d_table, np.einsum("btv,btd->vd", slope, WIDE), atol=0.1)
    assert (total.dtype, d_x.dtype, d_table.dtype) == (jnp.float32, jnp.bfloat16, jnp.float32)


def test_linear_never_holds_the_logits():
    """By the compiler's count, 64 of 1,024 positions at a time take a small part of the memory of all."""
    sizes = jax.ShapeDtypeStruct((1, 1024, 8), jnp.float32), jax.ShapeDtypeStruct((5000, 8), jnp.float32)
    labels = jax.ShapeDtypeStruct((1, 1024), jnp.int32)

    def memory(chunk):
        loss = lambda x, t, y: functional.linear_loss(x, t, y, chunk=chunk)[0]
        compiled = jax.jit(jax.grad(loss, (0, 1))).lower(*sizes, labels).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert memory(1024) >= 1024 * 5000 * 4
    assert memory(64) < memory(1024) / 8


@pytest.mark.parametrize("shape", [(2, 5, 4), (2, 4, 3), (3, 5, 3)])
def test_linear_refuses_shapes_that_do_not_fit(shape):
    unchecked = inspect.unwrap(functional.linear_loss)  # without the type checks of the tests
    with pytest.raises(ValueError, match=r"shapes must be x \[B, T, D\], table \[V, D\], labels \[B, T\], with B a"):
        unchecked(jnp.zeros(shape), jnp.zeros((7, 3)), jnp.zeros((2, 5), jnp.int32))


@pytest.mark.parametrize("label", [-100, 7])
def test_labels_outside_of_the_vocabulary(label):
    """Refused where they count, unless they are traced; `where` leaves them out."""
    labels, logits = jnp.asarray(LABELS, jnp.int32).at[0, 1].set(label), jnp.asarray(LOGITS, jnp.float32)
    x, table = jnp.ones((2, 5, 3)), jnp.ones((7, 3))
    message = rf"labels must be in \[0, V = 7\) where they count, got {label}; exclude labels with where="
    for loss in (
        functools.partial(functional.cross_entropy, logits),
        functools.partial(functional.linear_loss, x, table),
    ):
        with pytest.raises(ValueError, match=message):
            loss(labels)
        kept = (labels >= 0) & (labels < 7)
        assert float(loss(labels, where=kept)[1]) == 9
        assert float(jax.jit(loss)(labels)[1]) == 10


def test_counts_are_float32_in_a_program_of_64_bits():
    with jax.enable_x64(True):
        logits, labels = jnp.zeros((2, 3), jnp.float32), jnp.zeros(2, jnp.int32)
        results = functional.cross_entropy(logits, labels), functional.symmetric_divergence(logits, logits)
    assert {x.dtype for x in jax.tree.leaves(results)} == {jnp.dtype("float32")}


def test_shapes_that_would_broadcast_are_rejected():
    """Labels [B, 1] would be compared with all rows, and a choice [B, 1] counted once for many labels."""
    logits, labels = jnp.zeros((2, 5, 7)), jnp.asarray(LABELS)
    states = jnp.zeros((2, 5, 3)), jnp.zeros((7, 3))
    for wrong in (labels[..., None], labels[:1], labels[0]):
        with pytest.raises(ValueError, match=r"shapes must be logits \[\*batch, V\], labels \[\*batch\], got "):
            inspect.unwrap(functional.cross_entropy)(logits, wrong)
    for where in (jnp.ones((2, 1), bool), jnp.ones((2, 5)), jnp.ones((2, 5), int)):
        with pytest.raises(ValueError, match=rf"where must be Bool \[2, 5\], got {where.dtype} "):
            inspect.unwrap(functional.cross_entropy)(logits, labels, where=where)
        with pytest.raises(ValueError, match=rf"where must be Bool \[2, 5\], got {where.dtype} "):
            inspect.unwrap(functional.linear_loss)(*states, labels, where=where)
