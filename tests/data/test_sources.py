"""Bad files give a message that names the file and the line."""

import gzip
import itertools
import os
import tarfile
import threading
import zipfile

import pytest

from jaxformer.cli.main import main
from jaxformer.data import sources
from jaxformer.data.sources import Parallel, read_parallel, read_table, split_by_source
from jaxformer.errors import DataError


def write(path, data):
    path.write_bytes(data)
    return path


def test_pairs_are_read_and_skipped_lines_reported(tmp_path):
    source = write(tmp_path / "s", b"one\n\nthree\n" + b"x" * 50 + b"\nfive\n")
    target = write(tmp_path / "t", b"un\ndeux\ntrois\nquatre\ncinq")
    pairs = read_parallel(source, target, max_characters=20)
    assert pairs.source == ("one", "three", "five")
    assert pairs.target == ("un", "trois", "cinq")
    assert (pairs.empty, pairs.overlong) == ((2,), (4,))
    assert pairs.report() == "3 pairs; skipped 1 with an empty side (line 2) and 1 overlong (line 4)"


def test_keeps_unusual_spaces_inside_lines(tmp_path):
    source = write(tmp_path / "s", "a\u2028b\x0bc\n".encode())
    assert read_parallel(source, source).source == ("a\u2028b\x0bc",)


def test_windows_files(tmp_path):
    source = write(tmp_path / "s", b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert read_parallel(source, source).source == ("one", "two")


def test_unequal_line_counts_names_both(tmp_path):
    source, target = write(tmp_path / "s", b"a\nb\n"), write(tmp_path / "t", b"a\n")
    with pytest.raises(DataError, match=r"s has 2 lines, but .*t has 1"):
        read_parallel(source, target)


def test_invalid_utf8_names_file_and_line(tmp_path):
    with pytest.raises(DataError, match=r"bad, line 2: not UTF-8 \(byte 0xff\)"):
        read_parallel(write(tmp_path / "bad", b"a\nb\xff\n"), tmp_path / "bad")
    with pytest.raises(DataError, match=r"mark, line 2: not UTF-8 \(byte 0xff\)"):
        read_parallel(write(tmp_path / "mark", b"\xef\xbb\xbfa\n\xff\n"), tmp_path / "mark")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"])
def test_utf16_is_named(tmp_path, encoding):
    """English in UTF-16 without a byte order mark is valid UTF-8, with a NUL after each letter."""
    path = write(tmp_path / "bad", "A dog runs.\nShe sings.\n".encode(encoding))
    with pytest.raises(DataError, match=f"bad looks like {encoding[:6].upper()}; convert it, for example with: iconv"):
        read_parallel(path, path)


def test_a_packed_text_is_named(tmp_path):
    """Even a tar file, which is valid UTF-8 with few NULs, so its header would be the first line of the text."""
    text = write(tmp_path / "text", b"To be\n" * 9999)
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"To be"))
    with zipfile.ZipFile(tmp_path / "text.zip", "w") as archive:
        archive.write(text, "text")
    with tarfile.open(tmp_path / "text.tar", "w") as archive:
        archive.add(text, "text")
    for suffix, command in (("gz", "gunzip"), ("zip", "unzip"), ("tar", "tar -xf")):
        message = rf"text\.{suffix} looks compressed or packed; unpack it, for example with: {command}"
        with pytest.raises(DataError, match=message):
            sources.read_utf8(tmp_path / f"text.{suffix}")


@pytest.mark.timeout(60)
def test_a_device_that_never_ends_is_refused(tmp_path, monkeypatch):
    """A pipe, such as that of ``<(zcat file)`` in a shell, is read to its end."""
    monkeypatch.setattr(sources, "LARGEST_STREAM", 1 << 16)
    with pytest.raises(DataError, match=r"/dev/zero is not a regular file and does not end after 65,536 bytes"):
        sources.read_lines("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"a\n" * (1 << 15),))
    writer.start()
    assert len(sources.read_lines(tmp_path / "pipe")) == 1 << 15
    writer.join()


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
        sources.read_lines(sources.locate("a" * 300))


def test_missing_file(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*nowhere"):
        read_parallel(tmp_path / "nowhere", tmp_path / "nowhere")


def test_table(tmp_path):
    table = write(tmp_path / "t.tsv", b"Go.\tVa !\tx\nRun!\tCours !\ty\n")
    assert read_table(table, columns=(1, 0)).source == ("Va !", "Cours !")
    with pytest.raises(DataError, match=r"line 1: 3 column\(s\), but .* in column 0 and its translation in column 5,"):
        read_table(table, columns=(0, 5))


def test_a_missing_file_of_translations_is_named(tmp_path):
    """One file is read as a table; who forgot the other learns that."""
    source = write(tmp_path / "my.en", b"Go.\nRun!\n")
    with pytest.raises(DataError, match=r"my.en, line 1: 1 column\(s\), .* or name the file of the translations"):
        read_table(source)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "Go.\tVa !\nA\tdog\tUn chien\n",
            r"t\.tsv, line 2: 3 columns, but line 1 has 2; a text must not contain '\\t'",
        ),
        ("A\tdog\tUn chien\n\nGo.\tVa !\n", r"t\.tsv, line 1: 3 columns, but line 3 has 2"),
        ("Go.\tVa !\t\n\n \t\nRun!\tCours !\nHi.\tSalut.\t \t", ""),
        ("Go.\tVa !\t\nRun!\tCours !\tby me\n", ""),
    ],
)
def test_a_tab_in_a_sentence_is_refused(tmp_path, text, message):
    """Its other half would be the translation. Columns that are empty may be missing at the end of a line."""
    table = write(tmp_path / "t.tsv", text.encode())
    if not message:
        assert read_table(table).target[:2] == ("Va !", "Cours !")
        return
    with pytest.raises(DataError, match=message):
        read_table(table)


def test_a_line_of_spaces_is_a_skipped_line_of_a_table(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("a\tb\n   \n\nc\td\n")
    found = read_table(path)
    assert (list(found.source), list(found.target)) == (["a", "c"], ["b", "d"])


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


@pytest.mark.full
def test_tatoeba_splits_do_not_leak(data_directory):
    pairs = read_table(data_directory / "tatoeba" / "eng-fra.tsv")
    rest, dev, test = split_by_source(pairs, held_out=[2000, 2000], seed=0)
    assert not set(rest.source) & (set(dev.source) | set(test.source))
    assert len(rest) + len(dev) + len(test) == len(pairs)
