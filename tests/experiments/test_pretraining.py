"""The experiment on pre-training: its corpus, and its smoke version, which resumes."""

import pathlib
import types

import pytest

from experiments.pretraining import __main__ as command
from experiments.pretraining import english
from jaxformer.errors import DataError


def test_each_sentence_comes_once_without_its_label(tmp_path):
    texts = {
        "multi30k/train.en": "A dog runs.\nA cat.\n",
        "tatoeba/eng-fra.tsv": "Go.\tVa !\nGo.\tAllez !\n",
        "tatoeba/eng-deu.tsv": "Go.\tGeh!\nHi.\tHallo!\n",
        "tinyshakespeare/input.txt": "To be,\n\nor not\n",
        "agnews/train_10k.tsv": "News.\tWorld\n",
        "cola/in_domain_train.tsv": "gj04\t1\t\tFine.\n",
        "sst2/train.txt": "1 a stirring film\n",
        "trec/train.txt": "LOC:city Where ?\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = list(english.sentences(tmp_path))
    assert found == [
        "A dog runs.",
        "A cat.",
        "Go.",
        "Hi.",
        "To be,",
        "or not",
        "News.",
        "Fine.",
        "a stirring film",
        "Where ?",
    ]
    assert english.write_corpus(tmp_path, tmp_path / "english.txt") == 18
    (tmp_path / "trec" / "train.txt").unlink()
    with pytest.raises(DataError, match=r"trec/train\.txt"):
        list(english.sentences(tmp_path))


def test_the_smoke_version_leaves_the_text_of_the_corpora(tmp_path, monkeypatch):
    """A run on that text could not be resumed, and one that begins later would be trained on the text of the other."""
    (tmp_path / "english.txt").write_text("A dog runs.\n")
    texts = []

    def train(config, run):
        texts.append(pathlib.Path(config.data.text).read_text())
        return types.SimpleNamespace(reason=reasons.pop(0))

    reasons = ["done", "done", "interrupted", "time"]
    monkeypatch.setattr(command.jaxformer, "train", train)
    monkeypatch.setattr(command, "report", lambda out: None)
    assert command.main(["--smoke", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "english.txt").read_text() == "A dog runs.\n"
    again = ["--data-dir", str(tmp_path), "--out", str(tmp_path)]
    assert [command.main(again) for _ in range(3)] == [0, 130, 85]
    assert texts[0].count("\n") == 300
    assert texts[1:] == ["A dog runs.\n"] * 3


@pytest.mark.full
def test_the_smoke_version_resumes(tmp_path, capsys):
    assert command.main(["--smoke", "--out", str(tmp_path)]) == 0
    report = (tmp_path / "report.md").read_text()
    assert [line.split("|")[1].strip() for line in report.splitlines()[2:]] == ["3", "6"]
    assert (tmp_path / "curves.png").stat().st_size > 1000
    capsys.readouterr()
    assert command.main(["--smoke", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "report.md").read_text() == report
    assert "resumed from step 6" in capsys.readouterr().err
