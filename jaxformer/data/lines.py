"""Text files, compressed or not, read in blocks of whole lines, so that a file of any size takes little memory."""

from __future__ import annotations

import codecs
import gzip
import importlib
import operator
import os
import pathlib
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

from jaxformer.errors import ConfigError, DataError

try:
    import lzma
except ImportError:  # Python was built without it
    lzma = None

BLOCK = 1 << 20
"""The number of bytes that are read at once."""

LARGEST_STREAM = 1 << 30
"""The maximum number of bytes read from a file that is not regular, such as a pipe; ``/dev/zero`` never ends."""

LONGEST_LINE = 1 << 28
"""The maximum number of bytes of a line, which is read whole."""

_PACKED = {"unzip": (0, b"PK\3\4"), "tar -xf": (257, b"ustar")}
"""Commands that unpack files, and the offset and signature that identify these files; a tar of texts is valid UTF-8."""

ZSTD = ("compression.zstd", "backports.zstd")
"""The modules that read zstd: Python's own from 3.14 on, and a package with the same functions."""

Path = str | os.PathLike[str]

Cells = tuple[str, ...]
"""The texts in some columns of a line."""


def read_utf8(path: Path) -> str:
    """Returns the text of a UTF-8 file, without a byte order mark, every line end as ``"\\n"``.

    A file that is compressed by gzip, xz or zstd, whatever its name, is read as what it holds.

    Raises:
      DataError: the file is missing, unreadable, cut off or endless, or a line is not UTF-8; or all lines end with
        carriage returns alone.
      ConfigError: it is compressed by zstd, and no package reads that.
    """
    return "".join(text for _, text in _texts(path))


def read_lines(path: Path) -> list[str]:
    """Returns the lines of a UTF-8 file, without line ends.

    Raises:
      DataError, ConfigError: see `read_utf8`.
    """
    return [line for _, lines in line_blocks(path) for line in lines]


def line_blocks(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields the lines of a UTF-8 file in blocks, each with the number of its first line, from 1.

    Raises:
      DataError, ConfigError: see `read_utf8`.
    """
    for number, text in _texts(path):
        lines = text.split("\n")
        if not lines[-1]:
            lines.pop()
        yield number, lines


def column_blocks(
    path: Path,
    columns: Sequence[int],
    what: str,
    separator: str = "\t",
    most: int = -1,
    is_note: Callable[[list[str]], bool] | None = None,
) -> Iterator[tuple[int, list[Cells | None]]]:
    """Yields two or more columns of a table in blocks of lines, each with the number of its first line, from 1.

    A blank line has no cells, but None; a note is an empty tuple.

    Args:
      columns: the columns, counted from 0.
      what: what the columns hold, for messages, with ``{}`` for each number.
      most: the largest number of separators in a line; any by default.
      is_note: returns True for the texts of a line that belongs to no row, such as a comment.

    Raises:
      DataError: a line has too few columns, or text in a column that another line lacks, as after a tab in a
        sentence; or see `read_utf8`.
    """
    pick, check = operator.itemgetter(*columns), _SameColumns(str(path), separator)
    for number, lines in line_blocks(path):
        rows = [line.split(separator, most) if line.strip() else [] for line in lines]
        notes = [i for i, row in enumerate(rows) if row and is_note(row)] if is_note else []
        for i in notes:
            rows[i] = []
        check.add(number, rows)
        try:
            cells = [pick(row) if row else None for row in rows]
        except IndexError:
            line, row = next((i, row) for i, row in enumerate(rows, number) if row and len(row) <= max(columns))
            raise DataError(f"{path}, line {line}: {len(row)} column(s), but {what.format(*columns)}") from None
        for i in notes:
            cells[i] = ()
        yield number, cells
    check.end()


def read_columns(
    path: Path, columns: Sequence[int], what: str, separator: str = "\t", most: int = -1
) -> Iterator[tuple[int, *Cells]]:
    """Yields the number of each line of a table that is not blank, and its cells in these columns: see `column_blocks`.

    Raises:
      DataError: see `column_blocks`.
    """
    for number, cells in column_blocks(path, columns, what, separator, most):
        for line, found in enumerate(cells, number):
            if found is not None:
                yield line, *found


class _SameColumns:
    """Checks that no line has text in a column that another line lacks; empty columns at its end may be missing.

    It keeps a line for each number of columns, so a table of any length takes no more memory.
    """

    def __init__(self, place: str, separator: str):
        self._place, self._separator = place, separator
        self._short: dict[int, int] = {}  # the first line with this number of columns
        self._filled: dict[int, tuple[int, int]] = {}  # the first line whose last text is in this column, its columns

    def add(self, number: int, rows: list[list[str]]) -> None:
        """Adds the rows of lines from this number on."""
        if set(map(len, rows)) - {0} <= self._short.keys() & self._filled.keys():
            return  # a line before them has as many columns, and text in the last: it is the one to name
        for line, row in enumerate(rows, number):
            if row:
                self._short.setdefault(len(row), line)
                filled = next((i for i in range(len(row), 0, -1) if row[i - 1].strip()), 0)
                self._filled.setdefault(filled, (line, len(row)))

    def end(self) -> None:
        """Checks all rows.

        Raises:
          DataError: a line has such text; the message has both lines.
        """
        fewest = min(self._short, default=0)
        if beyond := [found for filled, found in self._filled.items() if filled > fewest]:
            line, columns = min(beyond)
            raise DataError(
                f"{self._place}, line {line}: {columns} columns, but line {self._short[fewest]} has {fewest}; a text "
                f"must not contain {self._separator!r}"
            )


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yields a file as parts that end with a line, every line end as ``"\\n"``, and the number of the first line."""
    number, waiting, size = 1, list[bytes](), 0
    for data in _checked(path):
        cut = data.rfind(b"\n") + 1
        size += len(data)
        if not cut:
            waiting.append(data)
            if size > LONGEST_LINE:
                _refuse_returns(path, b"".join(waiting), number)
                raise DataError(f"{path}, line {number} has more than {LONGEST_LINE:,} bytes; is it a text?")
            continue
        block = b"".join([*waiting, data[:cut]])
        yield number, _decoded(path, block, number)
        number += block.count(b"\n")
        waiting, size = [data[cut:]], len(data) - cut
    if rest := b"".join(waiting):
        _refuse_returns(path, rest, number)
        yield number, _decoded(path, rest, number)


def _refuse_returns(path: Path, rest: bytes, number: int) -> None:
    if number == 1 and b"\r" in rest:
        raise DataError(f"{path} ends its lines with carriage returns alone; convert it with: tr '\\r' '\\n'")


def _decoded(path: Path, data: bytes, number: int) -> str:
    try:
        return data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = number + data.count(b"\n", 0, error.start)
        raise DataError(f"{path}, line {line}: not UTF-8 (byte 0x{data[error.start]:02x})") from error


def _checked(path: Path) -> Iterator[bytes]:
    """Yields the bytes of a file after its byte order mark; checks by its beginning that it is a text in UTF-8."""
    first = True
    for data in _chunks(path):
        if first:
            packer = next((command for command, (start, mark) in _PACKED.items() if data.startswith(mark, start)), "")
            if packer:
                raise DataError(f"{path} looks compressed or packed; unpack it, for example with: {packer}")
            if encoding := _wide_encoding(data):
                raise DataError(
                    f"{path} looks like {encoding}; convert it, for example with: iconv -f {encoding} -t UTF-8"
                )
            data, first = data.removeprefix(codecs.BOM_UTF8), False
        yield data


def _chunks(path: Path) -> Iterator[bytes]:
    """Yields the bytes that a file holds, decompressed."""
    try:
        with pathlib.Path(path).open("rb") as file:
            regular, total = stat.S_ISREG(os.fstat(file.fileno()).st_mode), 0
            stream, broken = _decompressing(file, path)
            try:
                while data := stream.read(BLOCK):
                    total += len(data)
                    if not regular and total > LARGEST_STREAM:
                        end = f"does not end after {LARGEST_STREAM:,} bytes"
                        raise DataError(f"{path} is not a regular file and {end}; name a file")
                    yield data
            except broken as error:
                raise DataError(f"{path} is damaged or cut off ({error}); copy it again") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _decompressing(file: BinaryIO, path: Path) -> tuple[BinaryIO, tuple[type[Exception], ...]]:
    """Returns a stream of what a file holds, and its errors for a damaged file."""
    start = file.peek(6)[:6]  # pyright: ignore[reportAttributeAccessIssue]
    if start.startswith(b"\x1f\x8b"):
        return gzip.open(file), (gzip.BadGzipFile, EOFError, zlib.error)  # pyright: ignore[reportReturnType]
    if start == b"\xfd7zXZ\0":
        if lzma is None:
            raise DataError(f"{path} is compressed by xz, which this Python does not read; unpack it with: unxz")
        return lzma.open(file), (lzma.LZMAError, EOFError)  # pyright: ignore[reportReturnType]
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        zstd = _zstd(path)
        return zstd.open(file), (zstd.ZstdError, EOFError)
    return file, ()


def _zstd(path: Path) -> Any:
    """Returns a module of `ZSTD`."""
    for name in ZSTD:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ConfigError(f"{path} is compressed by zstd: pip install 'jaxformer[zstd]', or unpack it with: unzstd")


def _wide_encoding(data: bytes) -> str:
    """Returns "UTF-16" or "UTF-32" if bytes look like text in it, else an empty text.

    Without a byte order mark, English in these encodings is valid UTF-8, with one or three NULs for each letter.
    """
    nulls = data.count(0) / max(len(data), 1)
    if data.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)) or nulls > 0.6:
        return "UTF-32"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or nulls > 0.25:
        return "UTF-16"
    return ""
