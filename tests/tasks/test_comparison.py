"""Groups of runs that differ only in the seed: which runs make one, what is refused, what the command prints."""

import dataclasses
import json

import pytest

from jaxformer.cli.main import main
from jaxformer.config import changed
from jaxformer.errors import ConfigError
from jaxformer.evaluation import seeds
from jaxformer.tasks import comparison, rundir
from tests.tasks.small import small

REFERENCES = [f"The {animal} number {i} sits on the mat." for i in range(9) for animal in ("cat", "dog")]


def made(path, seed=0, dropout=0.1, loss=2.0, end="done", said=REFERENCES, data=None):
    """The files of a run; a digit in each text is wrong in one of `seed` + 2."""
    config = changed(dataclasses.replace(small(), seed=seed), {"model": {"dropout": dropout}})
    rundir.claim(path, "translation", config, ())
    (path / "log.jsonl").write_text(json.dumps({"step": 20, "loss": 9.0, "validation_loss": loss}) + "\n")
    (path / "time.json").write_text(json.dumps([{"ended": end, "seconds": {}}]))
    texts = [text.replace("sits", "sat") if i % (seed + 2) == 0 else text for i, text in enumerate(said)]
    rows = [{"source": r, "reference": r, "hypothesis": h} for r, h in zip(REFERENCES, texts, strict=True)]
    (path / "examples-test-best.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if data is not None:
        (path / "provenance.json").write_text(json.dumps({"data": data}))
    return path


@pytest.fixture
def runs(tmp_path):
    """Two groups of three seeds; in the second, the loss is lower by 0.1, 0.2 and 0.3."""
    for seed in (2, 0, 1):
        made(tmp_path / "a" / str(seed), seed, 0.0, 3.0 + seed)
        made(tmp_path / "b" / str(seed), seed, 0.3, 2.9 + 0.9 * seed, said=[text[:-1] for text in REFERENCES])
    return tmp_path


def test_groups_differ_in_their_settings_and_pair_their_seeds(runs):
    a, b = comparison.groups([runs])
    assert (a.settings, b.settings) == ({"model.dropout": "0.0"}, {"model.dropout": "0.3"})
    assert a.runs == {seed: runs / "a" / str(seed) for seed in range(3)}
    found = comparison.differences([a.row, b.row])["validation_loss"]
    assert found == {"model.dropout 0.3": seeds.difference([3.0, 4.0, 5.0], [2.9, 3.8, 4.7], paired=True)}
    (alone,) = comparison.groups([runs / "b" / "1"])
    assert (alone.settings, list(alone.runs)) == ({}, [1])
    fewer = comparison.groups([runs / "b", runs / "a" / "0", runs / "a" / "2"])
    assert [group.settings["model.dropout"] for group in fewer] == ["0.3", "0.0"]
    assert not comparison.differences([group.row for group in fewer])["validation_loss"]["model.dropout 0.0"].paired


def test_values_are_paired_by_seed():
    """In whatever order the trainings ended."""
    values = {"a": {2: 5.0, 0: 3.0, 1: 4.0}, "b": {1: 2.0, 2: 4.7, 0: 2.9}}
    found = [({"x": cell}, seed, {"loss": value}) for cell, each in values.items() for seed, value in each.items()]
    compared = comparison.differences(comparison.summary(found))["loss"]
    assert compared == {"x b": seeds.difference([3.0, 4.0, 5.0], [2.9, 2.0, 4.7], paired=True)}


def test_the_same_sentences_are_compared(runs):
    a, b = comparison.groups([runs])
    found = comparison.resampled(a, b)
    assert found.keys() == {"test-best"}
    assert found["test-best"].high < 0
    path = runs / "b" / "1" / "examples-test-best.jsonl"
    path.write_text(path.read_text().replace("number 0", "number zero", 1))  # another source
    assert comparison.resampled(a, b) == {}


def test_the_command(runs, tmp_path, capsys):
    picture = tmp_path / "groups.png"
    assert main(["compare", str(runs), "--picture", str(picture)]) == 0
    lines = capsys.readouterr().out.splitlines()
    place = lines.index("validation_loss")
    assert lines[place + 1] == "  model.dropout 0.0  4.0000 ± 2.4841  (3.0000, 4.0000, 5.0000)"
    assert lines[place + 3].split(", ")[:2] == [f"{'':21}-0.2000 ± 0.2484", "p = 0.074"]
    assert lines[-1].startswith("BLEU of test-best, model.dropout 0.3: -")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["compare", str(runs / "a"), str(runs / "b" / "0"), "--json"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert [len(group["runs"]) for group in found["groups"]] == [3, 1]
    assert found["differences"]["validation_loss"] == {}
    assert found["texts"]["model.dropout 0.3"]["test-best"]["value"] < 0


def test_one_seed_is_said(runs, capsys):
    assert main(["compare", str(runs / "a"), str(runs / "b" / "0")]) == 0
    assert capsys.readouterr().err == "one seed, which shows no spread: model.dropout 0.3\n"


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"end": "time"}, "x is at step 20, stopped by --train.minutes: complete it, or leave it out"),
        ({"seed": 1, "dropout": 0.0}, "1 and .*x are the same training, seed 1: leave one out"),
        ({"seed": 7, "dropout": 0.0, "data": {"hash": "other"}}, "0 and .*x have the same settings, but other data"),
    ],
)
def test_what_is_no_group_is_refused(runs, extra, said):
    made(runs / "x", **extra)
    with pytest.raises(ConfigError, match=said):
        comparison.groups([runs])
