"""Files are found where settings name them, and equal sentences are held out together."""

import hashlib
import itertools
import pathlib
import random

import numpy as np
import pytest

from jaxformer.cli.main import main
from jaxformer.data import sources
from jaxformer.data.lines import read_lines
from jaxformer.data.pairs import Parallel, read_table
from jaxformer.data.sources import held_out_rows, split_by_source
from jaxformer.errors import DataError


def test_relative_paths(tmp_path, monkeypatch):
    """The working directory, then JAXFORMER_DATA; or only the given folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAXFORMER_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", "/home/me")
    (tmp_path / "data").mkdir()
    for name in ("here", "~no-user.txt", "data/there", "my.zip"):
        (tmp_path / name).touch()
    assert [str(sources.locate(name)) for name in ("here", "my.zip/train", "/x")] == ["here", "my.zip/train", "/x"]
    assert sources.locate("there") == tmp_path / "data" / "there"
    assert [str(sources.locate(name)) for name in ("~/x", "~no-user.txt")] == ["/home/me/x", "~no-user.txt"]
    assert [str(sources.locate(name, "/own")) for name in ("here", "/x")] == ["/own/here", "/x"]
    assert str(sources.locate("here", "~/own")) == "/home/me/own/here"  # a shell leaves --data.directory=~/own as it is


def test_a_file_that_is_missing_here_and_in_the_corpora_is_named_in_both(tmp_path, monkeypatch, capsys):
    """A misspelled name of a local file was named only below JAXFORMER_DATA."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAXFORMER_DATA", "/corpora")
    for words in (["translation", "--data.source"], ["language_model", "--data.text"], ["vision", "--data.train"]):
        assert main(["train", *words, "my.ne", "--out", "run"]) == 2
        message = "cannot read my.ne: there is no such file here, nor /corpora/my.ne (JAXFORMER_DATA)"
        assert capsys.readouterr().err.splitlines()[-1] == f"jaxformer train: {message}"
    assert not list(tmp_path.iterdir())


def test_a_name_that_is_too_long_is_refused(monkeypatch):
    monkeypatch.delenv("JAXFORMER_DATA", raising=False)
    with pytest.raises(DataError, match=r"cannot read .*: File name too long"):
        read_lines(sources.locate("a" * 300))


def test_split_keeps_sentences_together():
    pairs = Parallel(tuple(f"s{i // 3}" for i in range(300)), tuple(f"t{i}" for i in range(300)))
    parts = split_by_source(pairs, held_out=[30, 30], seed=1)
    assert sorted(t for part in parts for t in part.target) == sorted(pairs.target)
    sources = [set(part.source) for part in parts]
    assert not any(a & b for a, b in itertools.combinations(sources, 2))
    assert all(30 <= len(part) <= 33 for part in parts[1:])
    assert split_by_source(pairs, held_out=[30, 30], seed=2)[1].source != parts[1].source
    with pytest.raises(DataError, match="set aside 160 of 300"):  # more than half
        split_by_source(pairs, held_out=[160], seed=1)


@pytest.mark.parametrize("distinct", [1, 2, 3])
def test_too_few_distinct_sources_are_refused(distinct):
    pairs = Parallel(tuple(f"s{i % distinct}" for i in range(60)), tuple(map(str, range(60))))
    with pytest.raises(DataError, match=f"15 of 60 examples: only {distinct} of them differ"):
        split_by_source(pairs, held_out=[5, 5, 5], seed=0)


def by_sorting(texts, sizes, seed):
    """The parts as they are defined: whole groups of equal texts, in the order of their hashes."""
    order = iter(sorted(set(texts), key=lambda text: hashlib.sha256(f"{seed}\n{text}".encode()).digest()))
    rows_of = {}
    for row, text in enumerate(texts):
        rows_of.setdefault(text, []).append(row)
    parts = []
    for size in sizes:
        part = []
        while len(part) < size:
            part += rows_of[next(order)]
        parts.append(sorted(part))
    return parts


@pytest.mark.parametrize("hashes", [100, 1 << 20])
@pytest.mark.parametrize("distinct", [40, 900, 5000])
@pytest.mark.parametrize("sizes", [[1], [30, 30], [0, 200, 7], [600, 600]])
def test_held_out_rows_are_those_with_the_smallest_hashes(monkeypatch, distinct, sizes, hashes):
    monkeypatch.setattr(sources, "HASHES", hashes)
    draw = random.Random(distinct)
    texts = [f"s{min(draw.randrange(distinct), draw.randrange(distinct))}" for _ in range(3000)]
    found = held_out_rows(lambda: [texts[:1234], [], texts[1234:]], sizes=sizes, seed=5)
    assert [rows.tolist() for rows in found] == by_sorting(texts, sizes, 5)


def test_rows_of_one_text_go_together():
    """A text that is most of the corpus needs more rows than usual, or is the only one held out."""
    texts = ["a"] * 5000 + [f"b{i}" for i in range(100)]
    for seed in range(8):
        (rows,) = held_out_rows(lambda: [texts], sizes=[90], seed=seed)
        assert [rows.tolist()] == by_sorting(texts, [90], seed)
    assert np.array_equal(held_out_rows(lambda: [["a"] * 9 + ["b"]], sizes=[0], seed=0), [[]])


def test_lists_and_patterns_of_files(tmp_path, monkeypatch):
    """A file that has such a name itself comes first."""
    monkeypatch.setenv("JAXFORMER_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for name in ("b.en", "a.en", "a,b", "data/c1.en", "data/c2.en", "[x].en"):
        (tmp_path / name).touch()
    names = lambda text, directory="": [str(path) for path in sources.locate_all(text, directory)]
    assert names("b.en, a.en") == ["b.en", "a.en"]
    assert names("a,b") == ["a,b"]
    assert names("[x].en") == ["[x].en"]
    assert names("?.en") == ["a.en", "b.en"]
    assert names("c*.en,a.en") == [str(tmp_path / "data" / "c1.en"), str(tmp_path / "data" / "c2.en"), "a.en"]
    assert names("*.en", str(tmp_path / "data"))[0] == str(tmp_path / "data" / "c1.en")
    (tmp_path / "[x]").mkdir()
    (tmp_path / "[x]" / "a.en").touch()
    assert names("*.en", "[x]") == [str(pathlib.Path("[x]") / "a.en")]
    with pytest.raises(DataError, match=r"no file matches d\*\.en"):
        names("a.en,d*.en")


@pytest.mark.full
def test_tatoeba_splits_do_not_leak(data_directory):
    pairs = read_table(data_directory / "tatoeba" / "eng-fra.tsv")
    rest, dev, test = split_by_source(pairs, held_out=[2000, 2000], seed=0)
    assert not set(rest.source) & (set(dev.source) | set(test.source))
    assert len(rest) + len(dev) + len(test) == len(pairs)
