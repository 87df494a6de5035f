"""Lines of standard input: numbered, decoded, and named where they are not UTF-8."""

import io
import sys

import pytest

from jaxformer.cli.lines import standard_input
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
    assert list(standard_input()) == lines


def test_lines_before_a_bad_one_are_yielded(monkeypatch):
    give(monkeypatch, b"one\ntwo\xe9\n")
    lines = standard_input()
    assert next(lines) == (1, "one")
    with pytest.raises(DataError, match=r"standard input, line 2: not UTF-8 \(byte 0xe9\)"):
        next(lines)
