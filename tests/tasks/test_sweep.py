"""Sweeps: the trainings of a grid, resumption, failures, exit codes, and what is reported; trainings are imitated."""

import json
import shutil
import types

import pytest

from jaxformer.cli import runtime
from jaxformer.cli.main import main
from jaxformer.config import changed
from jaxformer.errors import ConfigError, DataError
from jaxformer.tasks import comparison, registry, rundir, runner, sweep
from jaxformer.training import NonFiniteError

LOSSES = {("0.0", 0): 2.0, ("0.0", 1): 4.0, ("0.2", 0): 5.0, ("0.2", 1): 7.0, ("0.1", 0): 1.0}
NO_DROPOUT = {"model": {"dropout": 0.0}}


def fails(*_):
    raise DataError("no test data")


@pytest.fixture
def trained(monkeypatch):
    """Trainings that only write the files of a run; `ends` has other ends by the number of the training."""
    calls = types.SimpleNamespace(configs=[], ends={}, scored=[], data={})

    def train(config, out, *, hooks=(), **_):
        end = calls.ends.get(len(calls.configs), "done")
        calls.configs.append(config)
        if isinstance(end, Exception):
            raise end
        (out / "checkpoints" / "20").mkdir(parents=True, exist_ok=True)
        (out / "provenance.json").write_text(json.dumps({"data": calls.data}))
        try:
            for hook in hooks:
                hook.started(None)
        except ConfigError:
            shutil.rmtree(out)  # as a run without steps is removed
            raise
        rundir.write_config(out, config.task, config)
        loss = LOSSES[str(config.model.dropout), config.seed]
        entries = [{"step": 10, "loss": 9.0, "validation_loss": loss, "validation_bleu": 30.0}]
        entries += [{"step": 20, "loss": 8.0, "validation_loss": loss + 1, "validation_bleu": loss}]
        (out / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
        (out / "time.json").write_text(json.dumps([{"ended": end, "seconds": {}}]))
        return types.SimpleNamespace(reason=end)

    monkeypatch.setattr(runner, "train", train)
    monkeypatch.setattr(runtime, "start", lambda **_: None)
    calls.draw = comparison.draw
    monkeypatch.setattr(comparison, "draw", lambda rows, path: None)  # a second each
    return calls


def words(tmp_path, *more):
    return ["sweep", "demo", "--out", str(tmp_path), "--seeds", "2", "--set", "model.dropout=0,0.2", *more]


def test_a_sweep_continues_where_it_was_stopped(trained, tmp_path, capsys):
    """A training that was stopped is the first of the next start; complete ones are not started again."""
    trained.ends[1] = "terminated"
    assert main(words(tmp_path)) == 85
    assert [(config.model.dropout, config.seed) for config in trained.configs] == [(0.0, 0), (0.2, 0)]
    capsys.readouterr()
    assert main(words(tmp_path, "--plan")) == 0
    plan = capsys.readouterr().out.splitlines()
    assert plan[0] == f"{tmp_path}/dropout=0/seed-0: model.dropout 0, seed 0, 2,000 steps: complete"
    assert [line.rpartition(": ")[2] for line in plan[1:]] == ["at step 20, stopped by SIGTERM", "new", "new"]
    assert main(words(tmp_path)) == 0
    assert [(config.model.dropout, config.seed) for config in trained.configs[2:]] == [(0.2, 0), (0.0, 1), (0.2, 1)]
    assert main(words(tmp_path)) == 0
    assert len(trained.configs) == 5
    assert main(words(tmp_path, "--train.steps", "3000")) == 0  # a complete training has more to do
    assert [config.train.steps for config in trained.configs[5:]] == [3000] * 4


def test_means_and_intervals_of_the_best_results(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(comparison, "draw", trained.draw)
    assert main(words(tmp_path, "--json")) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((tmp_path / "sweep.json").read_text())
    first, second = report["summary"]
    assert (first["settings"], second["settings"]) == ({"model.dropout": "0"}, {"model.dropout": "0.2"})
    assert first["results"]["validation_loss"]["values"] == [2.0, 4.0]
    assert first["results"]["validation_loss"]["mean"] == 3.0
    assert first["results"]["validation_loss"]["half_width"] == pytest.approx(12.7062, abs=1e-4)  # t(1) = 12.7062
    assert second["results"]["validation_bleu"]["values"] == [30.0, 30.0]  # the highest, the loss has the lowest
    assert [row["seed"] for row in report["trainings"]] == [0, 0, 1, 1]
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(comparison, "draw", lambda rows, path: None)
    assert main(words(tmp_path)) == 0
    assert "validation_loss\n  model.dropout 0    3.0000 ± 12.7062  (2.0000, 4.0000)\n" in capsys.readouterr().out


def test_a_loss_that_is_not_finite_does_not_end_the_others(trained, tmp_path, capsys):
    trained.ends[1] = NonFiniteError(3, 2, float("nan"))
    assert main(words(tmp_path)) == 2
    said = capsys.readouterr()
    assert len(trained.configs) == 4
    assert "model.dropout 0.2  7.0000\n" in said.out  # of the seed that is complete
    assert said.err.splitlines()[-1].startswith("model.dropout 0.2, seed 0 failed: ")


def test_runs_of_other_settings_are_refused_before_anything_starts(trained, tmp_path, capsys):
    assert main(words(tmp_path)) == 0
    assert main(words(tmp_path, "--model.d_model", "64")) == 2
    assert "holds a run of another configuration: model.d_model" in capsys.readouterr().err
    assert len(trained.configs) == 4


def test_data_that_changed_are_refused_before_a_step(trained, tmp_path, capsys):
    """Whatever the other settings are; a run that exists is found before anything starts."""
    trained.data = {"train": "a"}
    assert main(words(tmp_path, "--seeds", "1")) == 0
    trained.data = {"train": "b"}
    assert main(words(tmp_path)) == 2
    first, second, other = (tmp_path / name for name in ("dropout=0/seed-0", "dropout=0/seed-1", "dropout=0.2/seed-0"))
    said = "{} and {} have the same settings of data, but other data, by its hash: data.train was 'a', now 'b'"
    assert said.format(first, second) in capsys.readouterr().err
    assert len(trained.configs) == 3
    (other / "provenance.json").write_text(json.dumps({"data": trained.data}))
    assert main(words(tmp_path)) == 2
    assert said.format(first, other) in capsys.readouterr().err
    assert len(trained.configs) == 3
    assert main(words(tmp_path, "--seeds", "1", "--data.grammar_pairs", "300", "--out", str(tmp_path / "more"))) == 0


@pytest.mark.parametrize("several", [False, True])
def test_scores_without_test_data_are_refused_before_a_training(trained, tmp_path, capsys, monkeypatch, several):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text("one\ntwo\n")
    names = "data.corpora.x" if several else "data"
    files = [f"--{names}.{part}source=a" for part in ("", "validation_")]
    files += [f"--{names}.{part}target=a" for part in ("", "validation_")]
    options = ["sweep", "translation", *files, "--data.held_out=0", "--seeds=1", "--out=sweep", "--model.dropout=0"]
    assert main([*options, "--evaluate"]) == 2
    assert "no test data" in capsys.readouterr().err
    assert not (tmp_path / "sweep").exists()
    assert main(options) == 0


def test_a_report_is_saved_before_scores_that_fail(trained, tmp_path):
    todo = sweep.trials(tmp_path, {}, [0], lambda values, run: changed(registry.configure("demo"), NO_DROPOUT))
    saved = []
    with pytest.raises(DataError):
        sweep.train(todo, say=str, score=fails, each=lambda: saved.append(sweep.report(todo)["summary"]))
    assert len(saved) == 1


def test_a_plan_is_no_json(trained, tmp_path, capsys):
    assert main(words(tmp_path, "--plan", "--json")) == 2
    assert "--plan prints a line for each training: --json has no effect" in capsys.readouterr().err


def test_the_time_limit_holds_for_all_together(trained, tmp_path, monkeypatch):
    config = changed(registry.configure("demo"), {"train": {"minutes": 10.0}})
    configure = lambda values, run: changed(config, {"seed": int(values["seed"])})
    todo = sweep.trials(tmp_path, {}, [0, 1, 2], configure)
    now = iter([240.0, 700.0])
    monkeypatch.setattr(sweep, "time", types.SimpleNamespace(monotonic=lambda: next(now)))
    assert sweep.train(todo, say=lambda text: None, began=0.0) == ("time", {})
    assert [config.train.minutes for config in trained.configs] == [6.0]


def test_complete_runs_are_scored_once(trained, tmp_path):
    """A run that was stopped while it was scored is scored by the next start."""
    config = registry.configure("demo")
    todo = sweep.trials(tmp_path, {}, [0], lambda values, run: changed(config, NO_DROPOUT))
    scored = []
    for _ in range(2):
        sweep.train(todo, say=lambda text: None, score=scored.append)
    (todo[0].path / "scores-test-best.json").write_text("{}")
    sweep.train(todo, say=lambda text: None, score=scored.append)
    assert scored == [todo[0].path] * 2


def test_folders_have_names_that_differ(tmp_path):
    values = {"optimizer.learning_rate": "1e-3", "model.learning_rate": "a/b"}
    assert sweep.folder(values).startswith("optimizer.learning_rate=1e-3,model.learning_rate=")
    assert "/" not in sweep.folder(values)
    assert len(sweep.folder({f"name{i}": "0" for i in range(30)})) < 50
    with pytest.raises(ConfigError, match="are the same training"):
        sweep.trials(tmp_path, {"a": ["1", "1.0"]}, [0], lambda values, run: registry.configure("demo"))
