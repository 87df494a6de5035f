"""A recurrent model in the translation task has the properties of the other models."""

import dataclasses

import numpy as np
import pytest

import jaxformer
from jaxformer import models
from jaxformer.cli import runtime
from jaxformer.cli.main import main
from jaxformer.config import changed
from jaxformer.errors import ConfigError
from jaxformer.planning import hlo
from jaxformer.tasks import registry, rundir
from jaxformer.tasks.translation import TASK
from tests.contracts.task import prepared, quiet, setup_on, trained
from tests.tasks.small import tiny

MODEL = models.Seq2SeqConfig(d_model=16, d_hidden=16, cell="gru", dropout=0.1, state_dropout=0.1)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    whole = dataclasses.replace(tiny(tmp_path_factory.mktemp("cache")), model=MODEL)
    return changed(whole, {"data": {"max_length": 16, "tokens_per_batch": 128}, "decode": {"batch_size": 8}})


@pytest.fixture(scope="module")
def run(config, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "recurrent"
    result = jaxformer.train(config, out, console=quiet())
    assert (result.reason, int(result.state.step)) == ("done", 6)
    return out


@pytest.mark.full
def test_each_step_of_training_sends_gradients_once(config, run):
    """And not in each decoder step, which depends on the previous one."""
    setup = setup_on(TASK, config, TASK.vocabulary(run).vocab_size, "data=2")
    data = TASK.prepare(config, TASK.read(config), run)
    batch = next(iter(setup.on_devices(data.batches(0, setup.rows))))
    program = setup.step().lower(setup.new_state(), batch).compile().as_text()
    assert {one.count for one in hlo.collectives(program, {"data": 2})} == {1}


@pytest.mark.full
def test_a_mesh_trains_like_one_device(config, run):
    losses = [trained(*prepared(config, run, text))[0] for text in ("data=1", "data=2,fsdp=2,tensor=2")]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


@pytest.mark.full
def test_a_run_resumes_translates_and_shows_its_attention(config, run):
    assert registry.read_config(run) == config
    again = jaxformer.train(config, run, console=quiet())
    assert int(again.state.step) == 6
    translator = jaxformer.load(run)
    first, second = translator.candidates(["The old man sees the house.", "Yes."], n_best=2)
    assert len(first) == len(second) == 2
    found = translator.attention("The old man sees the house.", "Le vieil homme.")
    assert found.weights.shape == (1, 1, len(found.target), len(found.source))
    np.testing.assert_allclose(found.weights.sum(-1), 1, atol=1e-5)


@pytest.mark.full
def test_a_model_without_attention_has_none_to_show(config, run):
    translator = jaxformer.load(run)
    net = dataclasses.replace(translator.net, config=dataclasses.replace(translator.net.config, attention=None))
    plain = dataclasses.replace(translator, net=net)
    with pytest.raises(ConfigError, match=r"^this model has no attention to show: .* model\.attention none$"):
        plain.attention("Yes.", "Oui.")


@pytest.mark.full
def test_a_mesh_axis_of_lengths_is_refused_in_one_line(config, tmp_path, monkeypatch, capsys):
    """Steps depend on each other, so a mesh cannot shard lengths; the attempt leaves no files."""
    monkeypatch.setattr(runtime, "join", lambda config, out, devices: None)
    words = ["--mesh", "data=4,context=2", "--data.max_length", "15", "--out", str(tmp_path / "new")]
    rundir.claim(tmp_path / "run", config.task, config, ())
    assert main(["train", str(tmp_path / "run" / "config.json"), *words]) == 2
    *report, error = capsys.readouterr().err.splitlines()
    expected = "mesh axis context = 2 shards nothing of this model; give its devices to another axis, such as data"
    assert error == f"jaxformer train: {expected}"
    assert not any("sharded" in line or "context" in line for line in report)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["--model.attention", "cosine"], "model.attention: got 'cosine', expected one of "),
        (["--model.cell", "elman"], "model.cell: got 'elman', expected one of "),
        (["--model.d_hidden", "33"], "d_hidden must be even, half for each direction of the encoder, got 33"),
        (["--model.d_hidden", "0"], "d_hidden must be at least 1, got 0"),
        (["--model.attention.d_attention", "-1"], "d_attention must be at least 1, got -1"),
        (
            ["--model.attention.input_feeding"],
            "there is 'model.attention.input_feeding' with --model.attention dot or ",
        ),
        (["--model.num_heads", "4"], "unknown setting --model.num_heads"),
    ],
)
def test_settings_that_do_not_fit_are_refused_in_one_line(settings, message, tmp_path, capsys):
    assert main(["train", "demo", "--model", "recurrent", *settings, "--out", str(tmp_path / "new")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_another_vocabulary_is_refused(config, tmp_path):
    wrong = changed(config, {"model": {"source_vocab_size": 300, "target_vocab_size": 300}})
    with pytest.raises(ConfigError, match="tokenizer has 400"):
        jaxformer.train(wrong, tmp_path / "other", console=quiet())
