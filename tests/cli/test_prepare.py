"""`jaxformer data prepare`: options that are wrong, and a corpus that a training finds prepared."""

import pytest

from jaxformer.cli.main import main
from jaxformer.data import pipeline, units


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["demo"], "--out FOLDER is missing"),
        (["demo", "--out", "c", "--part", "3/2"], "--part must be I/N, such as 3/8, with I from 1 to N, got '3/2'"),
        (["demo", "--out", "c", "--part", "0/2"], "--part must be I/N"),
        (["demo", "--out", "c", "--workers", "0"], "--workers must be at least 1, got 0"),
        (["language_model", "--out", "c"], "prepare is for translation; the data of language_model are prepared by"),
        (["translation", "--out", "c"], "no training data: give --data.source FILE"),
        (["translation", "--out", "c", "--data.sourse", "x"], "unknown setting"),
    ],
)
def test_wrong_words(tmp_path, monkeypatch, capsys, words, message):
    """One line, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    assert main(["data", "prepare", *words]) == 2
    said = capsys.readouterr().err.splitlines()
    assert message in said[-1]
    assert not list(tmp_path.iterdir())


def test_two_parts_in_any_order(tmp_path, monkeypatch, capsys):
    """The last joins both; a training with this cache tokenizes nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(units, "UNIT", 40)
    monkeypatch.setattr(pipeline, "SMALL", 80)
    (tmp_path / "s").write_text("".join(f"the cat {i} sleeps\n" for i in range(200)))
    (tmp_path / "t").write_text("".join(f"le chat {i} dort\n" for i in range(200)))
    words = ["translation", "--data.source", "s", "--data.target", "t", "--data.held_out", "9", "--data.vocab_size"]
    words = ["data", "prepare", *words, "285", "--data.tokenizer_sentences", "100", "--out", "c", "--workers", "1"]
    assert main([*words, "--part", "2/2"]) == 0
    said = capsys.readouterr().err
    assert "a vocabulary from 100 of 364 sentences in" in said
    assert "part 2 of 2 is done; 3 units of other parts are missing" in said
    assert main([*words, "--part", "1/2"]) == 0
    assert "all pairs are tokenized: train with --data.cache c" in capsys.readouterr().err
    assert len(list((tmp_path / "c").iterdir())) == 3
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "c").rglob("*")}
    assert main(words) == 0
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "c").rglob("*")} == before
