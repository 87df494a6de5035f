"""``jaxformer demo``: it is the built-in configuration, and stops as `train` does."""

import dataclasses
import re
import types

import numpy as np
import pytest

from jaxformer import demo as grammar
from jaxformer import models, pure
from jaxformer.cli import demo
from jaxformer.inspection import plots
from jaxformer.inspection.attention_maps import select
from jaxformer.tasks import registry, restore, runner
from jaxformer.tasks.translation import Translator, alignment
from jaxformer.tokenizers.subwords import SubwordTokenizer
from jaxformer.training import make_schedule
from tests.modules.small import drawn as drawn_params


@pytest.fixture
def trained(monkeypatch):
    calls = types.SimpleNamespace(configs=[], shown=[], reason="done")

    def fit(config, out, console, began=None):
        calls.configs.append(config)
        return types.SimpleNamespace(reason=calls.reason)

    monkeypatch.setattr(runner, "train", fit)
    monkeypatch.setattr(demo, "_show", lambda run: calls.shown.append(run.name) or 0)
    return calls


def test_it_trains_the_built_in_configuration_and_shows_the_result(trained, tmp_path):
    assert demo.main(["--out", str(tmp_path / "run")]) == 0
    assert trained.configs == [registry.resolve("demo")]
    assert trained.shown == ["run"]


def test_settings_can_be_replaced(trained, tmp_path):
    assert demo.main(["--train.steps", "800", "--out", str(tmp_path / "run")]) == 0
    assert trained.configs == [registry.configure("demo", train={"steps": 800})]


def test_the_warm_up_of_a_short_demo_is_shortened(trained, tmp_path, capsys):
    """With a line that says so; a warm-up that the user gives stays, and is refused by `runner.train`."""
    steps = ["--train.steps", "100", "--out", str(tmp_path / "run")]
    assert demo.main(steps) == 0
    assert capsys.readouterr().err == "the demo's warm-up of 200 steps does not fit in 100 steps: it has 10\n"
    assert demo.main([*steps, "--optimizer.warmup-steps", "200"]) == 0
    assert capsys.readouterr().err == ""
    lengths = [(config.train.steps, config.optimizer.warmup_steps) for config in trained.configs]
    assert lengths == [(100, 10), (100, 200)]
    make_schedule(trained.configs[0].optimizer, steps=100)


@pytest.mark.parametrize(("reason", "code"), [("terminated", 85), ("interrupted", 130)])
def test_a_stopped_training_is_not_shown(trained, tmp_path, reason, code):
    trained.reason = reason
    assert demo.main(["--out", str(tmp_path / "run")]) == code
    assert trained.shown == []


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
    )
    translator = shows(pure(models.EncoderDecoder, config))
    drawn, draw = [], plots.attention_map
    monkeypatch.setattr(plots, "attention_map", lambda words, title: drawn.append((words, title)) or draw(words))
    run = tmp_path / "my run"
    assert demo._show(run) == 0

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
    assert demo._show(tmp_path) == 0
    out = capsys.readouterr().out
    assert re.search(r"unseen sentences \(6\) +100\.00 ", out), out
    assert "Words are not aligned, and no attention is drawn: the model has model.attention none." in out
    assert "Alignment error rate" not in out
    assert "jaxformer translate" in out
    assert "jaxformer inspect" not in out
