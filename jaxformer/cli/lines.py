"""The lines of standard input, in batches of those that wait, and those of files of names."""

from __future__ import annotations

import io
import os
import select
import sys
from collections import deque
from collections.abc import Iterator

from jaxformer.data.sources import read_lines
from jaxformer.errors import DataError


def image_names(path: str | os.PathLike[str]) -> list[str]:
    """Returns the lines of a file, the names of images.

    Raises:
      DataError: see `read_lines`; or there is no file of a name. The message has the line.
    """
    names = read_lines(path)
    for number, name in enumerate(names, 1):
        if not os.path.exists(name):
            raise DataError(f"{path}, line {number}: there is no file {name!r}")
    return names


def standard_input(most: int = 1) -> Iterator[list[tuple[int, str]]]:
    """Yields lines with their numbers, from 1: those that wait, at least one and at most `most` of them.

    A line is never held back for another that has not come yet.

    Raises:
      DataError: a line is not UTF-8; the lines before it have been yielded.
    """
    number, waiting = 0, _Lines()
    while lines := waiting.take(most):
        batch = []
        for line in lines:
            number += 1
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\n")
                batch.append((number, text.rstrip("\r")))
            except UnicodeDecodeError as error:
                if batch:
                    yield batch
                byte = error.object[error.start]
                raise DataError(f"standard input, line {number}: not UTF-8 (byte 0x{byte:02x})") from error
        yield batch


class _Lines:
    """The bytes of standard input as lines; they are read here, since no stream says what it holds already."""

    def __init__(self) -> None:
        self._stream = sys.stdin.buffer  # bytes, because the decoding of text depends on the locale
        try:
            self._descriptor = self._stream.fileno()
        except io.UnsupportedOperation:  # bytes in memory
            self._descriptor = None
        self._lines: deque[bytes] = deque()
        self._rest, self._ended = b"", False

    def take(self, most: int) -> list[bytes]:
        """Returns the lines that wait, at most `most`; waits for the first one. None are left at the end."""
        while not self._ended and (not self._lines or (len(self._lines) < most and self._ready())):
            self._read()
        return [self._lines.popleft() for _ in range(min(most, len(self._lines)))]

    def _ready(self) -> bool:
        return self._descriptor is None or bool(select.select([self._descriptor], [], [], 0)[0])

    def _read(self) -> None:
        data = self._stream.read(1 << 16) if self._descriptor is None else os.read(self._descriptor, 1 << 16)
        *lines, rest = (self._rest + data).split(b"\n")
        self._lines.extend(line + b"\n" for line in lines)
        self._rest, self._ended = rest, not data
        if self._ended and rest:
            self._lines.append(rest)
