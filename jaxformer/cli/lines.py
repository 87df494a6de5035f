"""The lines of standard input, one at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from jaxformer.errors import DataError


def standard_input() -> Iterator[tuple[int, str]]:
    """Yields each line with its number, from 1.

    Raises:
      DataError: a line is not UTF-8.
    """
    for number, line in enumerate(sys.stdin.buffer, 1):  # bytes, because the decoding of text depends on the locale
        try:
            yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise DataError(f"standard input, line {number}: not UTF-8 (byte 0x{byte:02x})") from error
