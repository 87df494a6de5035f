"""Errors about missing files name the setting that gives them."""

import dataclasses
import re

import pytest

from jaxformer import demo
from jaxformer.cli.main import main
from jaxformer.errors import ConfigError, DataError
from jaxformer.tasks.translation import TASK, DataConfig, TranslationConfig
from jaxformer.tasks.translation.corpora import load_corpora, load_test


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"held_out": 0}, "no validation data: give --data.validation-source"),
        ({"validation_target": "v"}, "--data.validation-target v is given, but no --data.validation-source"),
        ({"test_target": "t"}, "--data.test-target t is given, but no --data.test-source"),
    ],
)
def test_data_that_is_not_named(tmp_path, settings, message):
    (tmp_path / "a").write_text("one\n")
    with pytest.raises(DataError, match=message):
        load_corpora(DataConfig(source="a", target="a", directory=str(tmp_path), **settings))


@pytest.mark.parametrize("table", [False, True])
def test_skipped_lines_are_reported_with_held_out_pairs(tmp_path, table):
    """Their numbers are those of the file, and belong to the training data."""
    lines = [f"s{i}" for i in range(20)]
    lines[3] = lines[7] = ""
    lines[5] = "x" * 10_001
    (tmp_path / "a").write_text("".join(f"{line}\t{line}\n" if table else f"{line}\n" for line in lines))
    target = "" if table else "a"
    corpora = load_corpora(DataConfig(source="a", target=target, directory=str(tmp_path), held_out=3))
    assert corpora.train.report() == "11 pairs; skipped 2 with an empty side (line 4, 8) and 1 overlong (line 6)"
    assert (corpora.validation.report(), corpora.tests["test"].report()) == ("3 pairs", "3 pairs")


@pytest.mark.parametrize(("fraction", "number"), [(0.1, 4), (0.26, 10), (0.001, 1)])
def test_a_fraction_holds_out_the_pairs_of_its_number(tmp_path, fraction, number):
    (tmp_path / "a").write_text("".join(f"s{i}\n" for i in range(40)))
    data = DataConfig(source="a", target="a", directory=str(tmp_path), held_out=fraction)
    corpora = load_corpora(data)
    assert corpora.fingerprints == load_corpora(dataclasses.replace(data, held_out=number)).fingerprints
    assert [len(part) for part in (corpora.validation, corpora.tests["test"])] == [number, number]
    with pytest.raises(DataError, match="cannot set aside 36 of 40 examples"):
        load_corpora(dataclasses.replace(data, held_out=0.45))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "a and a: no pair of sentences in 0 lines (the file is empty)"),
        (b"\n\r\n \n", "a and a: no pair of sentences in 3 lines (a side is empty)"),
        (b"\n" + b"x" * 10_001, "in 2 lines (a side is empty or over 10,000 characters)"),
        (b"\r\r\r", "a ends its lines with carriage returns alone"),
        (b"one\rtwo\r", "a ends its lines with carriage returns alone; convert it with: tr '\\r' '\\n'"),
    ],
)
@pytest.mark.parametrize("part", ["", "validation_"])
def test_files_without_a_sentence_are_named(tmp_path, monkeypatch, capsys, data, message, part):
    """Those of each part, by one line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_bytes(data)
    (tmp_path / "good").write_text("".join(f"s{i}\n" for i in range(9)))
    words = ["train", "translation", "--out", "run", f"--data.{part}source", "a", f"--data.{part}target", "a"]
    if part:
        words += ["--data.source", "good", "--data.target", "good", "--data.held_out", "1"]
    assert main(words) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "good"]


def test_a_vocabulary_that_the_corpus_cannot_fill(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text("".join(f"the sentence {i}\n" for i in range(90)))
    words = ["train", "translation", "--out", "run", "--data.source", "a", "--data.target", "a", "--data.held_out", "5"]
    assert main([*words, "--data.cache", str(tmp_path)]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r"jaxformer train: data\.vocab_size must be at most \d+ for this corpus, got 8000", said)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_runs_of_several_seeds_hold_out_the_same_pairs(tmp_path):
    """Otherwise an ensemble of them would be scored on training data of one of them."""
    (tmp_path / "a").write_text("".join(f"s{i}\n" for i in range(50)))
    data = DataConfig(source="a", target="a", directory=str(tmp_path), held_out=5)
    first, second = (TASK.read(TranslationConfig(data=data, seed=seed)) for seed in (0, 1))
    assert first.fingerprints == second.fingerprints
    assert first.tests["test"] == second.tests["test"]


def test_test_data_of_other_files(tmp_path):
    """A pair of files or one table, and nothing to train on."""
    source, target, table = (tmp_path / name for name in ("new.en", "new.fr", "new.tsv"))
    source.write_text("A cat.\n\nA dog.\n")
    target.write_text("Un chat.\nRien.\nUn chien.\n")
    table.write_text("1\tA cat.\tUn chat.\n2\tA dog.\tUn chien.\n")
    found = [load_test(DataConfig(), [source, str(target)]), load_test(DataConfig(columns=(1, 2)), [table])]
    for corpora, name in zip(found, ("new.en", "new.tsv"), strict=True):
        pairs = corpora.tests[name]
        assert [*zip(pairs.source, pairs.target, strict=True)] == [("A cat.", "Un chat."), ("A dog.", "Un chien.")]
        assert (len(corpora.train), len(corpora.validation), len(corpora.tests)) == (0, 0, 1)
    assert found[0].tests["new.en"].empty == (2,)
    with pytest.raises(ConfigError, match="a file of sentences and one of translations, got 3 files"):
        load_test(DataConfig(), [source, target, table])


def test_sentences_of_the_grammar_are_drawn_once(tmp_path, monkeypatch):
    """What the cache keeps is equal to what is drawn; a damaged file, or one of another grammar, is drawn again."""
    config = DataConfig(corpus="grammar", grammar_pairs=300, cache=str(tmp_path))
    drawn, draw, calls = load_corpora(config), demo.splits, []
    monkeypatch.setattr(demo, "splits", lambda **options: calls.append(options) or draw(**options))
    assert load_corpora(config) == drawn
    assert not calls
    (kept,) = tmp_path.glob("grammar-300-*.json")
    kept.write_bytes(kept.read_bytes().replace(b"The ", b"Tha ", 1))
    assert load_corpora(config) == drawn
    assert len(calls) == 1
    monkeypatch.setattr(demo, "version", lambda: "another")
    assert load_corpora(config) == drawn
    assert len(calls) == 2
