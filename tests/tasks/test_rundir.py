"""Run directories: nothing is overwritten, and a run is resumed only as it was begun."""

import dataclasses
import datetime
import json
import subprocess
import sys

import pytest

import jaxformer
from jaxformer.errors import ConfigError
from jaxformer.inspection import plots
from jaxformer.tasks import registry, rundir
from tests.contracts.task import quiet
from tests.permissions import read_only
from tests.tasks.small import small


def test_provenance_has_every_start(tmp_path, monkeypatch):
    """With date, command, commit and devices."""
    monkeypatch.chdir(tmp_path)
    git = lambda *words: subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout.strip()
    monkeypatch.setattr(rundir, "__file__", str(tmp_path / "outside" / "rundir.py"))
    (tmp_path / "outside").mkdir()
    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    rundir.write_provenance(tmp_path, data={"train": "1"}, start={"devices": "1 x cpu"})
    (tmp_path / "a").write_text("2")
    rundir.write_provenance(tmp_path, data={"train": "1"}, start={"devices": "8 x cpu"})
    first, second = rundir.read_json(tmp_path / "provenance.json")["starts"]
    assert first["commit"] == second["commit"] == git("rev-parse", "HEAD")
    assert (first["dirty"], second["dirty"]) == (False, True)
    assert (first["devices"], second["devices"]) == ("1 x cpu", "8 x cpu")
    assert first["command"] == sys.orig_argv
    assert datetime.datetime.fromisoformat(first["date"]) <= datetime.datetime.now(datetime.UTC)


@pytest.mark.parametrize(("setting", "dirty"), [("core.fsmonitor", True), ("filter.own.clean", None)])
def test_the_programs_of_a_repository_are_not_run(tmp_path, monkeypatch, setting, dirty):
    """It may be another user's archive, whose git settings name programs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rundir, "__file__", str(tmp_path / "outside" / "rundir.py"))
    git = lambda *words: subprocess.run(["git", *words], check=True, capture_output=True)
    git("init", "-q")
    (tmp_path / "a").write_text("1")
    (tmp_path / ".gitattributes").write_text("* filter=own\n")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    (tmp_path / "a").write_text("2")
    git("config", setting, "touch was_run; cat")
    rundir.write_provenance(tmp_path)
    (start,) = rundir.read_json(tmp_path / "provenance.json")["starts"]
    assert start["commit"]
    assert start["dirty"] is dirty
    assert not (tmp_path / "was_run").exists()


def test_a_repository_path_need_not_be_utf8(tmp_path, monkeypatch):
    folder = tmp_path / "caf\udce9"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(rundir, "__file__", str(tmp_path / "rundir.py"))
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first", "--allow-empty"], check=True
    )
    rundir.write_provenance(tmp_path)
    (start,) = rundir.read_json(tmp_path / "provenance.json")["starts"]
    assert start["repository"] == str(folder)


def test_run_directories(tmp_path):
    config, run = small(), tmp_path / "run"
    assert rundir.holds_run(run) is False
    assert not run.exists()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file is a file; a run is a directory"):
        rundir.holds_run(tmp_path / "file")
    rundir.claim(run, "translation", config, ())
    assert rundir.holds_run(run) is False  # nothing of it has happened
    (run / "checkpoints").mkdir()  # as `jaxformer evaluate` leaves it, where there is nothing to evaluate
    assert rundir.holds_run(run) is False
    (run / "checkpoints" / "10").mkdir()
    assert rundir.holds_run(run) is True
    assert registry.read_config(run) == config
    rundir.check_config(run, config, dataclasses.replace(config, mesh="data=8"))
    with pytest.raises(ConfigError, match="seed was 0, now 1"):
        rundir.check_config(run, config, dataclasses.replace(config, seed=1))


def test_an_average_without_checkpoints_is_not_trained_again(tmp_path):
    """Training from the first step would empty the log."""
    rundir.claim(tmp_path, "translation", small(), ())
    (tmp_path / "log.jsonl").write_text('{"step": 7, "loss": 2.0}\n')
    (tmp_path / "average").mkdir()
    with pytest.raises(ConfigError, match="holds averaged parameters but no checkpoints"):
        rundir.holds_run(tmp_path)
    (tmp_path / "checkpoints" / "7").mkdir(parents=True)
    assert rundir.holds_run(tmp_path)


@pytest.mark.parametrize(
    ("config", "folder", "message"),
    [
        ('{"model_type": "gpt2"}', "onnx", "holds the config.json of another program"),
        ('{"model_type"', "onnx", "cannot read"),
        ('{"task": "translation", "config": {}}', "average", "holds averaged parameters but no checkpoints"),
    ],
)
def test_a_hugging_face_folder_is_not_overwritten(tmp_path, config, folder, message):
    """Its config.json would be replaced, and its tokenizer removed."""
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "tokenizer.json").write_text("learned")
    (tmp_path / folder).mkdir()
    for use in (rundir.holds_run, lambda out: jaxformer.train(small(), out, console=quiet())):
        with pytest.raises(ConfigError, match=message):
            use(tmp_path)
    assert (tmp_path / "config.json").read_text() == config
    assert (tmp_path / "tokenizer.json").read_text() == "learned"


def test_a_refused_run_leaves_nothing(tmp_path):
    """Unless its training had begun, or the folder holds other files."""
    run, other, begun = tmp_path / "run", tmp_path / "other", tmp_path / "begun"
    for out in (run, other, begun):
        rundir.claim(out, "translation", small(), ("tokenizer.model",))
        (out / "tokenizer.model").write_bytes(b"pieces")
        (out / "checkpoints").mkdir()
    (other / "notes").touch()
    (begun / "log.jsonl").write_text('{"step": 1}\n')
    (run / "log.jsonl").touch()  # its first step failed
    (run / "time.json").touch()
    (run / "tensorboard").mkdir()
    (run / "tensorboard" / "events").touch()
    (run / "profile").mkdir()
    for out in (run, other, begun):
        rundir.release(out, ("tokenizer.model",))
    assert list(run.iterdir()) == []
    assert [path.name for path in other.iterdir()] == ["notes"]
    assert len(list(begun.iterdir())) == 4


def test_files_of_a_killed_start_do_not_block_a_new_one(tmp_path):
    """A temporary config.json or folder, and the lock: the same command begins again."""
    (tmp_path / ".tmp-a1b2c3d4-config.json").write_text('{"task": ')
    (tmp_path / ".tmp-a1b2c3d4-average" / "7").mkdir(parents=True)
    (tmp_path / ".lock").write_text("{}")
    assert rundir.holds_run(tmp_path) is False
    rundir.claim(tmp_path, "translation", small(), ())
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "config.json"]
    (tmp_path / ".tmp-mine").mkdir()  # which has no name of a temporary folder, stays
    rundir.claim(tmp_path, "translation", small(), ())
    assert (tmp_path / ".tmp-mine").is_dir()


def test_other_files_are_not_changed(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="not empty"):
        rundir.holds_run(tmp_path / "other")
    assert (tmp_path / "other" / "thesis.tex").read_text() == "years of work"


def test_a_vocabulary_of_an_earlier_attempt_is_removed(tmp_path):
    (tmp_path / "tokenizer.model").write_text("old")
    rundir.claim(tmp_path, "translation", small(), ("tokenizer.model", "tokenizer.json"))
    assert not (tmp_path / "tokenizer.model").exists()


def test_damaged_provenance_is_one_error(tmp_path):
    (tmp_path / "provenance.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot read"):
        rundir.check_data(tmp_path, {"train": "a"})


def test_parameters_are_used_with_their_vocabulary_only(tmp_path):
    """Another vocabulary of the same size would silently give other texts."""
    rundir.check_vocabulary(tmp_path, "one")  # from before this was saved
    rundir.write_provenance(tmp_path, tokenizer="one")
    rundir.check_vocabulary(tmp_path, "one")
    with pytest.raises(ConfigError, match="another vocabulary than in training, by its hash: was one, now two"):
        rundir.check_vocabulary(tmp_path, "two")


def test_a_file_name_that_is_not_utf8_is_saved_and_read(tmp_path):
    """File names on Linux are bytes; Python has surrogates for bytes that are not text."""
    config = small(cache="caf\udce9 é")
    rundir.claim(tmp_path, "translation", config, ())
    assert registry.read_config(tmp_path) == config
    readable = small(cache="é")
    rundir.claim(tmp_path, "translation", readable, ())
    assert '"é"' in (tmp_path / "config.json").read_text(encoding="utf-8")


def test_a_config_with_a_byte_order_mark(tmp_path):
    rundir.claim(tmp_path, "translation", small(), ())
    text = (tmp_path / "config.json").read_bytes()
    (tmp_path / "config.json").write_bytes(b"\xef\xbb\xbf" + text)
    assert registry.read_config(tmp_path) == small()


def test_a_run_path_must_be_utf8(tmp_path):
    """Orbax would fail at the first checkpoint."""
    with pytest.raises(ConfigError, match=r"caf.udce9' is not UTF-8"):
        rundir.holds_run(tmp_path / "caf\udce9")


def test_a_name_that_is_too_long_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot look into .*: File name too long; choose another"):
        rundir.holds_run(tmp_path / ("x" * 300))


LOG = "".join(f"{json.dumps({'step': step, 'loss': 5 / step})}\n" for step in range(1, 9))


@pytest.fixture
def logged(tmp_path):
    """A run with a name and a log."""
    (tmp_path / "config.json").write_text(json.dumps({"task": "vision", "config": {"name": "digits"}}))
    (tmp_path / "log.jsonl").write_text(LOG)
    return tmp_path


def test_curves_are_drawn_from_the_log_under_the_name_of_the_run(logged, monkeypatch, draw_curves):
    drawn, loss_curves = [], plots.loss_curves
    monkeypatch.setattr(plots, "loss_curves", lambda *log, title: drawn.append(title) or loss_curves(*log, title=title))
    draw_curves(rundir.Curves(logged, pytest.fail), 8, "NonFiniteError: step 8")
    assert not (logged / "curves.png").exists()
    draw_curves(rundir.Curves(logged, pytest.fail), 8, "done")
    assert (logged / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert drawn == ["digits"]


def test_curves_that_cannot_be_written_do_not_end_a_training(logged, draw_curves):
    said = []
    with read_only(logged):
        draw_curves(rundir.Curves(logged, said.append), 8, "done")
    assert said == [f"warning: {logged / 'curves.png'} is not saved: Permission denied"]


def test_curves_are_not_written_through_a_link(logged, draw_curves):
    """A link in another user's run may point anywhere."""
    (logged / "curves.png").symlink_to(logged / "outside")
    draw_curves(rundir.Curves(logged, pytest.fail), 8, "done")
    assert not (logged / "outside").exists()
    assert not (logged / "curves.png").is_symlink()


@pytest.mark.full
def test_training_from_python_draws_the_curves(tmp_path, monkeypatch, draw_curves):
    """Only the command did."""
    monkeypatch.setattr(rundir.Curves, "ended", draw_curves)
    (tmp_path / "a.txt").write_text("to be or not to be\n" * 20)
    model = {"d_model": 8, "num_heads": 1, "d_ff": 8, "num_layers": 1}
    data = {"text": str(tmp_path / "a.txt"), "length": 8, "cache": str(tmp_path)}
    config = jaxformer.configure(
        "language_model", model=model, data=data, train={"steps": 2}, optimizer={"warmup_steps": 1}
    )
    jaxformer.train(config, tmp_path / "run", console=quiet())
    assert (tmp_path / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")
