"""``jaxformer train``: refusals before anything starts, and exit codes."""

import errno
import os
import pathlib
import re
import subprocess
import sys
import time
import types

import pytest

from jaxformer.cli import runtime, train
from jaxformer.cli.main import main
from jaxformer.errors import ConfigError
from jaxformer.tasks import registry, rundir, runner


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--train.steps", "many"], "--train.steps: got 'many', expected int"),
        (["dmeo"], "did you mean 'demo'"),
        (["demo", "--model.num-heads", "3"], "must be divisible by num_heads"),
        (["--name", "demo", "translation"], "CONFIG comes before its settings: jaxformer train CONFIG ... --name ..."),
        (["--train.steps", "20", "demo"], "CONFIG comes before its settings: jaxformer train CONFIG ... --train.steps"),
        (["--train.steps=20", "--model.num-heads=3", "demo"], "must be divisible by num_heads"),
        (["demo", "--data-dir", ""], "the path of --data-dir is empty"),
    ],
)
def test_typing_errors(tmp_path, monkeypatch, capsys, arguments, message):
    """Exit code 2, one message, and nothing written."""
    monkeypatch.chdir(tmp_path)
    assert main(["train", *arguments, "--out", "x"]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["write_text", "write_provenance"])
def test_a_full_disk_at_the_start_leaves_no_files(name, tmp_path, monkeypatch, capsys):
    """The same command is not refused later."""
    (tmp_path / "a.txt").write_text("to be or not to be\n" * 20)
    words = ["train", "language_model", "--data.text", str(tmp_path / "a.txt"), "--out", str(tmp_path / "new" / "run")]
    monkeypatch.setattr(runtime, "join", lambda config, out, devices: None)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a file")

    monkeypatch.setattr(rundir, name, full)
    for _ in range(2):
        assert main([*words, "--data.cache", str(tmp_path)]) == 1
        assert capsys.readouterr().err.endswith("No space left on device: 'a file'\n")
        assert not (tmp_path / "new").exists()


@pytest.fixture
def trained(monkeypatch):
    """The configurations of trainings, which are not run; each ends with the reason in `trained.reason`."""
    calls = types.SimpleNamespace(configs=[], joined=[], profile=None, reason="done")

    def fit(config, out, console, profile, hooks, began):
        assert 0 <= time.monotonic() - began < 3600
        calls.profile = profile
        calls.configs.append(config)
        return types.SimpleNamespace(reason=calls.reason)

    monkeypatch.setattr(runner, "train", fit)
    monkeypatch.setattr(runtime, "join", lambda config, out, devices: calls.joined.append((out.name, devices)))
    return calls


@pytest.mark.parametrize(
    ("reason", "code"), [("done", 0), ("patience", 0), ("terminated", 85), ("time", 85), ("interrupted", 130)]
)
def test_the_exit_code_gives_the_reason_for_the_end(trained, tmp_path, reason, code):
    """85 tells a scheduler to run the same command again."""
    trained.reason = reason
    assert train.main(["demo", "--out", str(tmp_path / "run")]) == code


SIGNALED = """
import os, signal, sys
from jaxformer.cli import main
from jaxformer.training.phase_timer import PhaseTimer

PhaseTimer.report = lambda timer: os.kill(os.getpid(), signal.SIGTERM)
sys.argv[0] = "jaxformer"
sys.exit(main.script())
"""


@pytest.mark.full
def test_sigterm_after_the_end_does_not_ask_for_another_start(tmp_path):
    """The exit code was 85, which puts a completed job back into the queue."""
    (tmp_path / "a.txt").write_text("to be or not to be\n" * 20)
    words = (
        "train language_model --data.text a.txt --data.length 8 --model.d_model 8 --model.num-heads 1 --model.d_ff 8"
    )
    words += " --model.num-layers 1 --train.steps 2 --optimizer.warmup-steps 1 --out run --data.cache ."
    known = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[2])}
    command = [sys.executable, "-c", SIGNALED, *words.split()]
    done = subprocess.run(command, cwd=tmp_path, env=known, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "done at step 2" in done.stderr


def test_settings_and_options_reach_the_run(trained, tmp_path):
    words = [
        "demo",
        "--out",
        str(tmp_path / "run"),
        "--data-dir",
        "corpora",
        "--devices",
        "8",
        "--train.steps=20",
        "--profile=5",
    ]
    other = f"{tmp_path / 'other'}:last"
    (tmp_path / "other").mkdir()
    rundir.write_config(tmp_path / "other", "translation", registry.configure("demo"))
    assert train.main([*words, "--mesh", "data=8", "--seed", "3", "--init-from", other, "--profile=5"]) == 0
    (config,) = trained.configs
    assert (config.data.directory, config.train.steps, config.mesh) == ("corpora", 20, "data=8")
    assert (config.seed, config.init_from) == (3, other)
    assert trained.joined == [("run", 8)]
    assert trained.profile == "5"


def test_a_run_needs_an_output_directory(trained, capsys):
    with pytest.raises(ConfigError, match=re.escape("--out RUN is missing")):
        train.main(["demo"])
    assert trained.configs == []


def test_settings_are_printed_with_their_replacements(trained, capsys):
    assert train.main(["demo", "--settings", "--train.steps", "7"]) == 0
    assert "  --train.steps 7\n" in capsys.readouterr().out
    assert trained.configs == []
