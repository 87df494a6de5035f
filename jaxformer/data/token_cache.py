"""A cache of tokenized text and decoded images as memory-mapped arrays, so that they are made once.

Each file has a CRC-32, which is computed when it is written and compared whenever it is opened: one sequential read,
at about a gigabyte per second. A flipped bit would otherwise train another model. What changes on the disk after that,
while the file is mapped, is noticed at the next start.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import pathlib
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO

import numpy as np

from jaxformer.files import creating_folder, remove_abandoned, remove_folder
from jaxformer.reprs import brief

logger = logging.getLogger(__name__)

CHECKSUMS = "checksums.json"
"""The file in each folder with the CRC-32 of every other file; folders of earlier versions lack it, and are rebuilt."""

CHUNK = 1 << 20
"""The number of sequences whose lengths are computed at once, so that those of a large corpus need little memory."""

_SHORT = 60_000
"""The largest number of tokens of a sequence whose length is kept in 16 bits; a few may be added."""

DAMAGED = (
    *(FileNotFoundError, NotADirectoryError, EOFError, KeyError, TypeError, ValueError, RuntimeError),
    *(SyntaxError, tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)
"""The errors of a damaged file of a cache; numpy reads the header of an array as Python."""


@dataclasses.dataclass(frozen=True)
class Ragged:
    """Concatenated token sequences: sequence i is ``tokens[offsets[i]:offsets[i + 1]]``."""

    tokens: np.ndarray
    offsets: np.ndarray

    __repr__ = brief

    def __getitem__(self, i: int) -> np.ndarray:
        return self.tokens[self.offsets[i] : self.offsets[i + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return map(self.__getitem__, range(len(self)))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each sequence, int32."""
        # The differences are exact although the offsets may need 64 bits, and no larger array is made.
        return np.subtract(self.offsets[1:], self.offsets[:-1], dtype=np.int32, casting="unsafe")

    @property
    def small_lengths(self) -> np.ndarray:
        """The number of tokens of each sequence: uint16 if all are short, otherwise int32."""
        lengths = np.empty(len(self), np.uint16)
        for start in range(0, len(self), CHUNK):
            chunk = np.diff(self.offsets[start : start + CHUNK + 1])
            if chunk.max() > _SHORT:
                return self.lengths
            lengths[start : start + CHUNK] = chunk
        return lengths

    @staticmethod
    def join(sequences: Sequence[np.ndarray] | Ragged) -> Ragged:
        """Returns copies of `sequences`, concatenated; those that are concatenated already are returned as they are.

        >>> Ragged.join([np.array([7, 8]), np.array([9])]).offsets.tolist()
        [0, 2, 3]
        """
        if isinstance(sequences, Ragged):
            return sequences
        lengths = [len(ids) for ids in sequences]
        return Ragged(np.concatenate([*sequences] or [np.zeros(0, np.int32)]), _offsets(lengths))

    @staticmethod
    def concatenate(parts: Sequence[Ragged]) -> Ragged:
        """Returns the sequences of one or more parts, one part after another."""
        if len(parts) == 1:
            return parts[0]
        tokens = np.concatenate([part.tokens for part in parts])
        return Ragged(tokens, _offsets(np.concatenate([part.lengths for part in parts])))

    def take(self, indices: np.ndarray) -> Ragged:
        """Returns copies of these sequences in this order, without a loop over them."""
        starts = self.offsets[:-1][indices]
        lengths = self.offsets[1:][indices] - starts
        offsets = _offsets(lengths)
        return Ragged(self.tokens[np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])], offsets)


def _offsets(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Returns the offsets of concatenated sequences, ``int64 [sequences + 1]``."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


Make = Callable[[str], Iterable[Sequence[np.ndarray] | Ragged]]
"""A function from the name of an array to its sequences, in blocks."""


def cached_sequences(
    cache: str | os.PathLike[str] | None,
    key: str,
    names: Sequence[str],
    make: Make,
    *,
    num_sequences: int,
    vocab_size: int,
) -> dict[str, Ragged]:
    """Returns the arrays of a folder by name, after making and saving them if there is no such folder.

    The folder appears by one rename when it is complete, so several processes may call this at once, and may be killed.
    A damaged folder is rebuilt, with a warning. Without a cache, and with a warning where it cannot be read or written,
    the arrays are held in memory. Otherwise, no more than a block is in memory, and the arrays are mapped files.

    Args:
      cache: the parent of all such folders; None to hold the arrays in memory.
      key: the folder's name, a hash of everything that the arrays depend on.
      make: returns the token sequences of one name, in blocks.
      num_sequences: the number of sequences of each name.
    """
    dtype = token_dtype(vocab_size)
    typed = lambda name: (_typed(block, dtype) for block in make(name))
    if cache is not None:
        folder = pathlib.Path(cache) / key
        try:
            return _kept(folder, names, typed, num_sequences, dtype)
        except OSError as error:
            if found := kept_sequences(cache, key, names, num_sequences):
                return found  # another process was first, and has removed what they are made of
            logger.warning("tokens cannot be kept in %s (%s), and are held in memory", folder, error.strerror)
    empty = Ragged(np.zeros(0, dtype), np.zeros(1, np.int64))
    return {name: Ragged.concatenate(list(typed(name)) or [empty]) for name in names}


def token_dtype(vocab_size: int) -> np.dtype:
    """Returns the smallest dtype in which tokens are kept.

    >>> token_dtype(8000)
    dtype('uint16')
    """
    kinds = (np.uint8, np.uint16, np.int32)
    return np.dtype(next(kind for kind in kinds if vocab_size - 1 <= np.iinfo(kind).max))


def _typed(sequences: Sequence[np.ndarray] | Ragged, dtype: np.dtype) -> Ragged:
    ragged = Ragged.join(sequences)
    return Ragged(ragged.tokens.astype(dtype, copy=False), ragged.offsets)


def kept_sequences(
    cache: str | os.PathLike[str], key: str, names: Sequence[str], num_sequences: int
) -> dict[str, Ragged] | None:
    """Returns the arrays of a folder of `cached_sequences`; None without a sound one."""
    try:
        return _read(pathlib.Path(cache) / key, names, num_sequences)
    except (OSError, *DAMAGED):
        return None


def _kept(
    folder: pathlib.Path,
    names: Sequence[str],
    make: Callable[[str], Iterator[Ragged]],
    num_sequences: int,
    dtype: np.dtype,
) -> dict[str, Ragged]:
    """Returns the arrays of a folder, which is made if it is missing or damaged.

    Raises:
      OSError: the folder cannot be read or written.
    """
    if os.path.lexists(folder):
        try:
            return _read(folder, names, num_sequences)
        except DAMAGED as error:
            logger.warning("%s is damaged, or of an earlier version (%s); rebuilding it", folder, error)
            remove_folder(folder)
    remove_abandoned(folder.parent)
    checksums: dict[str, int] = {}
    with creating_folder(folder, replaceable=True) as temporary:
        for name in names:
            checksums |= _write(temporary, name, make(name), dtype)
        (temporary / CHECKSUMS).write_text(json.dumps(checksums) + "\n", encoding="utf-8")
    return _read(folder, names, num_sequences)


def _write(folder: pathlib.Path, name: str, blocks: Iterator[Ragged], dtype: np.dtype) -> dict[str, int]:
    """Writes the files of one name, block by block; returns their checksums."""
    files = f"{name}.npy", f"{name}-offsets.npy"
    with (folder / files[0]).open("wb") as first, (folder / files[1]).open("wb") as second:
        tokens, offsets = _ArrayFile(first, dtype), _ArrayFile(second, np.dtype(np.int64))
        offsets.add(np.zeros(1, np.int64))
        for block in blocks:
            offsets.add(block.offsets[1:] + (tokens.size - block.offsets[0]))
            tokens.add(block.tokens)
        return dict(zip(files, (tokens.end(), offsets.end()), strict=True))


class _ArrayFile:
    """A file of numpy's format whose array, of one dimension, is written in blocks; equal to that of `numpy.save`."""

    def __init__(self, file: BinaryIO, dtype: np.dtype):
        self._file, self._dtype, self.size = file, dtype, 0
        self._crc = zlib.crc32(dtype.str.encode())
        self._write_header()
        self._start = file.tell()

    def add(self, array: np.ndarray) -> None:
        """Writes the next items."""
        data = np.ascontiguousarray(array, self._dtype)
        self._file.write(data.data)
        self._crc = zlib.crc32(data, self._crc)
        self.size += len(data)

    def end(self) -> int:
        """Writes the number of items; returns the checksum."""
        self._file.seek(0)
        self._write_header()
        assert self._file.tell() == self._start  # numpy leaves room for a larger number
        return self._crc

    def _write_header(self) -> None:
        about = {"descr": self._dtype.str, "fortran_order": False, "shape": (self.size,)}
        np.lib.format.write_array_header_1_0(self._file, about)


def _read(folder: pathlib.Path, names: Sequence[str], num_sequences: int) -> dict[str, Ragged]:
    """Returns the arrays of a folder, checked against their checksums, `num_sequences` and their own offsets.

    Raises:
      OSError, or one of `DAMAGED`: the folder cannot be read, or is damaged.
    """
    arrays, checksums = {}, json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))
    for name in names:
        mapped = np.load(folder / f"{name}.npy", mmap_mode="r")
        tokens = mapped.view(np.ndarray)  # slicing numpy's memmap class takes five times as long
        offsets = np.load(folder / f"{name}-offsets.npy", mmap_mode="r").view(np.ndarray)
        ends = len(offsets) == num_sequences + 1 and (offsets[0], offsets[-1]) == (0, len(tokens))
        if not ends or (offsets[1:] < offsets[:-1]).any():
            raise ValueError(f"{name}.npy has {len(tokens)} tokens, which are not those of its offsets")
        for file, array in ((f"{name}.npy", tokens), (f"{name}-offsets.npy", offsets)):
            if _crc(array) != checksums[file]:
                raise ValueError(f"{file} has another checksum than when it was written")
        arrays[name] = Ragged(tokens, offsets)
    return arrays


def _crc(array: np.ndarray) -> int:
    """Returns the CRC-32 of an array's dtype and bytes; a memory-mapped array is read once, and not held in memory."""
    return zlib.crc32(array, zlib.crc32(array.dtype.str.encode()))
