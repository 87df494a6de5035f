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
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from jaxformer.files import creating_folder, remove_abandoned, remove_folder
from jaxformer.reprs import brief

logger = logging.getLogger(__name__)

CHECKSUMS = "checksums.json"
"""The file in each folder with the CRC-32 of every other file; folders of earlier versions lack it, and are rebuilt."""

_DAMAGED = FileNotFoundError, NotADirectoryError, EOFError, KeyError, TypeError, ValueError, tokenize.TokenError
"""The errors of a damaged folder; numpy reads the header of an array as Python."""


@dataclasses.dataclass(frozen=True)
class Ragged:
    """Concatenated token sequences: sequence i is ``tokens[offsets[i]:offsets[i + 1]]``."""

    tokens: np.ndarray
    offsets: np.ndarray

    __repr__ = brief

    def __getitem__(self, i: int) -> np.ndarray:
        return self.tokens[self.offsets[i] : self.offsets[i + 1]]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each sequence."""
        return np.diff(self.offsets)

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

    def take(self, indices: np.ndarray) -> Ragged:
        """Returns copies of these sequences in this order, without a loop over them."""
        starts = self.offsets[:-1][indices]
        lengths = self.offsets[1:][indices] - starts
        offsets = _offsets(lengths)
        return Ragged(self.tokens[np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])], offsets)


def _offsets(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Returns the offsets of concatenated sequences, ``int64 [sequences + 1]``."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def cached_sequences(
    cache: str | os.PathLike[str] | None,
    key: str,
    names: Sequence[str],
    make: Callable[[str], Sequence[np.ndarray]],
    *,
    num_sequences: int,
    vocab_size: int,
) -> dict[str, Ragged]:
    """Returns the arrays of a folder by name, after making and saving them if there is no such folder.

    The folder appears by one rename when it is complete, so several processes may call this at once, and may be killed.
    A damaged folder is rebuilt, with a warning. Without a cache, and with a warning where it cannot be read or written,
    the arrays are held in memory.

    Args:
      cache: the parent of all such folders; None to hold the arrays in memory.
      key: the folder's name, a hash of everything that the arrays depend on.
      make: returns the token sequences of one name.
      num_sequences: the number of sequences of each name.
    """
    dtype = next(dtype for dtype in (np.uint8, np.uint16, np.int32) if vocab_size - 1 <= np.iinfo(dtype).max)
    if cache is not None:
        folder = pathlib.Path(cache) / key
        try:
            return _kept(folder, names, lambda name: _joined(make(name), dtype), num_sequences)
        except OSError as error:
            reason = error.strerror or f"no space left: {error}"  # numpy's error of a short write has no number
            logger.warning("tokens cannot be kept in %s (%s), and are held in memory", folder, reason)
    return {name: _joined(make(name), dtype) for name in names}


def _joined(sequences: Sequence[np.ndarray], dtype: type[np.integer]) -> Ragged:
    ragged = Ragged.join(sequences)
    return Ragged(ragged.tokens.astype(dtype, copy=False), ragged.offsets)


def _kept(
    folder: pathlib.Path, names: Sequence[str], make: Callable[[str], Ragged], num_sequences: int
) -> dict[str, Ragged]:
    """Returns the arrays of a folder, which is made if it is missing or damaged.

    Raises:
      OSError: the folder cannot be read or written.
    """
    if os.path.lexists(folder):
        try:
            return _read(folder, names, num_sequences)
        except _DAMAGED as error:
            logger.warning("%s is damaged, or of an earlier version (%s); rebuilding it", folder, error)
            remove_folder(folder)
    remove_abandoned(folder.parent)
    checksums: dict[str, int] = {}
    with creating_folder(folder, replaceable=True) as temporary:
        for name in names:
            ragged = make(name)
            np.save(temporary / f"{name}.npy", ragged.tokens)
            np.save(temporary / f"{name}-offsets.npy", ragged.offsets)
            checksums |= {f"{name}.npy": _crc(ragged.tokens), f"{name}-offsets.npy": _crc(ragged.offsets)}
        (temporary / CHECKSUMS).write_text(json.dumps(checksums) + "\n", encoding="utf-8")
    return _read(folder, names, num_sequences)


def _read(folder: pathlib.Path, names: Sequence[str], num_sequences: int) -> dict[str, Ragged]:
    """Returns the arrays of a folder, checked against their checksums, `num_sequences` and their own offsets.

    Raises:
      OSError, or one of `_DAMAGED`: the folder cannot be read, or is damaged.
    """
    arrays, checksums = {}, json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))
    for name in names:
        mapped = np.load(folder / f"{name}.npy", mmap_mode="r")
        tokens = mapped.view(np.ndarray)  # slicing numpy's memmap class takes five times as long
        offsets = np.load(folder / f"{name}-offsets.npy")
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
