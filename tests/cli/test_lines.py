"""Lines of standard input: numbered, decoded, and named where they are not UTF-8."""

import io
import os
import sys

import pytest

from jaxformer.cli.lines import standard_input
from jaxformer.data.lines import read_lines
from jaxformer.errors import DataError


def give(monkeypatch, data):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [(1, "")]),
        ("\ufeffété\r\nb".encode(), [(1, "été"), (2, "b")]),
        ("a\n\ufeffb\n".encode(), [(1, "a"), (2, "\ufeffb")]),  # a mark of the byte order, only where it is first
        ("a\u2028b c \n".encode(), [(1, "a\u2028b c ")]),
    ],
)
def test_lines(monkeypatch, data, lines):
    give(monkeypatch, data)
    assert [line for batch in standard_input() for line in batch] == lines


@pytest.mark.parametrize("data", [b"a\r\r\nb\rc\n\r\n\n", b"a\r\nb\r", b"\n\n", b"a\n \n"])
def test_lines_are_those_of_a_file(monkeypatch, tmp_path, data):
    """Carriage returns that end no line are parts of the text."""
    (tmp_path / "lines").write_bytes(data)
    give(monkeypatch, data)
    assert [text for batch in standard_input() for _, text in batch] == read_lines(tmp_path / "lines")


def test_lines_before_a_bad_one_are_yielded(monkeypatch):
    give(monkeypatch, b"one\ntwo\xe9\n")
    lines = standard_input(9)
    assert next(lines) == [(1, "one")]
    with pytest.raises(DataError, match=r"standard input, line 2: not UTF-8 \(byte 0xe9\)"):
        next(lines)


def test_available_lines_are_returned_together_and_at_once(monkeypatch):
    """The first line is returned while the stream is open and silent; then all available lines, up to the limit."""
    read, write = os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(read))
    batches = standard_input(3)
    os.write(write, b"one\nbeg")
    assert next(batches) == [(1, "one")]
    os.write(write, b"in\nthree\nfour\nfive\nlast")
    assert next(batches) == [(2, "begin"), (3, "three"), (4, "four")]
    assert next(batches) == [(5, "five")]
    os.close(write)
    assert next(batches) == [(6, "last")]
    assert list(batches) == []
    sys.stdin.close()


def test_all_lines_of_a_file_are_available(monkeypatch, tmp_path):
    """Lines that do not fit in one read are one batch, too."""
    lines = [str(i) * 40_000 for i in range(5)]
    (tmp_path / "lines").write_text("\n".join(lines))
    with (tmp_path / "lines").open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert [[text for _, text in batch] for batch in standard_input(4)] == [lines[:4], lines[4:]]
