"""Losses agree with their formulas, from all logits and in chunks, also a user's own; uncounted labels are inert."""

import dataclasses
import functools
import types
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, targets
from tests.modules.small import quick
from tests.selection import first

DRAW = np.random.default_rng(2)
LOGITS = DRAW.standard_normal((2, 5, 7)) * 3
LABELS = DRAW.integers(0, 7, (2, 5))
COUNTED = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], bool)
WIDE, TABLE = DRAW.standard_normal((2, 5, 3)), DRAW.standard_normal((7, 3))
single = lambda x: jnp.asarray(x, jnp.float32)
INPUTS = single(WIDE), single(TABLE), jnp.asarray(LABELS, jnp.int32)
SETTINGS = pytest.mark.parametrize(
    ("smoothing", "z_loss", "counted"),
    [
        *((0.0, 0.0, None), (0.3, 1e-2, COUNTED)),
        *(pytest.param(*case, marks=pytest.mark.full) for case in ((0.1, 0.0, None), (0.0, 0.5, COUNTED))),
        pytest.param(0.1, 0.0, COUNTED, marks=pytest.mark.full),
    ],
)


def direct(logits, counted, smoothing, z_loss):
    """Returns the sum of -target . log softmax + z log^2 Z and its gradient, in float64 from the definition."""
    shifted = logits - logits.max(-1, keepdims=True)
    log_z = np.log(np.exp(shifted).sum(-1)) + logits.max(-1)
    probability = np.exp(logits - log_z[..., None])
    target = (1 - smoothing) * np.eye(logits.shape[-1])[LABELS] + smoothing / logits.shape[-1]
    loss = -(target * (logits - log_z[..., None])).sum(-1) + z_loss * log_z**2
    slope = probability - target + 2 * z_loss * log_z[..., None] * probability
    counted = np.ones(LABELS.shape, bool) if counted is None else counted
    return loss[counted].sum(), slope * counted[..., None], counted.sum()


def ours(logits, counted, **options):
    where = None if counted is None else jnp.asarray(counted)
    call = lambda x: functional.cross_entropy(x, INPUTS[2], where=where, **options)
    (total, count), slope = jax.jit(jax.value_and_grad(call, has_aux=True))(logits)
    return total, count, slope


@SETTINGS
def test_value_and_gradient(smoothing, z_loss, counted):
    total, count, slope = ours(single(LOGITS), counted, smoothing=smoothing, z_loss=z_loss)
    expected, expected_slope, expected_count = direct(LOGITS, counted, smoothing, z_loss)
    np.testing.assert_allclose(total, expected, rtol=1e-6)
    np.testing.assert_allclose(slope, expected_slope, atol=2e-6)
    assert float(count) == expected_count
    assert total.dtype == count.dtype == jnp.float32


@SETTINGS
@pytest.mark.parametrize("fill", first([np.nan, np.inf, -np.inf], np.nan))
def test_uncounted_labels_add_nothing(smoothing, z_loss, counted, fill):
    """For any logits of padding, value and gradient equal those of clean ones to the bit."""
    counted, clean = COUNTED if counted is None else counted, single(LOGITS)
    dirty = jnp.where(jnp.asarray(counted)[..., None], clean, fill)
    chex.assert_trees_all_equal(*(ours(x, counted, smoothing=smoothing, z_loss=z_loss) for x in (clean, dirty)))


def test_nothing_counted():
    total, count, slope = ours(single(LOGITS), np.zeros_like(COUNTED), smoothing=0.1)
    assert (float(total), float(count)) == (0, 0)
    assert not np.asarray(slope).any()


def test_large_and_forbidden_logits():
    """Logits of minus infinity, as in constrained decoding, give a finite loss and gradient, unless they are chosen."""
    logits = jnp.zeros((1, 3)).at[0, 1].set(1e4)
    assert [float(functional.cross_entropy(logits, jnp.array([i]))[0]) for i in (0, 1)] == [1e4, 0]
    loss = lambda x: functional.cross_entropy(x, jnp.array([0]))[0]
    value, slope = jax.value_and_grad(loss)(jnp.array([[1.0, -jnp.inf, 2.0]]))
    np.testing.assert_allclose(value, np.log(1 + np.e), rtol=1e-6)
    assert np.isfinite(slope).all()


def test_bfloat16_logits_are_summed_in_float32():
    logits = jnp.asarray(LOGITS, jnp.bfloat16)
    total, _, slope = ours(logits, None)
    np.testing.assert_allclose(total, direct(np.asarray(logits, np.float64), None, 0.0, 0.0)[0], rtol=1e-6)
    assert slope.dtype == jnp.bfloat16


def test_smoothed_loss_is_smallest_at_the_smoothed_distribution():
    """The gradient is zero where the softmax equals the target distribution, not at certainty."""
    target = np.full(4, 0.2 / 4) + 0.8 * np.eye(4)[2]
    slope = jax.grad(lambda x: functional.cross_entropy(x[None], jnp.array([2]), smoothing=0.2)[0])
    np.testing.assert_allclose(slope(jnp.log(single(target))), 0, atol=1e-7)


@pytest.mark.parametrize("label", [-100, 7])
def test_labels_outside_of_the_vocabulary(label):
    """`where` leaves them out; traced ones are counted."""
    labels = INPUTS[2].at[0, 1].set(label)
    kept = (labels >= 0) & (labels < 7)
    for loss in (
        functools.partial(functional.cross_entropy, single(LOGITS)),
        functools.partial(functional.linear_loss, *INPUTS[:2]),
    ):
        assert float(loss(labels, where=kept)[1]) == 9
        assert float(jax.jit(loss)(labels)[1]) == 10


@pytest.mark.parametrize("dtype", first(["uint8", "int8", "int16", "uint16"], "uint8"))
def test_labels_of_few_bits(dtype):
    """More classes than the dtype has numbers: losses and gradients equal those of int32 labels bit for bit."""
    draw = np.random.default_rng(5)
    x, table = (single(draw.standard_normal(shape)) for shape in ((1, 4, 1), (70_000, 1)))
    labels = jnp.array([[0, 5, 100, 127]])

    def both(x, table, labels):
        total, _ = functional.cross_entropy(jnp.einsum("btd,vd->btv", x, table), labels)
        return total + functional.linear_loss(x, table, labels)[0]

    slopes = jax.jit(jax.value_and_grad(both, (0, 1)))
    chex.assert_trees_all_equal(*(slopes(x, table, labels.astype(d)) for d in (dtype, jnp.int32)))


def ours_linear(x, counted, loss=None, **options):
    where = None if counted is None else jnp.asarray(counted)
    call = lambda x, t: functional.linear_loss(x, t, INPUTS[2], loss, where=where, **options)
    return jax.jit(jax.value_and_grad(call, (0, 1), has_aux=True))(x, INPUTS[1])


def check_linear(loss, x, counted, chunk, expected, slope):
    """Value and gradients by the chain rule in float64; without a gradient it is another program."""
    (total, count), (d_x, d_table) = ours_linear(x, counted, loss, chunk=chunk)
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    np.testing.assert_allclose(d_x, slope @ TABLE, atol=5e-6)
    np.testing.assert_allclose(d_table, np.einsum("btv,btd->vd", slope, WIDE), atol=1e-5)
    assert float(count) == (10 if counted is None else counted.sum())
    where = None if counted is None else jnp.asarray(counted)
    alone, _ = functional.linear_loss(x, *INPUTS[1:], loss, where=where, chunk=chunk)
    np.testing.assert_allclose(alone, expected, rtol=1e-5)


CHUNKS = pytest.mark.parametrize("chunk", first([1, 4, 7, None], 4), ids="chunk={}".format)


@SETTINGS
@CHUNKS
def test_linear_value_and_gradients(smoothing, z_loss, counted, chunk):
    """For chunks of one position, of two and a rest, and of all."""
    expected, slope, _ = direct(WIDE @ TABLE.T, counted, smoothing, z_loss)
    check_linear(functional.CrossEntropy(smoothing, z_loss), INPUTS[0], counted, chunk, expected, slope)


@dataclasses.dataclass(frozen=True)
class Focal(functional.LogitLoss):
    """A user's own loss, without a gradient of its own: -(1 - p)^gamma log p (Lin et al. 2017)."""

    gamma: float = 2.0

    def value(self, logits, labels, where):
        log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)[..., 0]
        return -jnp.where(where, (1 - jnp.exp(log_p)) ** self.gamma * log_p, 0.0).sum()


def direct_focal(logits, gamma):
    """The focal loss and its gradient, (1-p)^(gamma-1) (gamma p log p - (1 - p)) (onehot - softmax), in float64."""
    probability = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    hit = np.eye(logits.shape[-1])[LABELS]
    p = (probability * hit).sum(-1)
    loss = -((1 - p) ** gamma) * np.log(p)
    slope = ((1 - p) ** (gamma - 1) * (gamma * p * np.log(p) - (1 - p)))[..., None] * (hit - probability)
    return loss[COUNTED].sum(), slope * COUNTED[..., None]


@CHUNKS
@pytest.mark.parametrize("gamma", first([2.0, 1.0], 2.0))
def test_own_loss_has_its_value_and_gradients(gamma, chunk):
    """With states that are NaN where labels do not count."""
    x = jnp.where(jnp.asarray(COUNTED)[..., None], INPUTS[0], jnp.nan)
    check_linear(Focal(gamma), x, COUNTED, chunk, *direct_focal(WIDE @ TABLE.T, gamma))


def test_linear_uncounted_labels_add_nothing():
    """NaN in padding reaches neither the loss nor the table."""
    dirty = jnp.where(jnp.asarray(COUNTED)[..., None], INPUTS[0], jnp.nan)
    chex.assert_trees_all_equal(*(ours_linear(x, COUNTED) for x in (INPUTS[0], dirty)))


@pytest.mark.parametrize("own", [False, True])
def test_linear_in_bfloat16(own):
    """Products in bfloat16, logits and sums in float32: gradients have the dtypes of the states and of the table."""
    loss = Focal() if own else functional.CrossEntropy(0.1)
    (total, count), (d_x, d_table) = ours_linear(jnp.asarray(WIDE, jnp.bfloat16), COUNTED, loss)
    logits = WIDE @ TABLE.T
    expected, slope = direct_focal(logits, 2.0) if own else direct(logits, COUNTED, 0.1, 0.0)[:2]
    np.testing.assert_allclose(total, expected, rtol=1e-2)
    np.testing.assert_allclose(d_table, np.einsum("btv,btd->vd", slope, WIDE), atol=0.1)
    assert (total.dtype, count.dtype, d_x.dtype, d_table.dtype) == (*(jnp.float32,) * 2, jnp.bfloat16, jnp.float32)


LOSSES = [functional.CrossEntropy(smoothing, z) for smoothing, z in ((0.0, 0.0), (0.3, 1e-2), (0.0, 0.5))]


@pytest.mark.full
@pytest.mark.parametrize("counted", [None, COUNTED], ids=["all", "counted"])
@pytest.mark.parametrize("loss", [*LOSSES, Focal()], ids=str)
def test_linear_pads_an_odd_vocabulary_on_an_accelerator(loss, counted):
    """The added columns change neither the loss nor the gradients, and no array of the library's loss has V of them."""
    where = None if counted is None else jnp.asarray(counted)
    call = lambda x, t: functional.linear_loss(x, t, INPUTS[2], loss, where=where, chunk=4)[0]
    expected = call(*INPUTS[:2]), jax.value_and_grad(call, (0, 1))(*INPUTS[:2])
    with targets.compiling_for([types.SimpleNamespace(platform="gpu", device_kind="")]):
        program = str(jax.make_jaxpr(jax.grad(call, (0, 1)))(*INPUTS[:2]))
        found = call(*INPUTS[:2]), jax.value_and_grad(call, (0, 1))(*INPUTS[:2])
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-6)
    assert "f32[1,1,4,16]" in program
    assert ("f32[1,1,4,7]" in program) == isinstance(loss, Focal)


@pytest.mark.full
def test_linear_gradient_of_a_scaled_loss():
    """The gradient is computed in the forward pass, and the upstream gradient still multiplies it."""
    loss = lambda x: functional.linear_loss(x, *INPUTS[1:])[0]
    found, expected = jax.grad(lambda x: -3 * loss(x))(INPUTS[0]), jax.grad(loss)(INPUTS[0])
    np.testing.assert_allclose(found, -3 * expected, rtol=1e-6)


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


def test_linear_of_logits_whose_square_overflows():
    """The loss that is computed with the gradient was NaN: 0, the factor of the z-loss, times infinity."""
    logits, labels, where = jnp.array([1e30, 0.0])[None, None, None], jnp.array([[[0]]]), jnp.array([[[True]]])
    both = functools.partial(functional.CrossEntropy().value_and_gradient, vocab_size=2)
    chex.assert_trees_all_equal(jax.jit(both)(logits, labels, where), (0.0, jnp.zeros_like(logits)))


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
    where, visited = jnp.asarray(np.arange(5) < np.asarray(counted)[:, None]), []
    loss = Visits(lambda: visited.append(None))
    run = lambda *arrays: functional.linear_loss(*arrays, loss, where=where, chunk=4)[0]
    np.testing.assert_allclose(jax.jit(run)(*INPUTS), (WIDE @ TABLE.T)[np.asarray(where)].sum(), rtol=1e-5)
    jax.effects_barrier()
    assert len(visited) == visits
    np.testing.assert_allclose(jax.grad(run)(*INPUTS), np.asarray(where)[..., None] * TABLE.sum(0), rtol=1e-5)
    jax.effects_barrier()
    assert len(visited) == 2 * visits


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


X = single(np.random.default_rng(3).standard_normal((4, 5, 3)))  # two sentences, two passes each
TWICE = jnp.asarray(np.repeat(LABELS, 2, axis=0))
WHERE = jnp.asarray(np.repeat(np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool), 2, axis=0))
WEIGHT, SMOOTHING = 5.0, 0.1


def direct_r_drop(x, table):
    """Half of -log p - log q + alpha / 2 (KL(p|q) + KL(q|p)), summed over the counted labels (Liang et al. 2021)."""
    p, q = (jax.nn.softmax(x[i::2] @ table.T) for i in range(2))
    target = (1 - SMOOTHING) * jnp.eye(7)[LABELS] + SMOOTHING / 7
    likelihood = -(target * jnp.log(p)).sum(-1) - (target * jnp.log(q)).sum(-1)
    divergence = (p * jnp.log(p / q)).sum(-1) + (q * jnp.log(q / p)).sum(-1)
    return jnp.where(WHERE[::2], 0.5 * (likelihood + WEIGHT / 2 * divergence), 0).sum()


def direct_simcut(x, table):
    """-log p + alpha KL(p|q), summed over the counted labels (Gao et al. 2022), with gradients into both passes."""
    p, q = (jax.nn.softmax(x[i::2] @ table.T) for i in range(2))
    target = (1 - SMOOTHING) * jnp.eye(7)[LABELS] + SMOOTHING / 7
    loss = -(target * jnp.log(p)).sum(-1) + WEIGHT * (p * jnp.log(p / q)).sum(-1)
    return jnp.where(WHERE[::2], loss, 0).sum()


def all_logits(x, table, function=functional.r_drop):
    logits, options = x @ table.T, {"weight": WEIGHT, "smoothing": SMOOTHING, "where": WHERE[::2]}
    return function(logits[::2], logits[1::2], INPUTS[2], **options)


def in_chunks(x, table, chunk=4, kind=functional.RDrop):
    return functional.linear_loss(x, table, TWICE, kind(WEIGHT, SMOOTHING), where=WHERE, chunk=chunk)


TWO_PASSES = {
    "r_drop": (direct_r_drop, all_logits),
    "RDrop": (direct_r_drop, in_chunks),
    "RDrop, one chunk": (direct_r_drop, functools.partial(in_chunks, chunk=None)),
    "simcut": (direct_simcut, functools.partial(all_logits, function=functional.simcut)),
    "SimCut": (direct_simcut, functools.partial(in_chunks, kind=functional.SimCut)),
    "SimCut, one chunk": (direct_simcut, functools.partial(in_chunks, chunk=None, kind=functional.SimCut)),
}


@pytest.mark.parametrize("name", first([*TWO_PASSES], "r_drop", "RDrop", "simcut", "SimCut"))
def test_two_passes_have_their_value_and_gradient(name):
    direct, loss = TWO_PASSES[name]
    expected, slopes = quick(jax.value_and_grad(direct, (0, 1)))(X, INPUTS[1])
    (total, count), found = quick(jax.value_and_grad(loss, (0, 1), has_aux=True))(X, INPUTS[1])
    np.testing.assert_allclose([total, loss(X, INPUTS[1])[0]], expected, rtol=1e-5)  # two programs
    chex.assert_trees_all_close(found, slopes, rtol=1e-4, atol=1e-5)
    assert float(count) == 8  # the labels of one pass
    assert total.dtype == count.dtype == jnp.float32


def test_equal_passes_have_the_cross_entropy():
    x = functional.duplicate_rows(X[:2])
    np.testing.assert_array_equal(x, np.repeat(X[:2], 2, axis=0))
    plain = functional.linear_loss(*[x[::2], *INPUTS[1:]], functional.CrossEntropy(SMOOTHING), where=WHERE[::2])
    chex.assert_trees_all_close(in_chunks(x, INPUTS[1]), plain, rtol=1e-6)


@pytest.mark.parametrize("smoothing", first([0.0, SMOOTHING], SMOOTHING))
def test_simcut_of_equal_passes_is_the_cross_entropy_bit_for_bit(smoothing):
    """Without a cut, nothing is added to the loss or to a gradient, and none reaches the second pass."""
    logits = jnp.broadcast_to((X @ INPUTS[1].T)[::2, :, None], (2, 5, 2, 7))
    call = lambda loss, x: loss.value_and_gradient(x, INPUTS[2], WHERE[::2], 7)
    total, slope = quick(functools.partial(call, functional.SimCut(WEIGHT, smoothing)))(logits)
    expected, plain = quick(functools.partial(call, functional.CrossEntropy(smoothing)))(logits[..., 0, :])
    chex.assert_trees_all_equal((total, slope), (expected, jnp.stack([plain, 0 * plain], 2)))
    tokens = functional.Tokens(jnp.ones((4, 5), int))
    assert functional.SimCut(WEIGHT, cut=0.0).inputs(tokens, jax.random.key(0)).shown is None


def test_simcut_cuts_each_second_row():
    tokens = functional.Tokens(jnp.ones((6, 300), int))
    shown = jax.jit(functional.SimCut(cut=0.4).inputs)(tokens, jax.random.key(0)).shown
    assert shown[::2].all()
    np.testing.assert_allclose(shown[1::2].mean(1), 0.6, atol=0.1)
    assert not (shown[1] == shown[3]).all()


@pytest.mark.parametrize("kind", [functional.RDrop, functional.SimCut])
@pytest.mark.parametrize("fill", first([np.nan, np.inf], np.nan))
def test_padding_of_two_passes_is_inert(fill, kind):
    dirty, rows = jnp.where(WHERE[..., None], X, fill), jnp.array([True, False, True, True])
    slopes = quick(jax.value_and_grad(lambda x: in_chunks(x, INPUTS[1], kind=kind)[0]))
    chex.assert_trees_all_equal(slopes(X), slopes(dirty))
    second = jnp.where(rows[:, None], X[:, 1], fill)
    apart = functional.symmetric_divergence if kind is functional.RDrop else functional.divergence
    value, count = apart(X[:, 0], second, where=rows)
    assert np.isfinite(value)
    assert float(count) == 3


def test_the_divergence_is_symmetric_and_zero_for_equal_distributions():
    """A shift of all logits changes no distribution; a class that neither pass can choose adds nothing."""
    first, second = X[:2], X[2:]
    one, count = functional.symmetric_divergence(first, second)
    np.testing.assert_allclose(one, functional.symmetric_divergence(second + 3, first)[0], rtol=1e-5)
    assert float(one) > 0.1
    assert float(count) == 10
    np.testing.assert_allclose(functional.symmetric_divergence(first, first + 2)[0], 0, atol=1e-6)
    logits, other = jnp.array([[0.0, 1.0, -jnp.inf]]), jnp.array([[0.0, 2.0, -jnp.inf]])
    value, slope = jax.value_and_grad(lambda x: functional.symmetric_divergence(x, logits)[0])(other)
    np.testing.assert_allclose(value, functional.symmetric_divergence(other[:, :2], logits[:, :2])[0], rtol=1e-6)
    assert np.isfinite(slope).all()


def test_the_divergence_of_impossible_classes():
    """A class that only the first pass cannot choose adds nothing; one that only the second cannot choose, infinity."""
    some, all_ = jnp.array([[0.0, 1.0, -jnp.inf]]), jnp.array([[0.0, 2.0, 1.0]])
    value, slopes = jax.value_and_grad(lambda x, y: functional.divergence(x, y)[0], (0, 1))(some, all_)
    p, q = jax.nn.softmax(some[0, :2]), jax.nn.softmax(all_)[0, :2]
    np.testing.assert_allclose(value, (p * np.log(p / q)).sum(), rtol=1e-6)
    assert np.isfinite(slopes).all()
    assert float(functional.divergence(all_, some)[0]) == np.inf


@pytest.mark.parametrize("shape", [(2, 0), (0, 5)])
def test_no_labels_have_no_loss(shape):
    loss = functional.linear_loss(jnp.ones((*shape, 3)), INPUTS[1], jnp.zeros(shape, int), functional.RDrop(WEIGHT))
    assert [float(x) for x in loss] == [0, 0]


def test_counts_are_float32_in_a_program_of_64_bits():
    with jax.enable_x64(True):
        logits, labels = jnp.zeros((2, 3), jnp.float32), jnp.zeros(2, jnp.int32)
        results = functional.cross_entropy(logits, labels), functional.symmetric_divergence(logits, logits)
    assert {x.dtype for x in jax.tree.leaves(results)} == {jnp.dtype("float32")}
