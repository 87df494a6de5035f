"""``jaxformer evaluate``: which split is scored, and what is printed and saved."""

import json
import os
import types

import pytest

from jaxformer.cli import evaluate, main, predictors
from jaxformer.errors import ConfigError
from jaxformer.evaluation.scores import Score
from jaxformer.tasks import runner
from jaxformer.tasks.classification import ClassificationConfig
from jaxformer.tasks.language_model import LanguageModelingConfig
from jaxformer.tasks.translation import DecodeConfig, TranslationConfig
from tests.permissions import read_only

EXAMPLES = [{"hypothesis": "été", "bleu": 50.0}, {"image": os.fsdecode(b"\xff.png"), "bleu": 0.0}]
SCORE = Score("BLEU", 12.345, "tok:13a")


@pytest.fixture
def asked(monkeypatch):
    """The options of each evaluation, whose result is made up."""
    calls = []

    def scored(run, predictor, **options):
        calls.append({"run": run, **options})
        options["keep"]("corpus", EXAMPLES)
        return {"corpus": [SCORE]}

    monkeypatch.setattr(runner, "evaluate", scored)
    return calls


@pytest.mark.parametrize(
    ("config", "options", "split"),
    [
        (TranslationConfig(), [], "test"),
        (TranslationConfig(), ["--split", "validation"], "validation"),
        (LanguageModelingConfig(), [], "validation"),  # a text has no test part of its own
    ],
)
def test_the_split_is_that_of_the_task(asked, monkeypatch, tmp_path, config, options, split):
    predictor = types.SimpleNamespace(steps=(4, 6))
    monkeypatch.setattr(evaluate, "configured", lambda options, settings: config)
    monkeypatch.setattr(evaluate, "load_ensemble", lambda options, config, command: predictor)
    assert evaluate.main([str(tmp_path), "--data-dir", "corpora", *options]) == 0
    (call,) = asked
    assert (call["run"], call["split"], call["data_dir"]) == (tmp_path, split, "corpora")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"examples-{split}-best.jsonl",
        f"scores-{split}-best.json",
    ]


def test_scores_are_printed_and_saved_with_their_settings(asked, monkeypatch, capsys, tmp_path):
    config = TranslationConfig(decode=DecodeConfig(beam_size=7))
    predictor = types.SimpleNamespace(steps=(4, 6))
    loaded = []
    monkeypatch.setattr(evaluate, "configured", lambda options, settings: loaded.append(settings) or config)
    monkeypatch.setattr(evaluate, "load_ensemble", lambda options, config, command: loaded.append(command) or predictor)
    assert evaluate.main([str(tmp_path), "--checkpoint", "average", "--decode.beam_size", "7"]) == 0
    assert loaded == [["--decode.beam_size", "7"], "evaluate"]
    assert capsys.readouterr().out == f"corpus\n  {SCORE}\n"
    saved = json.loads((tmp_path / "scores-test-average.json").read_text())
    assert saved["corpus"] == [{"name": "BLEU", "value": 12.345, "signature": "tok:13a", "decimals": 2}]
    assert (saved["steps"], saved["settings"]["checkpoint"]) == ([4, 6], "average")
    assert saved["settings"]["decode"]["beam_size"] == 7
    lines = (tmp_path / "examples-test-average.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"corpus": "corpus", "number": number, **example} for number, example in enumerate(EXAMPLES, 1)
    ]


def test_a_run_that_may_only_be_read_is_scored(asked, monkeypatch, capsys, tmp_path):
    predictor = types.SimpleNamespace(steps=(4,))
    monkeypatch.setattr(evaluate, "configured", lambda options, settings: TranslationConfig())
    monkeypatch.setattr(evaluate, "load_ensemble", lambda options, config, command: predictor)
    with read_only(tmp_path):
        assert main.main(["evaluate", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert out == f"corpus\n  {SCORE}\n"
    assert f"warning: {tmp_path / 'scores-test-best.json'} is not saved: Permission denied\n" in err
    assert f"warning: {tmp_path / 'examples-test-best.jsonl'} is not saved: Permission denied\n" in err


def test_the_scores_of_an_ensemble_have_files_of_their_own(asked, monkeypatch, tmp_path):
    monkeypatch.setattr(evaluate, "configured", lambda options, settings: TranslationConfig())
    monkeypatch.setattr(evaluate, "load_ensemble", lambda options, config, command: types.SimpleNamespace(steps=(4,)))
    one, two = tmp_path / "one", tmp_path / "two"
    for run, data in ((one, "x"), (two, "x")):
        run.mkdir()
        (run / "provenance.json").write_text(json.dumps({"data": {"train": data}}))
    assert evaluate.main([str(one), "--ensemble", str(two)]) == 0
    saved = json.loads((one / "scores-test-best-ensemble.json").read_text())
    assert saved["settings"]["ensemble"] == [str(two)]
    (two / "provenance.json").write_text(json.dumps({"data": {"train": "y"}}))
    with pytest.raises(ConfigError, match="two holds a run on other data"):
        evaluate.main([str(one), "--ensemble", str(two)])


def test_a_task_without_ensembles_refuses_them(monkeypatch, tmp_path):
    monkeypatch.setattr(predictors, "load", lambda options, config, command: types.SimpleNamespace(steps=(4,)))
    options = types.SimpleNamespace(run=tmp_path, ensemble=[tmp_path])
    with pytest.raises(ConfigError, match="a run of classification, which has no ensembles"):
        predictors.load_ensemble(options, ClassificationConfig(), "evaluate")
