"""Pairs of files and tables, and the lines that are skipped."""

import os
import threading

import pytest

from jaxformer.data import lines
from jaxformer.data.pairs import FilePairs, PairFiles, Parallel, read_pairs, read_parallel, read_table
from jaxformer.data.sources import split_by_source
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


@pytest.fixture
def files(tmp_path):
    """Two pairs of files, with skipped lines, and the same as one pair of texts."""
    parts = [[("s1", "t1"), ("", "t2"), ("s3", "t3"), ("s1", "t4")], [("s5", "x" * 10_001), ("s6", "t6"), ("s7", " ")]]
    paths = []
    for number, part in enumerate(parts):
        sides = [tmp_path / f"{number}.{side}" for side in ("s", "t")]
        for side, path in enumerate(sides):
            write(path, "".join(f"{pair[side]}\n" for pair in part).encode())
        paths.append(tuple(sides))
    return PairFiles(tuple(paths))


@pytest.mark.parametrize("block", [4, 1 << 20])
def test_pairs_stay_in_their_files(files, monkeypatch, block):
    """They are the same as in memory, and each skipped line is named with its file."""
    monkeypatch.setattr(lines, "BLOCK", block)
    pairs = read_pairs(files)
    assert isinstance(pairs, FilePairs)
    kept = [("s1", "t1"), ("s3", "t3"), ("s1", "t4"), ("s6", "t6")]
    assert [pair for block in pairs.blocks() for pair in zip(*block, strict=True)] == kept
    memory = pairs.load()
    assert [*zip(memory.source, memory.target, strict=True)] == kept
    assert (len(pairs), memory.empty, memory.overlong) == (4, (2, 7), (5,))
    assert (
        pairs.report()
        == "4 pairs; skipped 2 with an empty side (line 2 of 0.s, 3 of 1.s) and 1 overlong (line 1 of 1.s)"
    )
    assert pairs.fingerprint == Parallel(memory.source, memory.target).fingerprint
    assert [*pairs.lines()] == ["s1", "s3", "s1", "s6", "t1", "t3", "t4", "t6"]
    parts, same = split_by_source(pairs, held_out=[1], seed=3), split_by_source(memory, held_out=[1], seed=3)
    assert [part.load() for part in parts] == same
    assert [part.fingerprint for part in parts] == [part.fingerprint for part in same]


def test_files_that_change_are_noticed(files):
    pairs = read_pairs(files)
    path = files.files[1][0]
    before = path.stat()
    write(path, b"s5\ns6\nsomething else\n")
    for change in (lambda: None, lambda: write(path, b"s5\n"), lambda: write(path, b"s5\ns6\ns7\ns8\n")):
        change()
        with pytest.raises(DataError, match=r"has changed since it was first read; start again|must be aligned"):
            list(pairs.blocks())
        with pytest.raises(DataError, match="has changed since it was first read; start again"):
            list(pairs.side(0))
    write(path, b"s5\ns6\ns7\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert len(list(pairs.lines())) == 8


@pytest.mark.timeout(60)
def test_a_pipe_is_read_once(tmp_path):
    for name in ("s", "t"):
        os.mkfifo(tmp_path / name)
    writers = [threading.Thread(target=write, args=(tmp_path / name, f"{name}1\n".encode())) for name in ("s", "t")]
    for writer in writers:
        writer.start()
    assert read_pairs(PairFiles(((tmp_path / "s", tmp_path / "t"),))) == Parallel(("s1",), ("t1",))
