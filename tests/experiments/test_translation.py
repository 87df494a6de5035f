"""The experiment on translation: its report, and its smoke version, which resumes."""

import json
import pathlib
import re

import numpy as np
import pytest

from experiments.translation import __main__ as command
from experiments.translation import multi30k, picture, systems, verify
from jaxformer.config import changed, comparable, fingerprint, to_data
from jaxformer.errors import ConfigError, DataError
from jaxformer.files import write_text
from tests.experiments.smoke import check_resumes


def record(bleu, seconds=90.0):
    score = lambda value: {"name": "BLEU", "value": value, "signature": "tok:13a"}
    return {
        "averaged": [2, 4],
        "seconds": {"stepping": seconds, "compiling": 30.0},
        "scores": {"validation": [score(bleu + 1)], "test": [score(bleu)]},
        "facts": {"date": "2026-01-01", "processor": "X, 2 cores", "jax": "1", "commit": ""},
    }


def test_every_configuration_of_the_pages_is_a_choice():
    text = "".join(page.read_text(encoding="utf-8") for page in pathlib.Path(command.__file__).parent.glob("*.md"))
    assert "published_accelerator" in set(re.findall(r"--config (\w+)", text)) <= set(command.CONFIGS)


def test_the_report_has_means_and_the_time():
    lines = command.report("en-de", {"plain": [record(40.0), record(42.0, 210.0)]}).splitlines()
    assert lines[0] == "en-de, average of 2 checkpoints"
    assert lines[2] == "| method | seed | BLEU, validation | BLEU, test | minutes | of these compiling |"
    assert lines[4:7] == [
        "| plain | 0 | 41.00 | 40.00 | 2.00 | 0.50 |",
        "| plain | 1 | 43.00 | 42.00 | 4.00 | 0.50 |",
        "| plain | mean | 42.0 ± 12.7 | 41.0 ± 12.7 |  |  |",
    ]
    assert lines[-2:] == ["2026-01-01, X, 2 cores, jax 1, commit unknown", "- BLEU: tok:13a"]


def test_the_report_has_a_row_for_each_system():
    together = {name: value for name, value in record(43.0).items() if name != "averaged"}
    records = {"plain": [record(40.0)], "r-drop": [record(41.0)], "ensemble": [together]}
    rows = [line.split("|")[1:5] for line in command.report("en-de", records).splitlines()[4:7]]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["plain", "0", "41.00", "40.00"],
        ["r-drop", "0", "42.00", "41.00"],
        ["ensemble", "all", "44.00", "43.00"],
    ]


def test_methods_are_changes_of_a_configuration():
    found = {name: systems.configured(multi30k.published(), name) for name in systems.TRAINED}
    assert {name: (c.data.num_segmentations, c.loss.r_drop) for name, c in found.items()} == {
        "plain": (1, 0.0),
        "sampling": (0, 0.0),
        "r-drop": (1, 5.0),
        "sampling-r-drop": (0, 5.0),
        **dict.fromkeys(("simcut", "bidirectional", "bidirectional-simcut"), (1, 0.0)),
    }
    cut = {name: (c.loss.simcut.weight, c.loss.simcut.cut) for name, c in found.items() if c.loss.simcut.weight}
    assert cut == {"simcut": (3.0, 0.05), "bidirectional-simcut": (3.0, 0.05)}  # of the paper
    assert found["sampling"].data.segmentation_alpha == 0.1  # of the paper on BPE-dropout
    assert systems.configured(multi30k.en_de(), "sampling").data.segmentation_alpha == 0.2  # of unigram


def test_the_best_method_is_that_of_the_validation_set():
    low, high = record(40.0), record(42.0)
    high["scores"]["validation"][-1]["value"], low["scores"]["validation"][-1]["value"] = 39.0, 39.5
    assert systems.best({"plain": [high], "r-drop": [low], "ensemble": [record(50.0)]}) == "r-drop"


def test_an_average_of_other_checkpoints_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(systems.command, "record", lambda path, config, make: {"last": 10})
    assert systems.trained(multi30k.en_de(), tmp_path, 10, 0.0) == {"last": 10}
    with pytest.raises(ConfigError, match=r"seed-0\.json is an average of 10 checkpoints, not of 5; choose another"):
        systems.trained(multi30k.en_de(), tmp_path, 5, 0.0)


def test_a_start_of_other_settings_is_refused(tmp_path):
    """Of a call that was stopped between both trainings, before there was a record."""
    config, run = multi30k.muon(), tmp_path / "start" / "seed-0"
    (run / "average").mkdir(parents=True)
    files = {side: str(tmp_path / "start" / f"both.{side}") for side in ("source", "target")}
    saved = {"task": config.task, "config": to_data(changed(config, {"data": files}))}
    write_text(run / "config.json", json.dumps(saved))
    systems._train_both_directions(config, run, 10, 0.0)
    other = changed(config, {"train": {"steps": 2000}})
    with pytest.raises(ConfigError, match=r"a start of other settings: train.steps was 3000, now 2000; choose another"):
        systems._train_both_directions(other, run, 10, 0.0)


def test_an_ensemble_of_other_runs_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(systems.command, "record", lambda path, config, make: {"runs": ["plain/seed-0"]})
    with pytest.raises(ConfigError, match=r"an ensemble of plain/seed-0, not of plain/seed-1"):
        systems.ensemble_record(multi30k.en_de(), [tmp_path / "plain" / "seed-1"], tmp_path / "r.json", "ensemble")


def test_both_sizes_of_a_row():
    small, large = (command.CONFIGS[name]() for name in ("muon", "muon_accelerator"))
    assert (small.train.steps, small.data.tokens_per_batch, large.train.steps) == (3000, 4096, 20_000)
    assert small.model == large.model == multi30k.published().model
    assert small.optimizer == large.optimizer


def test_a_configuration_without_a_version_for_accelerators(tmp_path, capsys):
    assert command.main(["--config", "en_de", "--full", "--out", str(tmp_path)]) == 2
    assert "--full needs a configuration for an accelerator, which en_de has not" in capsys.readouterr().err


@pytest.mark.full
def test_a_start_in_both_directions_has_all_pairs_twice(tmp_path, capsys, monkeypatch):
    """Its tokens and parameters are those of the training after it, and of the check of that one's record."""
    monkeypatch.setattr(verify.command, "facts", lambda: FACTS)
    arguments = ["--smoke", "--out", str(tmp_path), "--average", "2", "--methods", "bidirectional-simcut"]
    out = tmp_path / "bidirectional-simcut"
    assert command.main(arguments) == 0
    english, german, *both = (
        path.read_text(encoding="utf-8").splitlines()
        for path in (
            *(tmp_path / "data" / "multi30k" / f"train.{language}" for language in ("en", "de")),
            *(out / "start" / f"both.{side}" for side in ("source", "target")),
        )
    )
    assert both == [english + german, german + english]
    configs = [
        json.loads((run / "config.json").read_text())["config"] for run in (out / "start/seed-0", out / "seed-0")
    ]
    assert [config["loss"]["simcut"]["weight"] for config in configs] == [3.0, 3.0]
    assert configs[1]["init_from"] == f"{out / 'start' / 'seed-0'}:average"
    found = json.loads((out / "records" / "seed-0.json").read_text())
    assert (found["method"], found["updates"]) == ("bidirectional-simcut", 12)
    out = out.rename(tmp_path / "moved")
    checked = verify.verify(out / "records" / "seed-0.json", tmp_path / "data")
    assert "- the first 6 losses: equal bit for bit" in checked
    assert "- scores: of the validation set computed again, equal; those of the test set are as recorded" in checked


FACTS = {"date": "2026-01-01", "processor": "X, 2 cores", "version": "1", "jax": "1", "commit": "a1b2c3d"}
UNTRAINED = {
    "no losses": ({"losses": []}, "must have the losses of the first 20 steps, got 0"),
    "no scores": ({"scores": None}, "must be a record with scores"),
    "another commit": ({"facts": FACTS | {"commit": "fffffff"}}, "is of commit fffffff, this checkout is a1b2c3d"),
    "changed files": ({"facts": FACTS | {"commit": "a1b2c3d+"}}, r"is of commit a1b2c3d\+, this checkout is a1b2c3d"),
    "no commit": ({"facts": FACTS | {"commit": ""}}, "is of commit unknown, this checkout is a1b2c3d"),
    "no processor": ({"facts": {"commit": "a1b2c3d"}}, "facts with commit, processor, version, jax"),
    "a text": ({"losses": None, "data": "x"}, "must be a record with data"),
    "null scores": ({"scores": {"validation": None}}, "must have a list of scores of the validation set"),
    "a score of a text": ({"scores": {"validation": [{"name": "BLEU", "value": "9"}]}}, "each with a name and a value"),
    "an update": ({"updates": 1}, "updates must be those of the configuration, 3,000, got 1"),
    "fewer updates": ({"config": {"train": {"steps": 2000}}}, "settings must be the hash of the configuration"),
}
TAMPERED = {
    "nothing": ({}, ""),
    "another processor": ({"facts": FACTS | {"processor": "Y"}, "losses": 1e-5}, ""),
    "another processor, a loss": ({"facts": FACTS | {"processor": "Y"}, "losses": 1e-2}, "the loss of step 3 must be "),
    "a loss": ({"losses": 1e-7}, "the loss of step 3 must be "),
    "a score": ({"scores": 0.01}, "of the validation set must be "),
    "the data": ({"data": {"train": "0123456789abcdef"}}, "a run on other data"),
}


def tampered(record, path, *, losses=None, scores=0.0, config=None, **changes):
    """Writes a record with changes: a factor of the third loss, a term of the first score, settings, or whole parts."""
    record = json.loads(json.dumps(record | changes))
    if losses is not None:
        record["losses"] = [x * (1 + losses * (i == 2)) for i, x in enumerate(record["losses"] if losses else [])]
    if scores is None:
        del record["scores"]
    elif scores:
        record["scores"]["validation"][0]["value"] += scores
    for part, values in (config or {}).items():
        record["config"][part] |= values
    write_text(path, json.dumps(record))
    return path


@pytest.mark.parametrize("what", UNTRAINED)
def test_a_record_is_refused_before_anything_is_trained(what, tmp_path, monkeypatch, capsys):
    config, (changes, message) = multi30k.muon(), UNTRAINED[what]
    settings = {"settings": fingerprint(config), "config": comparable(config)}
    whole = {**settings, "updates": 3000, "data": {}, "losses": [9.0] * 20, "scores": {}, "facts": FACTS}
    changes = {name: 0 if change == [] else change for name, change in changes.items()}
    if isinstance(scores := changes.get("scores"), dict):
        whole, changes = whole | {"scores": scores}, {}
    path = tampered(whole, tmp_path / "records" / "seed-0.json", **changes)
    monkeypatch.setattr(verify.command, "facts", lambda: FACTS)
    assert command.main(["--verify", str(path), "--out", str(tmp_path / "out")]) == DataError.exit_code
    assert re.search(message, capsys.readouterr().err.replace("\n", " "))


@pytest.mark.parametrize("text", ["{", "3", '["losses"]', "[" * 100_000])
def test_a_file_without_a_record_is_one_line(text, tmp_path, capsys):
    write_text(tmp_path / "seed-0.json", text)
    arguments = ["--verify", str(tmp_path / "seed-0.json"), "--out", str(tmp_path / "out")]
    assert command.main(arguments) == DataError.exit_code
    assert re.fullmatch(r"error: .*seed-0\.json must be a record.*\n", capsys.readouterr().err)


def test_two_unknown_commits_are_not_the_same(tmp_path, monkeypatch):
    """As outside of a repository, where both are empty."""
    config, facts = multi30k.muon(), FACTS | {"commit": ""}
    record = {"settings": fingerprint(config), "config": comparable(config), "data": {}, "losses": [9.0] * 20}
    path = tampered(record | {"updates": 3000, "scores": {}, "facts": facts}, tmp_path / "seed-0.json")
    monkeypatch.setattr(verify.command, "facts", lambda: facts)
    with pytest.raises(DataError, match="the record is of commit unknown, this checkout is unknown"):
        verify.verify(path, tmp_path)


def test_a_record_by_its_bare_name_has_its_folders(tmp_path, monkeypatch):
    """The parameters, and the start in both directions, also of a folder that was moved."""
    config = changed(multi30k.muon(), {"init_from": "/elsewhere/start/seed-0:average"})
    record = {"settings": fingerprint(config), "config": comparable(config), "data": {}, "losses": [9.0] * 20}
    record |= {"updates": 6000, "scores": {"validation": []}, "facts": FACTS}
    tampered(record, tmp_path / "records" / "seed-0.json")
    for name in ("seed-0/average", "start/seed-0"):
        (tmp_path / name).mkdir(parents=True)
    seen = []
    monkeypatch.setattr(verify.command, "facts", lambda: FACTS)
    monkeypatch.setattr(verify, "_check_losses", lambda record, config, exact: seen.append(config.init_from))
    monkeypatch.setattr(verify, "_check_scores", lambda scores, run, directory, exact: seen.append(run))
    monkeypatch.chdir(tmp_path / "records")
    verify.verify(pathlib.Path("seed-0.json"), tmp_path)
    assert seen == [f"{tmp_path / 'start' / 'seed-0'}:average", tmp_path / "seed-0"]


@pytest.fixture(scope="module")
def verified(tmp_path_factory):
    """The folder of a smoke version, whose record is as if of a clean commit."""
    out = tmp_path_factory.mktemp("verified")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify.command, "facts", lambda: FACTS)
        assert command.main(["--smoke", "--out", str(out), "--average", "2"]) == 0
    return out


@pytest.mark.full
@pytest.mark.parametrize("what", TAMPERED)
def test_a_tampered_record_is_refused(what, verified, monkeypatch):
    (changes, message), data = TAMPERED[what], verified / "data"
    record = json.loads((verified / "records" / "seed-0.json").read_text())
    path = tampered(record, verified / "tampered" / "seed-0.json", **changes)
    monkeypatch.setattr(verify.command, "facts", lambda: FACTS)
    if message:
        with pytest.raises((ConfigError, DataError), match=message):
            verify.verify(path, data)
        return
    text = verify.verify(path, data)
    assert ("equal bit for bit" if what == "nothing" else "to 0.0001, because processor was Y, is X, 2 cores") in text
    assert "- scores: of the validation set computed again" in text


def test_the_picture_shows_the_recorded_systems(tmp_path):
    """The target is the mean of the recipe's seeds; a student's updates include its teacher's."""
    points = picture.recorded()
    of = lambda method, updates: [p.bleu for p in points if (p.method, p.updates) == (method, updates)]
    assert round(float(np.mean(of("Adam, as published", 8000))), 2) == picture.TARGET
    assert [p.updates for p in points if p.method.startswith("students")] == [9500, 10_300, 12_000, 14_500]
    assert all(p.low < p.bleu < p.high for p in points)
    assert not {42.48, 58.25} & {round(p.bleu, 2) for p in points}  # German to English, English to French
    page = pathlib.Path(command.__file__).with_name("README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:cooled|muon|half|student)-\w+(?:-[\w-]+)? \| [\d, +]+ \| ([\d.]+) ", page, re.MULTILINE)
    assert len(rows) == 8
    assert {float(row) for row in rows} - {round(p.bleu, 2) for p in points} == {39.73}  # half-3000 has no record
    picture.draw(points, tmp_path / "validation.png")
    assert (tmp_path / "validation.png").stat().st_size > 10_000


@pytest.mark.full
def test_the_smoke_version_resumes(tmp_path, capsys):
    arguments = ["--smoke", "--out", str(tmp_path), "--average", "2", "--seeds", "2"]
    assert command.main([*arguments, "--minutes", "0.00001"]) == 85
    text = check_resumes(command.main, arguments, tmp_path, capsys)
    assert [line.split("|")[2].strip() for line in text.splitlines()[4:7]] == ["0", "1", "mean"]
    found = json.loads((tmp_path / "records" / "seed-1.json").read_text())
    assert found["averaged"] == [4, 6]
    assert {score["name"] for score in found["scores"]["test"]} > {"BLEU", "chrF2"}
    assert command.main([*arguments, "--set", "train.steps=9"]) == 0  # the smoke version has its own


@pytest.mark.full
def test_students_learn_from_an_ensemble_of_the_best_method(tmp_path, capsys):
    methods = ["plain", "ensemble", "ensemble-mbr", "distilled"]
    arguments = ["--smoke", "--out", str(tmp_path), "--average", "2", "--seeds", "2", "--methods", *methods]
    assert command.main(arguments) == 0
    assert (tmp_path / "curves.png").stat().st_size > 5000
    text = (tmp_path / "report.md").read_text()
    assert [text.count(f"| {method} |") for method in methods] == [3, 1, 1, 3]
    teacher = next((tmp_path / "distilled").glob("teacher-*-2"))
    best = teacher.name.removeprefix("teacher-").removesuffix("-2")
    runs = [systems.folder(tmp_path, best) / f"seed-{seed}" for seed in range(2)]
    sources = (tmp_path / "data" / "multi30k" / "train.en").read_text().splitlines()
    targets = (teacher / "train.target").read_text().splitlines()
    assert targets[:20] == systems.ensemble(runs).translate(sources[:20])
    assert len(targets) == len(sources)
    student = json.loads((tmp_path / "distilled" / "seed-0" / "config.json").read_text())
    assert student["config"]["data"]["target"] == str(teacher / "train.target")
    capsys.readouterr()
    assert command.main(arguments) == 0  # from the records
    assert "teacher:" not in capsys.readouterr().out
