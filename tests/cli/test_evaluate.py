"""``jaxformer evaluate``: the split that is scored, and the printed and saved scores."""

import json
import math
import os
import pathlib
import re
import types

import pytest

from jaxformer.cli import evaluate, main, predictors
from jaxformer.config import changed
from jaxformer.errors import ConfigError
from jaxformer.evaluation.scores import Score
from jaxformer.tasks import registry, rundir, runner
from jaxformer.tasks.language_model import LanguageModelingConfig
from jaxformer.tasks.translation import Beam, DecodeConfig, TranslationConfig
from tests.inspection.small import held
from tests.permissions import read_only

EXAMPLES = [{"hypothesis": "été", "bleu": 50.0}, {"image": os.fsdecode(b"\xff.png"), "bleu": 0.0}]
SCORE = Score("BLEU", 12.345, "tok:13a")


@pytest.fixture
def asked(monkeypatch):
    """The options of each evaluation, whose predictor and result are artificial."""
    calls = []
    monkeypatch.setattr(evaluate, "configured", lambda options, settings: TranslationConfig())
    monkeypatch.setattr(evaluate, "load_ensemble", lambda options, config: types.SimpleNamespace(steps=(4, 6)))

    def scored(run, predictor, **options):
        calls.append({"run": run, **options})
        options["on_examples"]("corpus", EXAMPLES)
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
    monkeypatch.setattr(evaluate, "configured", lambda options, settings: config)
    assert evaluate.evaluate([str(tmp_path), "--data-dir", "corpora", *options]) == 0
    (call,) = asked
    assert (call["run"], call["split"], call["data_dir"]) == (tmp_path, split, "corpora")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"examples-{split}-best.jsonl",
        f"scores-{split}-best.json",
    ]


def test_scores_are_printed_and_saved_with_their_settings(asked, monkeypatch, capsys, tmp_path):
    config = TranslationConfig(decode=DecodeConfig(search=Beam(beam_size=7)))
    loaded = []
    configured = lambda options, settings: (loaded.append(settings), config if settings else TranslationConfig())[1]
    monkeypatch.setattr(evaluate, "configured", configured)
    used = lambda options, config: loaded.append(options.command()) or types.SimpleNamespace(steps=(4, 6))
    monkeypatch.setattr(evaluate, "load_ensemble", used)
    assert evaluate.evaluate([str(tmp_path), "--checkpoint", "average", "--decode.beam_size", "7"]) == 0
    assert loaded == [["--decode.beam_size", "7"], "evaluate", ()]
    assert capsys.readouterr().out == f"corpus\n  {SCORE}\n"
    saved = json.loads((tmp_path / "scores-test-average-beam_size=7.json").read_text())
    assert saved["corpus"] == [{"name": "BLEU", "value": 12.345, "signature": "tok:13a", "decimals": 2}]
    assert (saved["steps"], saved["settings"]["checkpoint"]) == ([4, 6], "average")
    assert saved["settings"]["decode"]["search"]["beam_size"] == 7
    lines = (tmp_path / "examples-test-average-beam_size=7.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"corpus": "corpus", "number": number, **example} for number, example in enumerate(EXAMPLES, 1)
    ]


def test_json_is_what_is_saved_and_nothing_else(asked, monkeypatch, capsys, tmp_path):
    """Scores that are not numbers are null, and names that are not UTF-8 are escaped."""
    monkeypatch.setattr(runner, "evaluate", lambda *args, **options: {"corpus": [SCORE, Score("loss", math.nan, "é")]})
    other = tmp_path / os.fsdecode(b"\xff")
    assert evaluate.evaluate([str(tmp_path), "--json", "--ensemble", str(other)]) == 0
    out = capsys.readouterr().out
    (file,) = tmp_path.glob("scores-*.json")
    assert out == file.read_text(encoding="ascii")
    found = json.loads(out, parse_constant=pytest.fail)
    assert [score["value"] for score in found["corpus"]] == [12.345, None]
    assert found["settings"]["ensemble"] == [str(other)]


def test_each_search_has_its_own_files(asked, monkeypatch, tmp_path):
    """Settings that differ from those of training are in the file name; other values have a digest."""
    rundir.claim(tmp_path, "translation", TranslationConfig(decode=DecodeConfig(search=Beam(beam_size=2))), ())
    monkeypatch.setattr(evaluate, "configured", predictors.configured)

    def saved(*settings):
        before = {path.name for path in tmp_path.glob("scores-*")}
        assert evaluate.evaluate([str(tmp_path), *settings]) == 0
        (name,) = {path.name for path in tmp_path.glob("scores-*")} - before or {""}
        return name

    assert saved() == "scores-test-best.json"
    assert saved("--decode.beam_size", "2", "--decode.batch_size", "8") == ""  # the same search
    assert saved("--decode.beam_size", "8") == "scores-test-best-beam_size=8.json"
    several = saved("--decode.length_penalty=0.6", "--decode.beam_size=8")
    assert several == "scores-test-best-beam_size=8-length_penalty=0.6.json"
    phrases = [saved("--decode.forbid", text) for text in ("a/b", "a b", "x" * 300)]
    assert all(re.fullmatch(r"scores-test-best-forbid=[0-9a-f]{16}\.json", name) for name in phrases)
    assert len({*phrases}) == 3
    for seed in ("123456789", "23456789"):
        many = ["--decode.sample", "True", "--decode.seed", seed, "--decode.temperature", "0.123456789"]
        many += ["--decode.top_k", "123456789", "--decode.top_p", "0.123456789", "--decode.min_p", "0.123456789"]
        many += ["--decode.no_repeat_ngram_size", "123456789", "--decode.max_length", "123456789"]
        assert re.fullmatch(r"scores-test-best-decode=[0-9a-f]{16}\.json", saved(*many))


def test_a_read_only_run_is_scored(asked, monkeypatch, capsys, tmp_path):
    with read_only(tmp_path):
        assert main.main(["evaluate", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert out == f"corpus\n  {SCORE}\n"
    assert f"warning: {tmp_path / 'scores-test-best.json'} is not saved: Permission denied\n" in err
    assert f"warning: {tmp_path / 'examples-test-best.jsonl'} is not saved: Permission denied\n" in err


def test_the_scores_of_an_ensemble_have_their_own_files(asked, monkeypatch, tmp_path):
    one, two, three = (tmp_path / name / "seed-1" for name in ("one", "two", "three"))
    for run in (one, two, three):
        run.mkdir(parents=True)
        data = {"train": run.parent.name, "validation": "x"}  # a student of the others, for example
        (run / "provenance.json").write_text(json.dumps({"data": data}))
    for others in ([two], [three], [two, three], [three, two]):
        assert evaluate.evaluate([str(one), "--ensemble", *map(str, others)]) == 0
    files = sorted(one.glob("scores-*.json"))
    assert [re.sub("[0-9a-f]{8}", "*", file.name) for file in files] == [
        "scores-test-best-ensemble-of-2-*.json",
        "scores-test-best-ensemble-of-2-*.json",
        "scores-test-best-ensemble-of-3-*.json",
    ]
    saved = [json.loads(file.read_text())["settings"]["ensemble"] for file in files]
    assert saved[2] == [str(three), str(two)]
    assert sorted(saved[:2]) == [[str(three)], [str(two)]]
    (two / "provenance.json").write_text(json.dumps({"data": {"train": "two", "validation": "y"}}))
    with pytest.raises(ConfigError, match="seed-1 holds a run on other data, by its hash: validation was 'y', now 'x'"):
        evaluate.evaluate([str(one), "--ensemble", str(two)])


def test_other_files_have_their_own_scores(asked, monkeypatch, capsys, tmp_path):
    """They may be scored with models of other data, because no part of the run's data is held out of them."""
    (tmp_path / "provenance.json").write_text(json.dumps({"data": {"train": "x"}}))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "provenance.json").write_text(json.dumps({"data": {"train": "y"}}))
    files = [tmp_path / "test", tmp_path / "test.fr"]
    assert evaluate.evaluate([str(tmp_path), "--files", *map(str, files), "--ensemble", str(tmp_path / "other")]) == 0
    (call,) = asked
    assert list(call["files"]) == files
    assert not {"split", "data_dir"} & {*call}
    (name,) = (path.name for path in tmp_path.glob("scores-*"))
    assert re.fullmatch(r"scores-file-test-[0-9a-f]{8}-best-ensemble-of-2-[0-9a-f]{8}\.json", name)
    assert json.loads((tmp_path / name).read_text())["settings"]["files"] == list(map(str, files))


def test_other_files_of_one_name_have_their_own_scores(asked, monkeypatch, tmp_path):
    """Such as two test sets in two folders, or two references of one; the same data has the same files everywhere."""

    def saved(folder, source, reference):
        rows = [{"source": source, "reference": reference, "hypothesis": "x"}]
        scored = lambda *_, on_examples, **options: on_examples("test.en", rows) or {"test.en": [SCORE]}
        monkeypatch.setattr(runner, "evaluate", scored)
        before = {path.name for path in tmp_path.iterdir()}
        assert evaluate.evaluate([str(tmp_path), "--files", f"{folder}/test.en", f"{folder}/test.de"]) == 0
        return sorted({path.name for path in tmp_path.iterdir()} - before)

    examples, scores = saved("2014", "a", "b")
    assert re.fullmatch(r"examples-file-test\.en-[0-9a-f]{8}-best\.jsonl", examples)
    assert re.fullmatch(r"scores-file-test\.en-[0-9a-f]{8}-best\.json", scores)
    assert len(saved("2015", "c", "b")) == len(saved("2014", "a", "d")) == 2
    assert saved("copy", "a", "b") == []


def test_each_direction_has_its_own_files(asked, monkeypatch, tmp_path):
    monkeypatch.setattr(evaluate, "directed", lambda predictor, *languages: predictor)
    for options in (["--to", "de"], ["--to", "fr"], ["--to", "fr", "--from", "eng_Latn"]):
        assert evaluate.evaluate([str(tmp_path), "--files", "a.en", "b", *options]) == 0
    files = sorted(tmp_path.glob("scores-*"), key=lambda path: len(path.name))
    names = [re.sub("-[0-9a-f]{8}-", "-*-", path.name) for path in files]
    assert sorted(names) == [
        "scores-file-a.en-*-best-to=de.json",
        "scores-file-a.en-*-best-to=fr-from=eng_Latn.json",
        "scores-file-a.en-*-best-to=fr.json",
    ]
    used = json.loads(files[-1].read_text())["settings"]
    assert (used["to"], used["from"]) == ("fr", "eng_Latn")


@pytest.fixture
def reported(asked, monkeypatch, tmp_path):
    """A run with a log, another run, and the path of a page."""
    for name in ("run", "other"):
        rundir.claim(tmp_path / name, "translation", TranslationConfig(), ())
    (tmp_path / "run" / "log.jsonl").write_text('{"step": 1, "loss": 2.5}\n')
    monkeypatch.setattr(evaluate, "configured", predictors.configured)
    monkeypatch.setattr(evaluate, "load", lambda options, config: types.SimpleNamespace(steps=(7,)))
    vocabulary = types.SimpleNamespace(vocabulary=lambda run: object(), default_split="test")
    monkeypatch.setattr(registry, "task_of", lambda config: vocabulary)
    return tmp_path / "run", tmp_path / "other", tmp_path / "page.html"


def test_a_report_is_written_after_the_scores(reported, asked, capsys):
    """The other run is scored with the same settings."""
    run, other, page = reported
    words = [str(run), "--report", str(page), "--against", str(other), "--split", "validation"]
    assert evaluate.evaluate([*words, "--decode.beam_size", "9"]) == 0
    assert capsys.readouterr().out == f"corpus\n  {SCORE}\n{page}\n"
    assert [(call["run"], call["split"]) for call in asked] == [(run, "validation"), (other, "validation")]
    data = held(page.read_text())
    assert data["title"] == str(run)
    (corpus,) = data["report"]["corpora"]
    assert corpus["command"] == f"jaxformer inspect {run} --html attention.html --checkpoint best --decode.beam_size 9"
    assert (corpus["scores"][0]["value"], corpus["scores"][0]["other"]) == (12.345, 12.345)
    assert data["report"]["curves"] == {"training loss": [[1, 2.5]]}
    assert data["report"]["facts"]["steps"] == "4, 6"
    assert not list(other.glob("scores-*"))
    assert evaluate.evaluate([str(run), "--report", str(page), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == [4, 6]


def test_a_report_of_other_files_of_a_run_of_several(reported, monkeypatch):
    """Its corpora are not those of the run: the direction is that of the options."""
    files = {"source": "a", "target": "b", "source_language": "en"}
    corpora = {name: files | {"target_language": name} for name in ("de", "fr")}
    config = changed(TranslationConfig(), {"data": {"corpora": corpora, "tags": "source"}})
    _, other, page = reported
    run = other.parent / "several"
    rundir.claim(run, "translation", config, ())
    monkeypatch.setattr(evaluate, "directed", lambda predictor, *languages: predictor)
    assert evaluate.evaluate([str(run), "--files", "a.en", "a.de", "--to", "de", "--report", str(page)]) == 0
    (corpus,) = held(page.read_text())["report"]["corpora"]
    assert corpus["command"].endswith("--checkpoint best --to de")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--report", "notes.html"], "notes.html exists and is no page of jaxformer; name another file"),
        (["--report", "page.png"], "page.png: a page is one of .html, .htm"),
        (["--against", "other"], "--against is for a page; add --report FILE"),
        (["--report", "page.html", "--against", "run"], "run is the run itself; name another one"),
        (["--report", "page.html", "--against", "text"], "text is a run of language_model, but "),
        (["--report", "page.html", "--against", "nowhere"], "nowhere is not a run: it has no config.json"),
        (["--report", "page.html", "--against", "moved"], "moved holds a run on other data, by its hash: test was"),
    ],
)
def test_a_report_that_cannot_be_is_refused_before_a_model_is_loaded(reported, monkeypatch, capsys, words, problem):
    monkeypatch.setattr(evaluate, "load_ensemble", lambda *args: pytest.fail("the work has begun"))
    monkeypatch.chdir(reported[0].parent)
    rundir.claim(pathlib.Path("text"), "language_model", LanguageModelingConfig(), ())
    rundir.claim(pathlib.Path("moved"), "translation", TranslationConfig(), ())
    for name, digest in (("run", "a"), ("moved", "b")):
        pathlib.Path(name, "provenance.json").write_text(json.dumps({"data": {"test": digest}}))
    pathlib.Path("notes.html").write_text("mine")
    assert main.main(["evaluate", "run", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert problem in line
    assert not pathlib.Path("page.html").exists()
    assert pathlib.Path("notes.html").read_text() == "mine"


def test_a_converted_model_has_a_report_of_given_files_only(reported, monkeypatch, capsys):
    monkeypatch.setattr(evaluate, "load_ensemble", lambda *args: pytest.fail("the work has begun"))
    run, _, page = reported
    (run / "pretrained").mkdir()
    assert main.main(["evaluate", str(run), "--report", str(page)]) == 2
    assert "is a converted model, which has no data of its own" in capsys.readouterr().err
