"""The lines of standard input, in batches of available lines, and of files that list images."""

from __future__ import annotations

import io
import os
import pathlib
import select
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from jaxformer.data.lines import read_lines
from jaxformer.errors import DataError


def image_names(path: str | os.PathLike[str]) -> list[str]:
    """Returns the names of images in a file, one per line."""
    names = read_lines(path)
    for number, name in enumerate(names, 1):
        if not os.path.exists(name):
            raise DataError(f"{path}, line {number}: there is no file {name!r}")
    return names


def batches(
    inputs: Sequence[str],
    file: pathlib.Path | None = None,
    *,
    most: int = 1,
    size: int | None = None,
    read: Callable[[pathlib.Path], Sequence[str]] = read_lines,
) -> Iterator[list[tuple[int, str]]]:
    """Yields the inputs of a command with their numbers, from 1: its arguments, the lines of a file, or standard input.

    Args:
      most: see `standard_input`.
      size: the number of arguments, or of lines of a file, in a batch; all by default.
    """
    if not inputs and file is None:
        yield from standard_input(most)
        return
    numbered = list(enumerate(inputs if file is None else read(file), 1))
    for start in range(0, len(numbered), size or len(numbered) or 1):
        yield numbered[start : start + (size or len(numbered))]


def standard_input(most: int = 1) -> Iterator[list[tuple[int, str]]]:
    """Yields batches of available lines, at least one and at most `most`, with their numbers, from 1.

    An available line is never delayed to wait for another one. A line ends as in a file: see `read_utf8`.

    Raises:
      DataError: a line is not UTF-8; the lines before it have been yielded.
    """
    number, waiting = 0, _Lines()
    while lines := waiting.take(most):
        batch = []
        for line in lines:
            number += 1
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                batch.append((number, text.removesuffix("\r\n" if text.endswith("\r\n") else "\n")))
            except UnicodeDecodeError as error:
                if batch:
                    yield batch
                byte = error.object[error.start]
                raise DataError(f"standard input, line {number}: not UTF-8 (byte 0x{byte:02x})") from error
        yield batch


class _Lines:
    """The bytes of standard input as lines, read directly because streams cannot tell which lines are available."""

    def __init__(self) -> None:
        self._stream = sys.stdin.buffer  # bytes, because the decoding of text depends on the locale
        try:
            self._descriptor = self._stream.fileno()
        except io.UnsupportedOperation:  # bytes in memory
            self._descriptor = None
        self._lines: deque[bytes] = deque()
        self._rest, self._ended = b"", False

    def take(self, most: int) -> list[bytes]:
        """Waits for a line, and returns all available ones, at most `most`; returns none at the end of the input."""
        while not self._ended and (not self._lines or (len(self._lines) < most and self._ready())):
            self._read()
        return [self._lines.popleft() for _ in range(min(most, len(self._lines)))]

    def _ready(self) -> bool:
        return self._descriptor is None or bool(select.select([self._descriptor], [], [], 0)[0])

    def _read(self) -> None:
        data = self._stream.read(1 << 16) if self._descriptor is None else os.read(self._descriptor, 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._lines.extend(line + b"\n" for line in lines)
        self._ended = not data
        if self._ended and self._rest:
            self._lines.append(self._rest)
