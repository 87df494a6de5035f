"""One update: its gradient, microbatches, nonfinite values and metrics, on a model of two arrays; programs compiled
ahead; the step of `pmap` is the step of `jit`, on eight devices and on one."""

import dataclasses
import functools
import itertools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxformer import models, pure, training
from jaxformer.errors import ConfigError
from jaxformer.training.phase_timer import PhaseTimer
from jaxformer.training.step import OutOfMemoryError, Programs
from tests.selection import first
from tests.sharding import small
from tests.training.small import OPTIMIZER, STEP, batch, init, loss, new_state, settings


def test_gradient_is_that_of_the_mean():
    state = new_state()
    params = jax.tree.map(np.asarray, state.params)
    key = jax.random.fold_in(jax.random.wrap_key_data(state.key), 0)
    expected = jax.grad(lambda p: loss(p, batch(1), key)[0] / loss(p, batch(1), key)[1])(params)
    state, metrics = training.make_step(loss, OPTIMIZER)(state, batch(1))
    np.testing.assert_allclose(metrics["gradient_norm"], optax.tree.norm(expected), rtol=1e-5)
    np.testing.assert_allclose(metrics["count"], 36.0)
    assert int(state.step) == 1


def test_accumulation_is_the_same_update():
    noiseless = lambda p, b, key: loss(p, b, None)
    whole, parts = (training.make_step(noiseless, OPTIMIZER, num_microbatches=n)(new_state(), batch(1)) for n in (1, 4))
    chex.assert_trees_all_close(whole[0].params, parts[0].params, rtol=1e-5, atol=1e-6)
    assert float(whole[1]["seen"]) == float(parts[1]["seen"]) == 8
    with pytest.raises(ValueError, match="num_microbatches=3 does not divide"):
        training.make_step(noiseless, OPTIMIZER, num_microbatches=3)(new_state(), batch(1))


def test_each_step_draws_its_own_noise():
    """The key of a step is the run's, folded with the step's number: a resumed step draws what it drew before."""
    step = training.make_step(loss, optax.set_to_zero())
    state = training.create(init, optax.set_to_zero(), jax.random.key(0))
    sums = []
    for _ in range(3):
        state, metrics = step(state, batch(1))
        sums.append(float(metrics["loss_sum"]))
    assert len(set(sums)) == 3


def pair(params, batch, key):
    return loss(params, batch, key)[:2]


@pytest.mark.full
def test_a_loss_without_metrics():
    """A pair, as the library's cross-entropies return, with a count of any type."""
    integer = lambda p, b, key: (pair(p, b, key)[0], 36)
    expected = training.make_step(loss, OPTIMIZER)(new_state(), batch(1))[1]
    for form in (pair, integer):
        for parts in (1, 2):
            noiseless = lambda p, b, key, form=form: form(p, b, None)
            _, metrics = training.make_step(noiseless, OPTIMIZER, num_microbatches=parts)(new_state(), batch(1))
            assert metrics.keys() == expected.keys() - {"seen"}
            assert metrics["count"].dtype == np.float32
            assert float(metrics["count"]) == (72 if form is integer and parts == 2 else 36)


@pytest.mark.parametrize(
    ("result", "got"),
    [
        (lambda total, count: total, r"got float32\[\]"),
        (lambda total, count: (total[None], count), r"got \('float32\[1\]', 'float32\[\]'\)"),
        (lambda total, count: (total, {"count": count}), "got .*'count': "),
        (lambda total, count: (total, count, count), "got "),
        (lambda total, count: (total, count, {}, {}), "got "),
    ],
)
def test_a_loss_of_another_form_is_refused(result, got):
    wrong = lambda p, b, key: result(*pair(p, b, key))
    with pytest.raises(ValueError, match=r"must return \(sum, count, metrics\) or \(sum, count\).*" + got):
        training.make_step(wrong, OPTIMIZER)(new_state(), batch(1))


@pytest.mark.parametrize("name", ["skipped", "finite", "count"])
def test_a_metric_with_the_name_of_one_of_the_step_is_refused(name):
    """A metric `skipped` of a loss turned off the abort at a loss that is not finite."""
    wrong = lambda p, b, key: (*pair(p, b, key), {name: np.float32(1)})
    with pytest.raises(ValueError, match=f"the step itself reports {name}; give the loss's metric another name"):
        training.make_step(wrong, OPTIMIZER)(new_state(), batch(1))


def test_a_batch_with_a_scalar_is_not_split():
    with pytest.raises(ConfigError, match=r"num_microbatches=2 does not divide the batch's first dimension \[1, "):
        training.make_step(loss, OPTIMIZER, num_microbatches=2)(new_state(), {"x": batch(1), "scale": jnp.ones(())})


def test_the_learning_rate_of_an_optimizer_without_a_count():
    optimizer = optax.sgd(0.1)
    step = training.make_step(loss, optimizer, learning_rate=lambda count: 0.5 / (1 + count.astype(np.float32)))
    state, rates = training.create(init, optimizer, jax.random.key(0)), []
    for _ in range(2):
        state, metrics = step(state, batch(1))
        rates.append(float(metrics["learning_rate"]))
    assert rates == [0.5, 0.25]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nonfinite": "ignore"}, "nonfinite must be abort or skip, got 'ignore'"),
        ({"num_microbatches": 0}, "num_microbatches must be at least 1, got 0"),
        ({"ema_decay": -0.5}, "ema_decay must be in [0, 1), got -0.5"),
        ({"ema_decay": 99.9}, "ema_decay must be in [0, 1), got 99.9"),
    ],
)
def test_arguments_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        training.make_step(loss, OPTIMIZER, **options)


def test_nonfinite_steps_are_skipped_or_reported():
    before = jax.tree.map(np.asarray, new_state().params)
    state, metrics = training.make_step(loss, OPTIMIZER, nonfinite="skip")(new_state(), batch(1, nan=True))
    chex.assert_trees_all_equal(before, state.params)
    assert (float(metrics["finite"]), float(metrics["skipped"]), int(state.step)) == (0, 1, 1)
    _, metrics = training.make_step(loss, OPTIMIZER)(new_state(), batch(1, nan=True))
    assert float(metrics["finite"]) == 0


def test_moving_average_follows():
    step = training.make_step(loss, OPTIMIZER, ema_decay=0.9)
    state = new_state(ema=True)
    expected, decay = jax.tree.map(np.asarray, state.params), None
    for number in range(5):
        state, _ = step(state, batch(number))
        decay = min(0.9, (1 + number) / (10 + number))
        expected = jax.tree.map(lambda a, p: a + (1 - decay) * (np.asarray(p) - a), expected, state.params)  # noqa: B023
    chex.assert_trees_all_close(expected, state.ema_params, rtol=1e-5, atol=1e-6)
    assert training.best_params(state) is state.ema_params


@pytest.mark.parametrize("parts", [1, 4])
def test_parameters_in_bfloat16_have_moments_and_an_average_in_float32(parts):
    """So the dtypes of a state stay, and the average follows its parameter, 1, where bfloat16 would round it to 0."""
    optimizer = optax.adam(0.0)
    mean = lambda params, batch, key: (params["w"].astype(jnp.float32) * batch.sum(), batch.sum())
    first = training.create(lambda key: {"w": jnp.zeros((), jnp.bfloat16)}, optimizer, jax.random.key(0), ema=True)
    state = dataclasses.replace(first, step=jnp.int32(100_000), params={"w": jnp.ones((), jnp.bfloat16)})
    step = training.make_step(mean, optimizer, ema_decay=0.999, num_microbatches=parts)
    batches = lambda start: itertools.repeat(jnp.full(8, 1 / 3, jnp.float32))
    state = training.fit(step, state, batches, config=settings(100_100)).state
    chex.assert_trees_all_equal_dtypes(state, first)
    np.testing.assert_allclose(state.ema_params["w"], 1 - 0.999**100, rtol=1e-4)
    np.testing.assert_allclose(state.optimizer[0].nu["w"], 1 - 0.999**100, rtol=0.01)


@pytest.mark.parametrize(("ema", "decay"), [(False, 0.9), (True, 0.0)])
def test_a_moving_average_needs_a_state_and_a_decay(ema, decay):
    step = training.make_step(loss, OPTIMIZER, ema_decay=decay)
    with pytest.raises(ValueError, match=rf"ema_decay is {decay}: create the state with ema={not ema}"):
        step(new_state(ema=ema), batch(0))


def test_sharded_state_stays_sharded():
    """Created on eight devices, trained there in one program, with the numbers of one device."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    kernel = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("model"))
    shapes = jax.eval_shape(new_state)
    shardings = jax.tree.map(lambda x: kernel if x.shape == (4, 3) else whole, shapes)
    state, alone = new_state(shardings=shardings), new_state()
    step, plain = training.make_step(loss, OPTIMIZER, shardings=shardings), training.make_step(loss, OPTIMIZER)
    for number in range(3):
        state, metrics = step(state, jax.device_put(batch(number), rows))
        alone, expected = plain(alone, batch(number))
        np.testing.assert_allclose(metrics["loss_sum"], expected["loss_sum"], rtol=1e-6)
    placed = jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(s, x.ndim), state, shardings)
    assert jax.tree.all(placed)
    assert step._cache_size() == 1
    np.testing.assert_allclose(state.params["kernel"], alone.params["kernel"], rtol=1e-5)


def test_the_state_is_donated():
    """An update needs no second copy of parameters and moments."""
    state = new_state()
    kernel = state.params["kernel"]
    training.make_step(loss, OPTIMIZER)(state, batch(1))
    assert kernel.is_deleted()


def test_a_skipped_step_leaves_the_average_alone():
    state = new_state(ema=True)
    step = training.make_step(loss, OPTIMIZER, nonfinite="skip", ema_decay=0.9)
    state, _ = step(state, batch(1))
    before = jax.tree.map(np.asarray, state.ema_params)
    state, metrics = step(state, batch(2, nan=True))
    assert float(metrics["skipped"]) == 1
    chex.assert_trees_all_equal(before, state.ema_params)


def test_weights_below_one_are_a_mean_too():
    """The mean does not change when all weights are divided by a hundred, nor does the update."""
    light = {**batch(1), "weight": batch(1)["weight"] / 100}
    norms = [training.make_step(loss, OPTIMIZER)(new_state(), b)[1]["gradient_norm"] for b in (batch(1), light)]
    np.testing.assert_allclose(*norms, rtol=1e-5)
    empty = {**batch(1), "weight": np.zeros(8, np.float32)}
    _, metrics = training.make_step(loss, OPTIMIZER)(new_state(), empty)
    assert (float(metrics["gradient_norm"]), float(metrics["finite"])) == (0, 1)


def test_one_program_for_each_shape():
    timer = PhaseTimer()
    programs = Programs(STEP, timer)
    timer.at("stepping")
    state, want = new_state(), new_state()
    for rows in (8, 4, 8):
        state, metrics = programs(state, batch(0, rows=rows))
        want, expected = STEP(want, batch(0, rows=rows))
        chex.assert_trees_all_equal((state, metrics), (want, expected))
    assert len(programs) == 2
    assert timer.seconds()["compiling"] > timer.seconds()["stepping"] / 100


def test_batches_of_other_structures_and_numbers():
    """Two kinds of batch with arrays of one shape have two programs; numbers that are not arrays need no program each.

    A program of the first kind refused the second, and a number raised an AttributeError, although a jitted step takes
    them.
    """
    plain = lambda batch: batch["text" if batch["image"] is None else "image"] * batch["scale"]

    @jax.jit
    def step(state, batch):
        return dataclasses.replace(state, step=state.step + 1), {"sum": plain(batch).sum()}

    programs, state = Programs(step, PhaseTimer()), new_state()
    for text, image, scale in ((1.0, None, 0.5), (None, 2.0, 0.5), (3.0, None, 0.25)):
        one = {name: x and jnp.full(4, x) for name, x in (("text", text), ("image", image))} | {"scale": scale}
        state, metrics = programs(state, one)
        assert metrics["sum"] == plain(one).sum()
    assert (len(programs), state.step) == (2, 3)


def test_a_step_that_would_be_killed_is_refused():
    programs = Programs(STEP, PhaseTimer(), memory=1000)
    state = new_state()
    with pytest.raises(OutOfMemoryError, match=r"a step on a batch of 8 x 4 needs 0\.0 GB, but there are 0\.0 GB"):
        programs(state, batch(0))
    assert not state.step.is_deleted()


def test_earlier_steps_have_ended_before_another_is_compiled(monkeypatch):
    """A step that runs while the next one compiles would be logged as one that takes no time."""

    @jax.jit
    def slow(state, batch):
        busy = jax.lax.fori_loop(0, 300, lambda _, x: jnp.tanh(x @ x), jnp.ones((300, 300)))
        return dataclasses.replace(state, step=state.step + 1 + (0 * busy[0, 0]).astype(jnp.int32)), {}

    ready = []
    compiled = Programs._compiled

    def look(self, state, batch):
        ready.append(state.step.is_ready())
        return compiled(self, state, batch)

    monkeypatch.setattr(Programs, "_compiled", look)
    programs, state = Programs(slow, PhaseTimer()), new_state()
    for rows in (8, 4, 2):
        state, _ = programs(state, batch(0, rows=rows))
    assert ready == [True, True, True]


SIZES = small.SIZES | {"num_encoder_layers": 1, "num_decoder_layers": 1}
CONFIG = models.EncoderDecoderConfig(64, 64, norm_position="pre", dropout=0.0, **SIZES)


@pytest.mark.full
def test_ten_steps():
    """Padding is spread unevenly, so a mean over the devices' means would be another loss."""
    net, given = pure(models.EncoderDecoder, CONFIG), small.batch()
    given = given | {"labels": given["labels"].at[:5].set(63)}
    state, step = small.alone(CONFIG)
    want, last = small.ten(state, step, given)
    loss = functools.partial(small.loss, net)
    state = training.create(net.init, small.OPTIMIZER, jax.random.key(0))
    state = jax.tree.map(lambda x: jnp.stack([x] * 8), state)
    step, cut = training.make_replicated_step(loss, small.OPTIMIZER), lambda x: x.reshape(8, 2, -1)
    got = []
    for _ in range(10):
        state, metrics = step(state, jax.tree.map(cut, given))
        got.append(float(metrics["loss_sum"][0] / metrics["count"][0]))
    np.testing.assert_allclose(got[0], want[0], rtol=1e-6)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(state.params), jax.tree.leaves(last.params), strict=True):
        np.testing.assert_allclose(a[0], b, atol=2e-4)
        np.testing.assert_array_equal(a, jnp.broadcast_to(a[0], a.shape))


def test_a_moving_average_is_refused():
    """Its initial values would stay, and be what is evaluated."""
    state = training.create(lambda key: jnp.zeros(2), small.OPTIMIZER, jax.random.key(0), ema=True)
    state = jax.tree.map(lambda x: jnp.stack([x] * 8), state)
    step = training.make_replicated_step(lambda p, x, key: (p.sum(), x.sum(), {}), small.OPTIMIZER)
    with pytest.raises(ValueError, match="keeps no moving average"):
        step(state, jnp.ones((8, 3)))


@pytest.mark.parametrize("weight", first([0.0, 0.01, 1.0], 0.0, 0.01))
def test_counts_below_one(weight):
    """The update divides by the count, as `make_step` does: by 0.24, not by 1; a count of 0 divides by 1."""
    loss = lambda p, x, key: (weight * jnp.square(p - x).sum(), weight * jnp.float32(x.size), {})
    sgd, x = optax.sgd(0.25), jnp.arange(24.0).reshape(8, 3)
    state = training.create(lambda key: jnp.float32(3), sgd, jax.random.key(0))
    replicated = jax.tree.map(lambda x: jnp.stack([x] * 8), state)
    want, metrics = training.make_step(loss, sgd)(state, x)
    got, found = training.make_replicated_step(loss, sgd)(replicated, x)
    np.testing.assert_allclose(got.params, jnp.full(8, want.params), rtol=1e-6)
    np.testing.assert_allclose(found["gradient_norm"][0], metrics["gradient_norm"], rtol=1e-6)
    np.testing.assert_allclose(got.params[0], 3 if weight == 0 else 3 + 0.5 * (11.5 - 3), rtol=1e-6)
