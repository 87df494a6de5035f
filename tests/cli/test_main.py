"""Which errors become one line and which keep their traceback."""

import dataclasses
import importlib
import importlib.metadata
import io
import os
import pathlib
import shlex
import subprocess
import sys
import types

import numpy as np
import pytest

from jaxformer.cli import arguments, main, translate
from jaxformer.errors import ConfigError, DataError, JaxformerError
from jaxformer.inspection.attention_maps import Map, as_text
from jaxformer.tasks import registry
from jaxformer.tasks.translation import TranslationConfig, Translator


def outcome(monkeypatch, capsys, command):
    """The exit code and message of a `jaxformer demo` that does this instead."""
    module = types.SimpleNamespace(main=lambda _: command())
    monkeypatch.setitem(sys.modules, "jaxformer.cli.demo", module)
    return main.main(["demo"]), capsys.readouterr().err


def raise_it(error):
    raise error


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigError("no"), 2), (DataError("no"), 2), (OSError(28, "No space left"), 1), (KeyboardInterrupt(), 130)],
)
def test_exit_codes(monkeypatch, capsys, error, code):
    found, said = outcome(monkeypatch, capsys, lambda: raise_it(error))
    assert found == code
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    "error", [MemoryError("Unable to allocate 7 TiB"), RuntimeError("RESOURCE_EXHAUSTED: Out of memory\nallocating")]
)
def test_no_memory_left_is_one_line(monkeypatch, capsys, error):
    found, said = outcome(monkeypatch, capsys, lambda: raise_it(error))
    assert found == 1
    assert said.startswith("jaxformer demo: out of memory: ")
    assert said.endswith("; choose a smaller batch or model\n")
    assert len(said.splitlines()) == 1


def test_an_error_carries_its_exit_code(monkeypatch, capsys):
    class Tired(JaxformerError):
        exit_code = 7

    assert outcome(monkeypatch, capsys, lambda: raise_it(Tired("enough"))) == (7, "jaxformer demo: enough\n")


def test_every_error_for_users_has_an_exit_code():
    """Imported or not, each is a `JaxformerError`, whose code the command line returns."""
    for module in ("data.fetch", "training.checkpoint", "training.recorder", "multihost.cluster"):
        importlib.import_module(f"jaxformer.{module}")
    codes = {
        kind.__name__: kind.exit_code for kind in JaxformerError.__subclasses__() if "jaxformer" in kind.__module__
    }
    assert {"ConfigError": 2, "DataError": 2, "CheckpointError": 1, "DistributedError": 1}.items() <= codes.items()


def a_bug_of_ours():
    as_text(Map(("one",), ("two", "rows"), np.ones((1, 1))))  # zip's ValueError, in a line of ours


@pytest.mark.parametrize("bug", [a_bug_of_ours, lambda: raise_it(ValueError("of another package")), lambda: {}["x"]])
def test_bugs_keep_their_traceback(monkeypatch, capsys, bug):
    with pytest.raises((ValueError, KeyError)):
        outcome(monkeypatch, capsys, bug)


def test_a_missing_extra_is_named(monkeypatch, capsys):
    code, said = outcome(monkeypatch, capsys, lambda: raise_it(ModuleNotFoundError("No grain", name="grain.python")))
    assert (code, "pip install 'jaxformer[train]'" in said) == (2, True)
    with pytest.raises(ModuleNotFoundError):
        outcome(monkeypatch, capsys, lambda: raise_it(ModuleNotFoundError("No mine", name="mine")))


NO_CUDA = pytest.mark.skipif(bool(list(importlib.metadata.entry_points(group="jax_plugins"))), reason="it has a plugin")


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("JAX_NUM_CPU_DEVICES", "many", 'Invalid value "many" for JAX flag jax_num_cpu_devices'),
        pytest.param("JAX_PLATFORMS", "abacus", "'abacus' is not in the list of known", marks=pytest.mark.full),
        pytest.param("JAX_PLATFORMS", "cuda", "finds no device, JAX_PLATFORMS=cuda", marks=[pytest.mark.full, NO_CUDA]),
    ],
)
def test_what_jax_is_told_wrong(tmp_path, variable, text, message):
    words = [sys.executable, "-m", "jaxformer.cli.main", "train", "demo", "--out", "run"]
    known = {**os.environ, variable: text, "PYTHONPATH": str(pathlib.Path(__file__).parents[2])}
    done = subprocess.run(words, cwd=tmp_path, env=known, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_stops_early_is_no_error(tmp_path, unbuffered):
    program = "import sys; from jaxformer.cli.main import main; sys.exit(main(['configs']))"
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()  # before anything is written
    assert process.stderr is not None
    with process.stderr as stderr:
        said = stderr.read()
    assert (process.wait(timeout=120), said) == (0, b"")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--model.d_model", "abc"], "Error parsing --model.d-model: invalid literal for int() with base 10: 'abc'"),
        (["--seed", "2.5"], "Error parsing --seed: invalid literal for int() with base 10: '2.5'"),
        (["--seed"], "Missing value for argument '--seed'. Expected 1 values."),
        (["stray"], "Unrecognized options: stray"),
        (["--model.num-heads", "3"], "Error parsing model: d_model (512) must be divisible by num_heads (3)"),
        (["--modle.d_model=3"], "unknown setting --modle.d_model; did you mean 'model.d_model'?"),
    ],
)
def test_bad_settings_say_what_is_wrong_and_no_more(given, message):
    with pytest.raises(ConfigError) as caught:
        arguments.override(TranslationConfig(), given)
    assert str(caught.value) == message


def test_settings_reach_their_fields():
    given = ["--model.d_model=64", "--model.num-heads", "4", "--data.columns", "1", "0", "--train.no-tensorboard"]
    config = arguments.override(TranslationConfig(), given)
    assert (config.model.d_model, config.model.num_heads, config.data.columns) == (64, 4, (1, 0))
    assert not config.train.tensorboard
    assert config.optimizer == TranslationConfig().optimizer


@pytest.mark.parametrize("given", [["--model.remat", "True"], ["--model.remat=true"], ["--model.remat"]])
def test_what_is_true_or_false_is_given_as_a_word_or_a_flag(given):
    assert arguments.override(TranslationConfig(), [*given, "--train.tensorboard=False"]).model.remat
    assert not arguments.override(TranslationConfig(), ["--seed=1", "--train.tensorboard", "False"]).train.tensorboard


@pytest.mark.parametrize("config", [TranslationConfig(), registry.resolve("demo"), registry.resolve("language_model")])
def test_settings_can_be_given_as_they_are_printed(config):
    lines = [line for line in arguments.settings_help(config).splitlines() if line.startswith("  --")]
    assert len(lines) == len(arguments.paths(config))
    for line in lines:
        assert arguments.override(config, shlex.split(line)) == config
    words = [word for line in lines for word in shlex.split(line)]
    assert arguments.override(dataclasses.replace(config, name="another", seed=3), words) == config


class Echo(Translator):
    def __init__(self):
        """A translator without a model."""

    def translate(self, sentences, *, first=1, progress=None):
        if "too long" in sentences:
            raise DataError(f"sentence {first + sentences.index('too long')} is too long")
        return [sentence.upper() for sentence in sentences]


@pytest.fixture
def echo(monkeypatch):
    monkeypatch.setattr(translate, "load", lambda options, settings, command: (None, Echo()))


def test_options_may_stand_before_the_sentences(echo, capsys):
    assert translate.main(["run", "--decode.beam_size", "2", "a dog", "--decode.length_penalty=0.6", "a cat"]) == 0
    assert capsys.readouterr().out == "A DOG\nA CAT\n"


def test_standard_input_is_utf8_whatever_the_locale(echo, capsys, monkeypatch):
    given = io.TextIOWrapper(io.BytesIO("été\r\n\nb\n".encode() + b"\xff\n"), encoding="ascii")
    monkeypatch.setattr(sys, "stdin", given)
    with pytest.raises(DataError, match=r"standard input, line 4: not UTF-8 \(byte 0xff\)"):
        translate.main(["run"])
    assert capsys.readouterr().out == "ÉTÉ\n\nB\n"


def standard_input(monkeypatch, data):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_standard_input_goes_to_a_file_and_to_lines(echo, capsys, monkeypatch, tmp_path):
    standard_input(monkeypatch, b"\xef\xbb\xbfa dog\na cat\n")
    assert translate.main(["run", "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "out").read_text() == "A DOG\nA CAT\n"
    standard_input(monkeypatch, b"short\ntoo long\n")
    with pytest.raises(DataError, match="sentence 2 is too long"):
        translate.main(["run"])


def test_no_sentences_are_no_lines(echo, capsys, tmp_path):
    (tmp_path / "empty").touch()
    assert translate.main(["run", "--file", str(tmp_path / "empty")]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("command", [["translate", "run"], ["inspect", "run", "--source"]])
def test_an_argument_that_is_not_utf8(capsys, command):
    with pytest.raises(SystemExit, match="2"):
        main.main([*command, "caf\udce9"])
    assert r"'caf\udce9' is not UTF-8" in capsys.readouterr().err


def test_a_picture_of_no_known_kind_is_refused_before_the_run_is_read(capsys):
    with pytest.raises(SystemExit, match="2"):
        main.main(["inspect", "nowhere", "--source", "a", "--out", "map.xyz"])
    assert "--out map.xyz: a picture is one of .png, .svg, .pdf" in capsys.readouterr().err


def test_results_are_utf8_whatever_the_locale(monkeypatch):
    monkeypatch.setitem(sys.modules, "jaxformer.cli.configs", types.SimpleNamespace(main=lambda _: print("été") or 0))
    monkeypatch.setattr(sys, "argv", ["jaxformer", "configs"])
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert main.script() == 0
    assert sys.stdout.buffer.getvalue().decode() == "été\n"
