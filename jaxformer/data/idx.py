"""IDX files, the format of MNIST: a header with the shape, then bytes; optionally gzipped."""

from __future__ import annotations

import gzip
import math
import os
import pathlib
import stat
import zlib
from typing import BinaryIO

import numpy as np

from jaxformer.errors import DataError
from jaxformer.files import write_bytes

LARGEST = 1 << 32
"""The largest array in bytes."""
_TYPES = (b"\x08", b"\x09", b"\x0b", b"\x0c", b"\x0d", b"\x0e")
_GZIP = b"\x1f\x8b"


def is_idx(path: str | os.PathLike[str]) -> bool:
    """Returns True if a file begins like an IDX file of any number type, gzipped or not.

    A file that is not regular, such as a pipe, is not opened, because reading would consume its data.

    Raises:
      DataError: the file cannot be read.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        with pathlib.Path(path).open("rb") as raw, _plain(raw) as stream:
            head = stream.read(3)
            return head[:2] == b"\0\0" and head[2:] in _TYPES
    except (gzip.BadGzipFile, zlib.error, EOFError):
        return False
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def read_idx(path: str | os.PathLike[str]) -> np.ndarray:
    """Reads an array of unsigned bytes, uint8 of any shape.

    Raises:
      DataError: the file cannot be read, holds something else, is too large, or is shorter or longer than its header
        says.
    """
    try:
        with pathlib.Path(path).open("rb") as raw, _plain(raw) as stream:
            head = stream.read(4)
            if len(head) < 4 or head[:3] != b"\0\0\x08" or not head[3]:
                begins = f"it begins with {head.hex()}, not with 000008 and a number of dimensions"
                raise DataError(f"{path} is not an IDX file of unsigned bytes: {begins}")
            sizes = stream.read(4 * head[3])
            shape = tuple(np.frombuffer(sizes[: len(sizes) // 4 * 4], ">u4").tolist())
            size = math.prod(shape)
            if len(shape) == head[3] and size > LARGEST:
                raise DataError(f"{path} claims {size:,} bytes in shape {list(shape)}; the most are {LARGEST:,}")
            data = stream.read(size + 1) if len(shape) == head[3] else b""
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is broken: {error}") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    if len(shape) < head[3] or len(data) != size:
        more = "more" if len(data) > size else "less"
        raise DataError(f"{path} is broken: it holds {more} than its header says, shape {list(shape)}")
    try:
        return np.frombuffer(data, np.uint8).reshape(shape)
    except ValueError as error:  # too many dimensions, or a 0 among sizes that no array can have
        raise DataError(f"{path} cannot be an array: {error}") from error


def write_idx(path: str | os.PathLike[str], array: np.ndarray) -> None:
    """Writes an array of unsigned bytes, not gzipped, whole or not at all.

    Raises:
      ValueError: it is not uint8, or has more than 255 dimensions.
    """
    if array.dtype != np.uint8 or not 0 < array.ndim < 256:
        raise ValueError(f"array must be uint8 with 1 to 255 dimensions, got {array.dtype} {list(array.shape)}")
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    write_bytes(path, head + array.tobytes())


def _plain(raw: BinaryIO) -> BinaryIO:
    """Returns a stream of the contents, decompressed if the file is gzipped."""
    begins = raw.read(2)
    raw.seek(0)
    return gzip.open(raw) if begins == _GZIP else raw  # pyright: ignore[reportReturnType]
