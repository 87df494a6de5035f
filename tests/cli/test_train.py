"""``train``: refusals before anything starts, and exit codes; ``demo``: the built-in configuration, and its results."""

import dataclasses
import errno
import os
import pathlib
import re
import subprocess
import sys
import time
import types

import numpy as np
import pytest

from jaxformer import demo as grammar
from jaxformer import models, pure
from jaxformer.cli import runtime, train
from jaxformer.cli.main import main
from jaxformer.inspection import plots
from jaxformer.inspection.attention_maps import select
from jaxformer.tasks import registry, restore, rundir, runner
from jaxformer.tasks.translation import Translator, alignment
from jaxformer.tokenizers.subwords import SubwordTokenizer
from jaxformer.training import make_schedule
from tests.modules.small import drawn as drawn_params


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
    calls = types.SimpleNamespace(configs=[], joined=[], shown=[], profile=None, reason="done")

    def fit(config, out, console, began, profile=None, hooks=()):
        assert 0 <= time.monotonic() - began < 3600
        calls.profile = profile
        calls.configs.append(config)
        return types.SimpleNamespace(reason=calls.reason)

    monkeypatch.setattr(runner, "train", fit)
    monkeypatch.setattr(train, "_show", lambda run: calls.shown.append(run.name) or 0)
    monkeypatch.setattr(runtime, "join", lambda config, out, devices: calls.joined.append((out.name, devices)))
    return calls


@pytest.mark.parametrize(
    ("reason", "code"), [("done", 0), ("patience", 0), ("terminated", 85), ("time", 85), ("interrupted", 130)]
)
def test_the_exit_code_gives_the_reason_for_the_end(trained, tmp_path, reason, code):
    """85 tells a scheduler to run the same command again; a demo that was stopped is not shown."""
    trained.reason = reason
    assert train.train(["demo", "--out", str(tmp_path / "run")]) == code
    assert train.demo(["--out", str(tmp_path / "run")]) == code
    assert trained.configs == [registry.resolve("demo")] * 2
    assert trained.shown == ["run"] * (code == 0)


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
    words = f"demo --out {tmp_path}/run --data-dir corpora --devices 8 --train.steps=20 --profile=5".split()
    other = f"{tmp_path / 'other'}:last"
    (tmp_path / "other").mkdir()
    rundir.write_config(tmp_path / "other", "translation", registry.configure("demo"))
    assert train.train([*words, "--mesh", "data=8", "--seed", "3", "--init-from", other, "--profile=5"]) == 0
    (config,) = trained.configs
    assert (config.data.directory, config.train.steps, config.mesh) == ("corpora", 20, "data=8")
    assert (config.seed, config.init_from) == (3, other)
    assert trained.joined == [("run", 8)]
    assert trained.profile == "5"


def test_settings_are_printed_with_their_replacements(trained, capsys):
    assert train.train(["demo", "--settings", "--train.steps", "7"]) == 0
    assert "  --train.steps 7\n" in capsys.readouterr().out
    assert trained.configs == []


def test_settings_of_a_demo_can_be_replaced(trained, tmp_path):
    assert train.demo(["--train.steps", "800", "--out", str(tmp_path / "run")]) == 0
    assert trained.configs == [registry.configure("demo", train={"steps": 800})]


def test_the_warm_up_of_a_short_demo_is_shortened(trained, tmp_path, capsys):
    """With a line that says so; a warm-up that the user gives stays, and is refused by `runner.train`."""
    steps = ["--train.steps", "100", "--out", str(tmp_path / "run")]
    assert train.demo(steps) == 0
    assert capsys.readouterr().err == "the demo's warm-up of 200 steps does not fit in 100 steps: it has 10\n"
    assert train.demo([*steps, "--optimizer.warmup-steps", "200"]) == 0
    assert capsys.readouterr().err == ""
    lengths = [(config.train.steps, config.optimizer.warmup_steps) for config in trained.configs]
    assert lengths == [(100, 10), (100, 200)]
    make_schedule(trained.configs[0].optimizer, steps=100)


class Known(Translator):
    """A tiny untrained model that returns the translations of the grammar."""

    def translate(self, sentences, **options):
        return [KNOWN[sentence] for sentence in sentences]


SMALL = grammar.splits(num_train=300, num_test=6)
KNOWN = {p.english: p.french for p in (*SMALL.seen, *SMALL.unseen, *grammar.EXAMPLES)}


@pytest.fixture
def shows(monkeypatch):
    """Lets the command show a model with drawn parameters."""

    def prepare(net):
        tokenizer = SubwordTokenizer.train([*KNOWN, *KNOWN.values()], vocab_size=350)
        translator = Known(net, drawn_params(net.shapes), tokenizer)
        monkeypatch.setattr(grammar, "splits", lambda **_: SMALL)
        monkeypatch.setattr(registry, "read_config", lambda run: registry.resolve("demo"))
        monkeypatch.setattr(restore, "load", lambda run: translator)
        return translator

    return prepare


def test_it_scores_translates_and_draws_the_head_that_aligns_best(tmp_path, monkeypatch, capsys, shows):
    config = dataclasses.replace(
        registry.resolve("demo").model,
        **{"source_vocab_size": 350, "target_vocab_size": 350, "d_model": 8, "num_heads": 2, "d_ff": 8},
        num_encoder_layers=1,
        num_decoder_layers=1,
    )
    translator = shows(pure(models.EncoderDecoder, config))
    drawn, draw = [], plots.attention_map
    monkeypatch.setattr(plots, "attention_map", lambda words, title: drawn.append((words, title)) or draw(words))
    run = tmp_path / "my run"
    assert train._show(run) == 0

    out = capsys.readouterr().out
    rates = alignment.head_error_rates(translator, SMALL.validation)
    head = min(rates, key=rates.__getitem__)
    assert rates[head] < max(rates.values())
    assert alignment.describe(head) in out
    assert f"jaxformer translate '{run}' \"" in out
    assert f"jaxformer inspect '{run}' {alignment.options(head)} --source" in out
    for name, pairs in (("unseen sentences", SMALL.seen), ("unseen combinations", SMALL.unseen)):
        rate, diagonal = alignment.head_error_rates(translator, pairs)[head], alignment.diagonal_error_rate(pairs)
        assert re.search(rf"{name} \(6\) +{rate:.3f} +{diagonal:.3f}\n", out), out
        assert re.search(rf"{name} \(6\) +100\.00 ", out), out
    example = grammar.EXAMPLES[0]
    (words,) = alignment.word_attention(translator, [example.english], [example.french])
    ((shown, title),) = drawn
    assert title == alignment.describe(head)
    assert shown.target == (*grammar.words(example.french), "</s>")
    np.testing.assert_array_equal(shown.weights, select(words, layer=head[0], head=head[1]).weights)
    assert (run / "attention.png").read_bytes().startswith(b"\x89PNG")


def test_without_attention_no_word_is_aligned(tmp_path, capsys, shows):
    """One line reports it; the scores are still shown."""
    shows(pure(models.Seq2Seq, models.Seq2SeqConfig(350, 350, d_model=8, d_hidden=8, attention=None)))
    assert train._show(tmp_path) == 0
    out = capsys.readouterr().out
    assert re.search(r"unseen sentences \(6\) +100\.00 ", out), out
    assert "Words are not aligned, and no attention is drawn: the model has model.attention none." in out
    assert "Alignment error rate" not in out
    assert "jaxformer translate" in out
    assert "jaxformer inspect" not in out
