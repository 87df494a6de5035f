"""The contract of a task: a subclass gives a tiny configuration and mistakes that must be refused.


Slow tests, such as kills and ahead-of-time plans, are in tests/faults.
"""

import dataclasses
import io
import itertools
import json
import math

import jax
import numpy as np
import pytest
from rich.console import Console

import jaxformer
from jaxformer.cli.main import main
from jaxformer.config import changed
from jaxformer.errors import ConfigError, DataError
from jaxformer.inspection import reports as pages_of_reports
from jaxformer.sharding import Placement, mesh
from jaxformer.tasks import registry, reports, runner
from jaxformer.tasks.base import batch_shape
from jaxformer.tasks.training_setup import make_training_setup
from jaxformer.training.recorder import MEASURED


def quiet():
    return Console(file=io.StringIO())


def log_of(run):
    """The log without measured times, which differ from run to run."""
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in entry.items() if name not in MEASURED} for entry in entries]


def leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def setup_on(task, config, vocab_size, text="data=1"):
    """The training setup of a task on a mesh."""
    number = math.prod(int(part.partition("=")[2]) for part in text.split(","))
    return make_training_setup(task, config, vocab_size, Placement(mesh(text, jax.devices()[:number])))


def prepared(config, run, text="data=1"):
    """The data of a configuration, and its training setup on a mesh."""
    task = registry.task_of(config)
    data = task.prepare(config, task.read(config), run)
    return data, setup_on(task, config, data.vocabulary.vocab_size, text)


def evaluated(run):
    """The scores of the validation data of a run, and the rows of its examples."""
    kept = {}
    keep = lambda name, rows: kept.update({name: rows})
    scores = jaxformer.evaluate(run, split="validation", say=str, on_examples=keep)
    return scores["validation"], kept["validation"]


def trained(data, setup, number=3):
    """The losses of the first steps, and the state after them."""
    state, step, losses = setup.new_state(), setup.step(), []
    for batch in itertools.islice(setup.on_devices(data.batches(0, setup.rows)), number):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss_sum"] / metrics["count"]))
    return losses, state


class TaskContract:
    """Subclasses set `task` and define the fixture `config`, of 6 steps with a checkpoint every 2, and `moved_data`."""

    task = ""
    """The name of the task."""
    refused = ()
    """Settings, as nested mappings, with what the error must say."""
    attentions = ()
    """The names of the attentions that its predictor shows."""
    has_intervals = True
    """True if one of its scores comes with the sample that an interval needs."""

    @pytest.fixture(scope="class")
    @classmethod
    def config(cls, tmp_path_factory):
        """A tiny configuration on one device, whose data stays where it is."""
        raise NotImplementedError

    def change_training_data(self, config):
        """Returns the configuration for data with another training part than in `config`."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def run(cls, config, tmp_path_factory):
        out = tmp_path_factory.mktemp("run") / "whole"
        result = jaxformer.train(config, out, console=quiet())
        assert (result.reason, int(result.state.step)) == ("done", 6)
        return out

    def seen(self, folder):
        """Returns an input whose attention is shown: a text, or the path of an image in a folder."""
        return "the old man"

    def setup_on(self, config, run, text="data=1"):
        task = registry.get(self.task)
        return setup_on(task, config, task.vocabulary(run).vocab_size, text)

    def test_the_run_directory_describes_the_run(self, config, run):
        assert registry.task_of(config).name == self.task
        assert registry.read_config(run) == config
        log = log_of(run)
        assert [entry["step"] for entry in log if "loss" in entry] == [1, 2, 3, 4, 5, 6]
        assert all(math.isfinite(entry["loss"]) for entry in log if "loss" in entry)
        assert any("validation_loss" in entry for entry in log)

    def test_resumed_bit_for_bit(self, config, run, tmp_path, monkeypatch):
        """A run that is killed between checkpoints ends like an uninterrupted one: same log, same parameters."""
        out = tmp_path / "killed"

        class Dead(BaseException):
            pass

        with monkeypatch.context() as patch:
            fit = runner.training.fit

            def dying(step, state, batches, **options):
                def some(start):
                    yield from itertools.islice(batches(start), 5 - start)
                    raise Dead

                return fit(step, state, some, **options)

            patch.setattr(runner.training, "fit", dying)
            with pytest.raises(Dead):
                jaxformer.train(config, out, console=quiet())
        jaxformer.train(config, out, console=quiet())
        assert log_of(out) == log_of(run)
        abstract = self.setup_on(config, run).abstract_state()
        with (
            runner.training.Checkpoints(run / "checkpoints") as a,
            runner.training.Checkpoints(out / "checkpoints") as b,
        ):
            first, second = a.restore(6, abstract)[0], b.restore(6, abstract)[0]
        assert all(map(np.array_equal, leaves(first), leaves(second)))

    @pytest.mark.parametrize("text", ["data=2,fsdp=2,tensor=2"])
    def test_eight_devices_are_like_one(self, config, run, text):
        """The first loss agrees to 1e-6, three steps to 1e-5, from the same parameters and batches."""
        losses = [trained(*prepared(config, run, axes))[0] for axes in ("data=1", text)]
        np.testing.assert_allclose(losses[1][0], losses[0][0], rtol=1e-6)
        np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)

    def test_the_step_can_be_planned(self, config, run):
        """The step compiles from shapes alone, and its costs are counted."""
        setup = self.setup_on(config, run, "data=2,fsdp=2,tensor=2")
        lowered, batch = setup.lower(*setup.network.largest_batch)
        assert batch_shape(batch)[0] % setup.placement.num_batch_shards == 0
        assert lowered.compile().memory_analysis() is not None
        costs = setup.costs(batch)
        assert costs.computed_flops >= costs.flops == setup.training_flops(batch) > 0
        counted = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(setup.network.net.shapes))
        assert setup.network.num_parameters == counted

    def test_mistakes_are_refused(self, config, tmp_path):
        """A mistake raises one of our errors, and leaves no run behind."""
        for number, (settings, message) in enumerate(self.refused):
            out = tmp_path / str(number)
            with pytest.raises((ConfigError, DataError), match=message):
                jaxformer.train(changed(config, settings), out, console=quiet())
            assert not (out / "log.jsonl").exists()

    def test_another_configuration_is_refused(self, config, run):
        with pytest.raises(ConfigError, match="another configuration: seed was"):
            jaxformer.train(dataclasses.replace(config, seed=config.seed + 1), run, console=quiet())

    def test_other_data_is_refused(self, config, run):
        """For resuming and for scoring: the data now held out may have been trained on."""
        with pytest.MonkeyPatch.context() as patch:
            self.change_training_data(config, patch)
            with pytest.raises(ConfigError, match="other data"):
                jaxformer.train(config, run, console=quiet())
            with pytest.raises(ConfigError, match="other data"):
                jaxformer.evaluate(run, object(), split="validation")

    def test_scored_averaged_and_loaded(self, config, run, monkeypatch):
        """The predictor of any checkpoint is loaded by one call, from a string or a path; scores become a page."""
        assert jaxformer.load(str(run), checkpoint="2").steps == (2,)
        assert jaxformer.average(run, last=2) == [4, 6]
        predictor = jaxformer.load(run, checkpoint="average")
        assert predictor.steps == (4, 6)
        rows = {}
        scores = jaxformer.evaluate(
            run, predictor, split="validation", say=lambda text: None, on_examples=rows.__setitem__
        )
        sampled = [score for part in scores.values() for score in part if score.sample]
        assert all(math.isfinite(score.value) for part in scores.values() for score in part)
        assert [score.sample.score() for score in sampled] == pytest.approx([score.value for score in sampled])
        assert bool(sampled) == self.has_intervals
        report = reports.report(run, config, reports.Scored(scores, rows), facts={}, commands=lambda name: "")
        assert report.curves
        assert report.seconds
        assert all(example.texts for example in report.examples)
        monkeypatch.setattr(pages_of_reports, "NUM_VIEWS", 1)
        assert len(pages_of_reports.page(report, reports.look(config, predictor, report)).encode()) < 6_000_000
        with pytest.raises(ConfigError, match="no checkpoint 'bets'"):
            jaxformer.load(run, checkpoint="bets")

    def test_its_attention_is_shown(self, config, run, tmp_path, capsys):
        """Every row of every map is a distribution over what its columns name; commands show it in each form."""
        if not self.attentions:
            pytest.skip("the task shows none")
        text = self.seen(tmp_path)
        view = jaxformer.load(run).view(text)
        assert set(view.attentions) == {*self.attentions}
        for attention in view.attentions.values():
            assert attention.weights.shape[2:] == (len(attention.target), len(attention.source))
            np.testing.assert_allclose(attention.weights.sum(-1), 1, atol=1e-4)
            assert len(attention.predictions) in (0, len(attention.target))
        assert main(["inspect", str(run), text, "--html", str(tmp_path / "page.html")]) == 0
        for kind in self.attentions:
            picture = str(tmp_path / f"{kind}.png")
            assert main(["inspect", str(run), text, "--kind", kind, "--layer", "-1", "--out", picture]) == 0
        expected = [str(tmp_path / "page.html"), *(str(tmp_path / f"{kind}.png") for kind in self.attentions)]
        assert [line for line in capsys.readouterr().out.splitlines() if line.startswith(str(tmp_path))] == expected

    def test_warm_start(self, config, run, tmp_path):
        """With `init_from`, every parameter is the other run's; a part of another shape is new, and listed."""
        out, text = tmp_path / "warm", io.StringIO()
        short = changed(config, {"init_from": f"{run}:4", "train": {"steps": 1}, "seed": config.seed + 7})
        jaxformer.train(short, out, console=Console(file=text, width=500))
        about = json.loads((out / "init.json").read_text())
        setup = self.setup_on(config, run)
        assert len(about["taken"]) == len(jax.tree.leaves(setup.network.net.shapes))
        assert (about["new"], about["unused"]) == ({}, [])
        assert f"{len(about['taken'])} parameters taken, 0 new, 0" in text.getvalue()
        assert f" {setup.network.unit}/s" in text.getvalue()
        assert f"{setup.size} on " in text.getvalue()
        assert ("smoothed loss" in text.getvalue()) == bool(setup.label_smoothing)
        assert log_of(out)[0].get("label_smoothing", 0) == setup.label_smoothing
        first = next(entry["loss"] for entry in log_of(out))
        fifth = next(entry["loss"] for entry in log_of(run) if entry["step"] == 5)
        new = max(entry["loss"] for entry in log_of(run) if entry["step"] <= 2)  # one batch alone may be easy by chance
        assert first < 1.1 * fifth < 1.1 * new
