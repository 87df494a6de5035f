"""``configs``: one line for each configuration; ``data``: downloads by name, and the built-in corpus as files."""

import importlib
import os

import pytest

from jaxformer import demo
from jaxformer.cli import main
from jaxformer.cli.catalogs import configs, data
from jaxformer.data import fetch, pipeline, units
from jaxformer.errors import ConfigError
from jaxformer.tasks import registry


def test_every_configuration_has_a_line(capsys, monkeypatch, tmp_path):
    """The built-in ones, and those below ./experiments, whose code does not run."""
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "mine.py").write_text("raise SystemExit(3)\ndef small():\n    'A small one.'\n")
    monkeypatch.chdir(tmp_path)
    assert configs([]) == 0
    lines = capsys.readouterr().out.splitlines()
    names, summaries = zip(*(line.split(maxsplit=1) for line in lines), strict=True)
    assert names == (*registry.BUILTIN, "mine:small")
    assert summaries[-1] == "A small one."
    assert len({line.index(summary) for line, summary in zip(lines, summaries, strict=True)}) == 1


@pytest.mark.parametrize("name", registry.BUILTIN)
def test_the_summary_is_the_first_line_of_the_docstring(name, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert configs([]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.split()[0] == name]
    docstring = getattr(importlib.import_module(registry.BUILTIN[name]), name.rpartition(":")[2]).__doc__
    assert line.removeprefix(name).strip() == docstring.splitlines()[0]


def test_a_named_pipe_is_not_a_configuration(capsys, monkeypatch, tmp_path):
    """The pipe has no writer, so a reader would wait forever."""
    (tmp_path / "experiments" / "folder.py").mkdir(parents=True)
    os.mkfifo(tmp_path / "experiments" / "pipe.py")
    monkeypatch.chdir(tmp_path)
    assert configs([]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(registry.BUILTIN)


def test_the_catalog_is_listed(capsys):
    assert data(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(fetch.CATALOG)
    assert all(corpus.about in line for line, corpus in zip(lines, fetch.CATALOG.values(), strict=True))


def test_the_built_in_corpus_as_files(tmp_path, capsys, monkeypatch):
    """Files are aligned, and include all parts of the demo; only the number of pairs is smaller here."""
    parts = demo.splits(num_train=4_000)
    monkeypatch.setattr(demo, "splits", lambda: parts)
    assert data(["grammar", "--out", str(tmp_path)]) == 0
    for name in ("train", "validation", "seen", "unseen"):
        english, french = ((tmp_path / f"{name}.{code}").read_text().splitlines() for code in ("en", "fr"))
        pairs = getattr(parts, name)
        assert list(zip(english, french, strict=True)) == [(pair.english, pair.french) for pair in pairs]
        rows = [line.split("\t") for line in (tmp_path / f"{name}.tags.tsv").read_text().splitlines()]
        assert [tuple(row) for row in rows if row != [""]] == [
            row for pair in pairs for row in zip(demo.words(pair.english), pair.tags, strict=True)
        ]
        assert rows.count([""]) == len(pairs)
    assert f"{tmp_path / 'train'}.en, .fr, .tags.tsv: {len(parts.train):,} pairs" in capsys.readouterr().out


def test_a_text_of_the_user_is_not_overwritten(tmp_path, capsys, monkeypatch):
    """The file and folder names are common ones; the same corpus may be written again."""
    parts = demo.splits(num_train=4_000)
    monkeypatch.setattr(demo, "splits", lambda: parts)
    (tmp_path / "unseen.fr").write_text("le mien\n")
    assert main.main(["data", "grammar", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"jaxformer data: {tmp_path / 'unseen.fr'} exists and holds another text; name another folder with --out\n"
    )
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"unseen.fr": "le mien\n"}
    (tmp_path / "unseen.fr").unlink()
    assert [main.main(["data", "grammar", "--out", str(tmp_path)]) for _ in range(2)] == [0, 0]


@pytest.mark.parametrize("action", ["grammar", "list"])
def test_an_unknown_argument_is_refused(tmp_path, capsys, monkeypatch, action):
    """A folder without --out was ignored, and the corpus was written to another place."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "splits", lambda: pytest.fail("the work has begun"))
    with pytest.raises(ConfigError, match=f"^{action} takes no name, got 'corpus'; a folder is given by --out$"):
        data([action, "corpus"])
    assert not list(tmp_path.iterdir())


def test_a_corpus_is_fetched_by_name(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fetch, "fetch", lambda name, out, say: [out / f"{name}.en"])
    assert data(["fetch", "multi30k", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'multi30k.en'}\n"


@pytest.mark.parametrize("name", ["file", "file/below", "broken"])
def test_a_file_in_place_of_the_folder_is_refused(tmp_path, capsys, name):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "broken").symlink_to("nowhere")
    assert main.main(["data", "grammar", "--out", str(tmp_path / name)]) == 2
    expected = f"--out: cannot write in '{tmp_path / name}': Not a directory; name a folder"
    assert expected in capsys.readouterr().err.splitlines()[-1]
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["demo"], "--out is missing"),
        (["demo", "--out", "c", "--part", "3/2"], "--part must be I/N, such as 3/8, with I from 1 to N, got '3/2'"),
        (["demo", "--out", "c", "--part", "0/2"], "--part must be I/N"),
        (["demo", "--out", "c", "--workers", "0"], "--workers: must be at least 1, got 0"),
        (["language_model", "--out", "c"], "prepare is for translation; the data of language_model are prepared by"),
        (["translation", "--out", "c"], "no training data: give --data.source FILE"),
        (["translation", "--out", "c", "--data.sourse", "x"], "unknown setting"),
    ],
)
def test_wrong_words(tmp_path, monkeypatch, capsys, words, message):
    """One line, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    assert main.main(["data", "prepare", *words]) == 2
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
    assert main.main([*words, "--part", "2/2"]) == 0
    said = capsys.readouterr().err
    assert "a vocabulary from 100 of 364 sentences in" in said
    assert "part 2 of 2 is done; 3 units of other parts are missing" in said
    assert main.main([*words, "--part", "1/2"]) == 0
    assert "all pairs are tokenized: train with --data.cache c" in capsys.readouterr().err
    assert len(list((tmp_path / "c").iterdir())) == 3
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "c").rglob("*")}
    assert main.main(words) == 0
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "c").rglob("*")} == before
