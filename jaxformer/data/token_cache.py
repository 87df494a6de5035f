"""Tokenized text kept as memory-mapped arrays, so that it is tokenized once."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence

import numpy as np

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Ragged:
    """Token sequences end to end: sequence i is ``tokens[offsets[i]:offsets[i + 1]]``."""

    tokens: np.ndarray
    offsets: np.ndarray

    def __getitem__(self, i: int) -> np.ndarray:
        return self.tokens[self.offsets[i] : self.offsets[i + 1]]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sequence."""
        return np.diff(self.offsets)


def cached_sequences(
    folder: str | os.PathLike[str],
    names: Sequence[str],
    make: Callable[[str], Sequence[np.ndarray]],
    *,
    num_sequences: int,
    vocab_size: int,
    about: Mapping[str, int],
) -> dict[str, Ragged]:
    """Reads the arrays of `folder` by name, or makes them where an earlier call did not leave them.

    The folder appears by one rename when it is whole, so a process that dies here, or another that makes the same
    arrays, does no harm. A damaged folder is rebuilt, with a warning.

    Args:
      folder: its name must be a hash of everything that the arrays depend on.
      make: the token sequences of one name.
      num_sequences: sequences of each name.
      about: figures saved with the arrays and compared when they are read.
    """
    folder = pathlib.Path(folder)
    if folder.exists():
        try:
            return _read(folder, names, num_sequences, about)
        except (FileNotFoundError, EOFError, ValueError) as error:
            logger.warning("%s is damaged (%s); rebuilding it", folder, error)
            _remove(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = pathlib.Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    dtype = np.uint16 if vocab_size <= 2**16 else np.int32
    for name in names:
        sequences = make(name)
        tokens = np.concatenate(sequences) if sequences else np.zeros(0)
        np.save(temporary / f"{name}.npy", tokens.astype(dtype))
        offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in sequences])]).astype(np.int64)
        np.save(temporary / f"{name}-offsets.npy", offsets)
    (temporary / "about.json").write_text(json.dumps(dict(about)))
    try:
        temporary.rename(folder)
    except OSError:  # another process was first; its arrays are the same
        shutil.rmtree(temporary)
        if not folder.exists():
            raise
    return _read(folder, names, num_sequences, about)


def _read(
    folder: pathlib.Path, names: Sequence[str], num_sequences: int, about: Mapping[str, int]
) -> dict[str, Ragged]:
    """The arrays of a folder, checked against `about`, `num_sequences` and their own offsets.

    Raises:
      FileNotFoundError, EOFError, ValueError: it is damaged.
    """
    if (saved := json.loads((folder / "about.json").read_text())) != about:
        raise ValueError(f"about.json says {saved}, expected {dict(about)}")
    arrays = {}
    for name in names:
        tokens = np.load(folder / f"{name}.npy", mmap_mode="r")
        offsets = np.load(folder / f"{name}-offsets.npy")
        if len(offsets) != num_sequences + 1 or offsets[-1] != len(tokens):
            raise ValueError(f"{name}.npy has {len(tokens)} tokens, which are not those of its offsets")
        arrays[name] = Ragged(tokens, offsets)
    return arrays


def _remove(folder: pathlib.Path) -> None:
    """Removes a folder by a rename first, so that no other process meets half of it, or finds its name taken."""
    aside = pathlib.Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    with contextlib.suppress(FileNotFoundError):  # another process was first
        folder.rename(aside)
    shutil.rmtree(aside)
