"""A translation experiment on a mesh equals that on one device: batches, losses, validation, translations."""

import dataclasses
import functools

import chex
import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from rich.console import Console

from jaxformer import functional, models, sharding
from jaxformer.config import changed
from jaxformer.errors import ConfigError
from jaxformer.models import choices
from jaxformer.sharding import Placement
from jaxformer.tasks import language_model, runner, training_setup
from jaxformer.tasks.base import batch_shape
from jaxformer.tasks.config import TuneConfig
from jaxformer.tasks.runner import Validation
from jaxformer.tasks.training_setup import TrainingSetup, make_training_setup
from jaxformer.tasks.translation import TASK, Beam, DataConfig, DecodeConfig, TranslationConfig, Translator
from jaxformer.tasks.translation.corpora import Corpora
from jaxformer.tasks.translation.task import TranslationData
from jaxformer.training.config import AdamConfig, CosineDecay, TrainConfig
from jaxformer.training.logging import read_log
from tests.contracts import task

MORE = [
    pytest.param(text, marks=pytest.mark.full)
    for text in ("data=8", "data=4,tensor=2", "fsdp=4,context=2", "context=4,tensor=2", "slice=2,data=2,tensor=2")
]

QUIET = Console(quiet=True)


def config(cache, **train):
    options = {"steps": 6, "validate_every": 3, "checkpoint_every": 3} | train
    data = {"tokens_per_batch": 640, "num_shapes": 1, "max_length": 32}
    return TranslationConfig(
        model=models.EncoderDecoderConfig(
            d_model=16,
            num_heads=4,
            d_ff=32,
            num_encoder_layers=1,
            num_decoder_layers=1,
            dropout=0.1,
            attention_dropout=0.1,
        ),
        data=DataConfig(corpus="grammar", grammar_pairs=4_000, vocab_size=400, cache=str(cache), **data),
        optimizer=AdamConfig(learning_rate=1e-2, warmup_steps=2),
        train=TrainConfig(tensorboard=False, **options),
        decode=DecodeConfig(
            search=Beam(beam_size=3), batch_size=12, max_extra=0, max_ratio=1.0, validation_sentences=8
        ),
    )


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """The folder for tokens and the tokenizer, which are made once."""
    return tmp_path_factory.mktemp("shared")


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Everything that training needs."""

    corpora: Corpora
    data: TranslationData
    setup: TrainingSetup


def validation(run):
    return Validation(TASK, run.setup.config, run.corpora, run.data, run.setup)


def prepared(shared, text, **train):
    devices = jax.devices() if text else jax.devices()[:1]
    chosen = config(shared, **train)
    placement = Placement(sharding.mesh(text, devices))
    corpora = TASK.read(chosen)
    data = TASK.prepare(chosen, corpora, shared)
    return Prepared(corpora, data, make_training_setup(TASK, chosen, data.vocabulary.vocab_size, placement))


def trained(run, steps=6):
    """Losses of some steps, and the state after them."""
    return task.trained(run.data, run.setup, steps)


@functools.cache
def alone(shared, **train):
    run = prepared(shared, "", **train)
    return run, *trained(run)


@pytest.mark.full
@pytest.mark.parametrize("text", ["data=2,fsdp=2,tensor=2", *MORE])
def test_training_validation_and_search(text, shared):
    """With dropout, of weights too; search is over the same parameters, so that only its own sums differ."""
    one, expected, last = alone(shared)
    run = prepared(shared, text)
    losses, state = trained(run)
    np.testing.assert_allclose(losses[0], expected[0], rtol=1e-6)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    placed = dataclasses.replace(state, params=jax.device_put(last.params, run.setup.params_shardings))
    metrics, wanted = (validation(r)(s) for r, s in ((run, placed), (one, last)))
    np.testing.assert_allclose(metrics["loss"], wanted["loss"], rtol=1e-6)
    sentences = one.corpora.validation.source[:12]
    there, here = (
        Translator(r.setup.network.net, s.params, r.data.vocabulary, r.setup.config.decode, r.setup.placement)
        for r, s in ((run, placed), (one, last))
    )
    for got, want in zip(*(t.candidates(sentences, n_best=2) for t in (there, here)), strict=True):
        np.testing.assert_allclose(got[0].score, want[0].score, rtol=1e-4)
        if want[0].score - want[1].score > 1e-4:
            assert got[0].tokens == want[0].tokens


@pytest.mark.full
@pytest.mark.parametrize("num_microbatches", [2, 3])
def test_any_number_of_rows(num_microbatches, shared):
    """Padded to a multiple of devices and parts; padding has no weight."""
    _, expected, _ = alone(shared, num_microbatches=num_microbatches)
    run = prepared(shared, "data=4,fsdp=2", num_microbatches=num_microbatches)
    np.testing.assert_array_equal(run.setup.rows(40), np.arange(48))
    np.testing.assert_allclose(trained(run)[0], expected, rtol=1e-5)


@pytest.mark.full
def test_a_run_continues_on_another_mesh(shared, tmp_path):
    """A third of a run on each of three meshes: the same batches, the same losses, one log."""
    whole = runner.train(config(shared, steps=3), tmp_path / "whole", console=QUIET)
    reasons = []
    for mesh in ("data=4,tensor=2", "fsdp=8", "fsdp=4,tensor=2"):
        cut = dataclasses.replace(config(shared, steps=3, minutes=1e-9), mesh=mesh)
        result = runner.train(cut, tmp_path / "cut", console=QUIET)
        reasons.append(result.reason)
    assert reasons == ["time", "time", "done"]
    want, got = (
        [row["loss"] for row in read_log(tmp_path / n / "log.jsonl") if "loss" in row] for n in ("whole", "cut")
    )
    assert len(want) == len(got) == 3
    np.testing.assert_allclose(got, want, rtol=1e-5)
    chex.assert_trees_all_close(result.state.params, whole.state.params, rtol=0, atol=2e-4)


def test_invalid_meshes_are_refused(shared, tmp_path):
    with pytest.raises(ValueError, match="data 3 = 3 devices, but there are 8"):
        runner.train(dataclasses.replace(config(shared), mesh="data=3"), tmp_path / "run", console=QUIET)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match=r"params.*\(heads\) cannot be sharded over tensor = 8"):
        prepared(shared, "tensor=8").setup.step()
    with pytest.raises(ValueError, match="mesh axis expert = 4 shards nothing of this model"):
        prepared(shared, "data=2,expert=4").setup.step()
    late = dataclasses.replace(config(shared), optimizer=AdamConfig(schedule=CosineDecay(), warmup_steps=6))
    with pytest.raises(ValueError, match="steps=6, warmup_steps=6"):
        runner.train(late, tmp_path / "run", console=QUIET)
    assert not (tmp_path / "run").exists()


def test_frozen_parameters_need_no_memory_for_gradient_and_moments(shared, monkeypatch):
    placement = Placement(sharding.mesh("", jax.devices()[:1]))
    tuned = dataclasses.replace(config(shared), tune=TuneConfig(frozen="decoder/*"))
    whole, partly = (make_training_setup(TASK, one, 400, placement) for one in (config(shared), tuned))
    sizes = [x.size * x.dtype.itemsize for x in jax.tree.leaves(whole.network.net.shapes)]
    monkeypatch.setattr(training_setup, "total_memory", lambda devices: 4 * sum(sizes))  # the batch is more
    training_setup.check_memory(partly)
    with pytest.raises(ConfigError, match="with gradient and moments of those trained"):
        training_setup.check_memory(whole)


def test_the_number_of_trained_parameters_is_told(shared):
    """With adapters, and with frozen parameters; a run of LoRA told only how many there are."""
    placement = Placement(sharding.mesh("", jax.devices()[:1]))
    made = lambda **tune: make_training_setup(TASK, changed(config(shared), {"tune": tune}), 400, placement)
    total = made().network.num_parameters
    assert made().size == f"{total:,} parameters"
    part = sum(x.size for x in jax.tree.leaves(made().network.net.shapes["encoder"]))
    size = f"{total:,} parameters, {part:,} of them trained ({part / total:.1%}),"
    assert made(frozen="decoder/*").size == size
    lora = made(adapters={"kind": "lora", "rank": 2}, frozen="encoder/*,decoder/*")
    adapters = sum(x.size for x in jax.tree.leaves(lora.network.net.shapes["lora"]))
    assert lora.size.startswith(f"{total + adapters:,} parameters, {adapters:,} of them trained")
    assert made(adapters={"kind": "lora", "rank": 2}).size.endswith("of them trained (100.0%),")


def test_a_smoothed_training_loss_is_known(shared):
    placement = Placement(sharding.mesh("", jax.devices()[:1]))
    assert make_training_setup(TASK, config(shared), 400, placement).label_smoothing == 0.1
    plain = changed(config(shared), {"loss": {"label_smoothing": 0.0}})
    assert make_training_setup(TASK, plain, 400, placement).label_smoothing == 0.0
    text = language_model.LanguageModelingConfig()
    assert make_training_setup(language_model.TASK, text, 40, placement).label_smoothing == 0.0


@pytest.mark.full
def test_the_operations_of_a_model(shared):
    """Two passes are twice as many; adapters and full experts are not seen, whatever the mesh computes."""
    base = config(shared)
    experts = choices.Experts(num_experts=4, capacity_factor=0.5)
    routed = {"feed_forward": experts}
    changes = {
        "loss": changed(base, {"loss": {"r_drop": 4.0}}),
        "adapters": changed(base, {"tune": {"adapters": {"kind": "lora", "rank": 2}}}),
        "experts": dataclasses.replace(base, model=dataclasses.replace(base.model, **routed)),
    }

    def count(config, mesh="data=1"):
        placement = Placement(sharding.mesh(mesh, jax.devices()[: int(mesh[5:])]))
        setup = make_training_setup(TASK, config, 400, placement)
        costs = setup.costs(setup.abstract_batch(4, 8))
        return costs.flops, costs.computed_flops

    plain, repeating = count(base), count(base, "data=4")
    assert plain[0] == plain[1] == repeating[0] < repeating[1]
    assert count(changes["loss"], "data=4") == tuple(2 * number for number in repeating)
    assert count(changes["adapters"]) == plain
    networks, routers = 2 * 2 * 16 * 32, 2 * 16 * 4  # each token has two experts in place of one network
    assert count(changes["experts"])[0] - plain[0] == 3 * 4 * (8 + 8) * (networks + routers)


def test_operations_are_counted_once_for_each_shape(shared, monkeypatch):
    """They are 0, which is no utilization, for frozen parameters, and if a loop makes them unknown."""
    placement, said, shapes = Placement(sharding.mesh("", jax.devices()[:1])), [], []
    tuned = dataclasses.replace(config(shared), tune=TuneConfig(frozen="decoder/*"))
    whole, partly = (make_training_setup(TASK, one, 400, placement) for one in (config(shared), tuned))
    batch = lambda *shape: jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), whole.abstract_batch(*shape))
    count, expected = training_setup.batch_flops(whole, said.append), whole.training_flops(batch(4, 8))
    training_flops = TrainingSetup.training_flops
    record = lambda setup, batch: shapes.append(batch_shape(batch)) or training_flops(setup, batch)
    monkeypatch.setattr(TrainingSetup, "training_flops", record)
    assert count(batch(4, 8)) == count(batch(4, 8)) == expected
    assert count(batch(2, 8)) == expected / 2
    assert shapes == [(4, 8, 8), (2, 8, 8)]
    assert training_setup.batch_flops(partly, said.append)(batch(4, 8)) == 0
    blockwise = functools.partial(functional.attention, implementation="blockwise")
    monkeypatch.setattr(training_setup.flops, "attention", blockwise)
    count = training_setup.batch_flops(whole, said.append)
    assert count(batch(4, 8)) == count(batch(4, 8)) == 0
    (line,) = said
    assert line.startswith("no model FLOP utilization: the products of a while loop have no known number")


@dataclasses.dataclass(frozen=True)
class Device:
    """What a mesh reads of one."""

    id: int
    process_index: int
    platform: str = "tpu"
    device_kind: str = "TPU v5"


def test_rows_of_a_process_may_be_scattered(monkeypatch):
    """On a torus a host's devices are anywhere along a mesh axis; two of these hosts share rows along `tensor`."""
    hosts = [0, 1, 2, 3, 1, 0, 3, 2, 0, 1, 2, 3, 1, 0, 3, 2]
    devices = np.array([Device(n, host) for n, host in enumerate(hosts)])
    placement = Placement(Mesh(devices.reshape(2, 4, 2), ("data", "fsdp", "tensor")))
    found = []
    for host in range(4):
        monkeypatch.setattr(jax, "process_index", lambda host=host: host)
        found.append(placement.rows_here(15).tolist())
    assert found == [[0, 1, 4, 5, 8, 9, 12, 13]] * 2 + [[2, 3, 6, 7, 10, 11, 14, 15]] * 2
