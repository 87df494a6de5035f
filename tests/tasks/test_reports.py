"""From scores and rows of examples to a report: ranks, lengths, differences, curves; which runs compare."""

import dataclasses
import json
import types

import pytest

from jaxformer.errors import ConfigError
from jaxformer.evaluation.scores import bleu, chrf
from jaxformer.tasks import reports, rundir
from jaxformer.tasks.language_model import LanguageModelingConfig
from jaxformer.tasks.reports import Scored
from jaxformer.tasks.translation import DataConfig, TranslationConfig
from jaxformer.tasks.translation.config import CorpusConfig

MEANT = [" ".join("un deux trois quatre cinq six sept huit".split()[: 2 + i % 6]) for i in range(48)]
GOOD = [text if i % 4 else text.replace("un", "x") for i, text in enumerate(MEANT)]
BAD = [text if i % 2 else text.replace("un", "x") for i, text in enumerate(MEANT)]


def scored(said):
    rows = [
        {"source": text, "reference": text, "hypothesis": found, "score": -1.0, "chrf": chrf([found], [text]).value}
        for found, text in zip(said, MEANT, strict=True)
    ]
    return Scored({"test": [bleu(said, MEANT), chrf(said, MEANT)]}, {"test": rows})


def made(run, ours, other=None, **changes):
    options = {"facts": {}, "commands": lambda corpus: f"inspect {corpus}", "other": other, "other_name": "other"}
    return reports.report(run, TranslationConfig(), ours, **options | changes)


def test_each_score_has_its_interval_and_lengths_add_up(tmp_path):
    report = made(tmp_path, scored(GOOD))
    (corpus,) = report.corpora
    assert all(row.interval[0] < row.value < row.interval[1] for row in corpus.scores)
    assert (corpus.unit, corpus.command) == ("words", "inspect test")
    assert [(row.first, row.last) for row in corpus.lengths] == [(2, 3), (4, 4), (5, 5), (6, 6), (7, 7)]
    assert sum(row.number for row in corpus.lengths) == 48
    last = [i for i, text in enumerate(MEANT) if len(text.split()) == 7]
    alone = chrf([GOOD[i] for i in last], [MEANT[i] for i in last])
    assert corpus.lengths[-1].scores[1].value == pytest.approx(alone.value)


def test_windows_of_a_text_have_no_lengths(tmp_path):
    windows = scored(GOOD)
    rows = [{**row, "tokens": 64} for row in windows.rows["test"]]
    (corpus,) = made(tmp_path, dataclasses.replace(windows, rows={"test": rows})).corpora
    assert not corpus.lengths


def test_a_difference_is_this_run_minus_the_other(tmp_path):
    report = made(tmp_path, scored(GOOD), scored(BAD))
    (corpus,) = report.corpora
    for row in corpus.scores:
        value, low, high, p_value = row.difference
        assert value == pytest.approx(row.value - row.other)
        assert 0 < low < value < high
        assert p_value < 0.05
    gains = {example.number - 1: example.gain for example in report.examples}
    assert gains[2] > 0  # right here, wrong there
    assert gains[0] == gains[1] == 0
    assert report.examples[2].texts["hypothesis of other"] == BAD[2]
    assert list(report.examples[2].texts)[:3] == ["source", "reference", "hypothesis"]


def test_another_test_set_is_no_comparison(tmp_path):
    theirs = scored(GOOD)
    theirs.rows["test"][3]["reference"] = "x"
    with pytest.raises(ConfigError, match="other was scored on another test set: test is not the same"):
        made(tmp_path, scored(GOOD), theirs)


@pytest.mark.parametrize(
    ("rows", "rank"),
    [
        ([{"text": "a", "label": "x", "guess": "y", "probability": p} for p in (0.25, 0.75)], [0.25, 0.75]),
        ([{"text": "a", "tokens": 8, "nats_per_token": nats} for nats in (3.5, 1.5)], [-3.5, -1.5]),
        ([{"words": ["a", "b"], "labels": ["O", "O"], "guesses": [g, "O"]} for g in ("O", "B-X")], [100, 50]),
        ([{"image": "a.png", "references": ["a dog", "dogs"], "hypothesis": "cat", "chrf": 7.0}], [7.0]),
    ],
)
def test_the_examples_of_every_task_have_a_rank(tmp_path, rows, rank):
    """A higher one is better: less surprise, more of the right labels."""
    report = made(tmp_path, Scored({"test": []}, {"test": rows}))
    assert [example.rank for example in report.examples] == rank
    assert report.ranked_by


def test_curves_have_steps_and_values_of_the_log():
    log = [{"step": step, "loss": 1 / step, "label_smoothing": 0.1, "seconds": 1.0} for step in range(1, 1001)]
    log += [{"step": 500, "validation_loss": 0.5, "validation_bleu": 20.0}, {"step": 1000, "validation_loss": None}]
    curves = reports.curves(log)
    assert list(curves) == ["training loss, smoothed", "validation loss", "validation bleu"]
    assert curves["validation loss"] == [(500, 0.5)]
    training = curves["training loss, smoothed"]
    assert len(training) == reports.NUM_POINTS
    assert training[-1][0] == 1000
    assert training[-1][1] == pytest.approx(0.001, rel=0.01)
    assert reports.curves([{"step": 3, "loss": 2.0}]) == {"training loss": [(3, 2.0)]}


def test_times_and_curves_come_from_the_run(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    times = [{"seconds": {"stepping": 2.0}}, {"seconds": {"stepping": 3.0, "saving": 1.0}}]
    (tmp_path / "time.json").write_text(json.dumps(times))
    report = made(tmp_path, scored(GOOD))
    assert report.curves == {"training loss": [(1, 2.0)]}
    assert report.seconds == {"stepping": 5.0, "saving": 1.0}


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """A function that returns the folder of a run of a configuration, with the vocabulary of this fingerprint."""
    known = {}

    def vocabulary(path):
        return types.SimpleNamespace(**known[path])

    def claimed(name, config, **about):
        path = tmp_path / name
        path.mkdir()
        rundir.claim(path, config.task, config, ())
        known[path] = about
        return path

    monkeypatch.setattr(reports.registry, "task_of", lambda config: types.SimpleNamespace(vocabulary=vocabulary))
    return claimed


def test_runs_that_do_not_compare(runs):
    french = runs("french", TranslationConfig(data=DataConfig(target_language="fr")), fingerprint="a")
    german = runs("german", TranslationConfig(data=DataConfig(target_language="de")), fingerprint="a")
    other = runs("other", TranslationConfig(data=DataConfig(target_language="fr")), fingerprint="b")
    text = runs("text", LanguageModelingConfig(), fingerprint="a")
    pieces = runs("pieces", LanguageModelingConfig(), fingerprint="b")
    to = lambda language: CorpusConfig(source="a", target="b", target_language=language)
    several = runs(
        "several", TranslationConfig(data=DataConfig(corpora={"x": to("fr"), "y": to("fr")})), fingerprint="a"
    )
    mixed = runs("mixed", TranslationConfig(data=DataConfig(corpora={"x": to("fr"), "y": to("zh")})), fingerprint="a")
    two, three = (runs(name, LanguageModelingConfig(), fingerprint="a", classes=name) for name in ("two", "three"))
    for a, b, problem in (
        (french, french, "french is the run itself"),
        (french, text, "text is a run of language_model, but .*french is one of translation"),
        (french, german, "german is scored differently: its language is 'de', here it is 'fr'"),
        (several, mixed, "mixed is scored differently: its language is 'zh', here it is 'fr'"),
        (text, pieces, "pieces has another vocabulary than"),
        (two, three, "three has other classes than"),
    ):
        with pytest.raises(ConfigError, match=problem):
            reports.check_comparable(a, b)
    reports.check_comparable(several, french)
    reports.check_comparable(french, other)  # texts compare, whatever their pieces


def test_examples_without_a_view_have_none(tmp_path):
    report = made(tmp_path, scored(GOOD))
    assert reports.look(TranslationConfig(), types.SimpleNamespace(steps=()), report)(report.examples[0]) is None
    seen = []
    predictor = types.SimpleNamespace(view=lambda *texts, **options: seen.append((texts, options)))
    reports.look(TranslationConfig(), predictor, report)(report.examples[0])
    reports.look(LanguageModelingConfig(), predictor, report)(
        dataclasses.replace(report.examples[0], texts={"text": "a"})
    )
    assert seen == [((MEANT[0], GOOD[0]), {"search": False}), (("a",), {})]
