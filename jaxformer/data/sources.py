"""The files that settings name, and the pairs that are held out."""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import itertools
import os
import pathlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from jaxformer.config import check_held_out
from jaxformer.data.pairs import FilePairs, Pairs, Parallel
from jaxformer.errors import DataError
from jaxformer.files import local_path

HASHES = 1 << 20
"""The number of hashes after which all but the smallest are dropped."""

IN_MEMORY = 200_000
"""The largest number of pairs of a part that is held out that are kept in memory."""


def locate(name: str, directory: str = "") -> pathlib.Path:
    """Returns the path of a file that a setting names: in the working directory, or below `directory`.

    Without `directory`, a file that is not in the working directory is looked for below the environment's
    JAXFORMER_DATA.

    Raises:
      ConfigError: the name is a URL, such as the address of a bucket.
      DataError: the file is neither in the working directory nor below JAXFORMER_DATA.
    """
    path, corpora = local_path(name), os.environ.get("JAXFORMER_DATA", "")
    if path.is_absolute():
        return path
    if directory or not corpora:
        return local_path(directory) / path
    for place in (path, below := local_path(corpora) / path):
        if _exists(place):
            return place
    raise DataError(f"cannot read {path}: there is no such file here, nor {below} (JAXFORMER_DATA)")


def _exists(path: pathlib.Path) -> bool:
    """Returns True for a file or a folder, also if it is in an archive: ``my.zip/train``."""
    return os.path.exists(path) or any(map(os.path.isfile, path.parents))  # False for a name that no file can have


def locate_all(names: str, directory: str = "") -> tuple[pathlib.Path, ...]:
    """Returns the paths of all files that a setting names, separated by commas; ``*``, ``?`` and ``[]`` match names.

    Names that match are in alphabetical order. A file that has such a name itself is the only one. Places are those of
    `locate`.

    Raises:
      ConfigError: see `locate`.
      DataError: see `locate`; or no file matches.
    """
    if not set(names) & set(",*?[") or _exists(local_path(directory) / local_path(names)):
        return (locate(names, directory),)
    found: list[pathlib.Path] = []
    for name in filter(None, map(str.strip, names.split(","))):
        if not set(name) & set("*?["):
            found.append(locate(name, directory))
            continue
        places = [local_path(directory)] + [local_path(os.environ.get("JAXFORMER_DATA", ""))] * (not directory)
        pattern = str(local_path(name))
        matches = [[place / path for path in sorted(glob.glob(pattern, root_dir=place))] for place in places]
        if not any(matches):
            raise DataError(f"no file matches {places[0] / pattern}")
        found += next(filter(None, matches))
    return tuple(found)


def num_held_out(held_out: float, total: int) -> int:
    """Returns the number of examples to hold out of `total`: a fraction of them, but at least one, or a given number.

    >>> num_held_out(0.1, 2000), num_held_out(1000, 2000)
    (200, 1000)

    Raises:
      ConfigError: see `check_held_out`.
    """
    check_held_out(held_out)
    return held_out if isinstance(held_out, int) else max(1, round(held_out * total))


def held_out_rows(read: Callable[[], Iterable[Sequence[str]]], *, sizes: Sequence[int], seed: int) -> list[np.ndarray]:
    """Returns the rows of each part to hold out, in order; equal texts are in one part.

    Corpora repeat sentences with different translations; a split by lines would leak them from training into test.
    A hash of each text and `seed` chooses its part, so the split does not depend on the order of rows. Memory is
    needed for the rows that are held out, not for all.

    Args:
      read: returns the texts by which rows are chosen, in blocks.
      sizes: the approximate number of rows of each part.

    Raises:
      DataError: more than half of the rows would be set aside, or no row would be left.
    """
    if not sum(sizes):
        return [np.zeros(0, np.int64) for _ in sizes]
    most = 2 * sum(sizes) + 1000
    while True:
        hashes, rows, total = _smallest_hashes(read(), seed, most)
        problem = f"cannot set aside {sum(sizes):,} of {total:,} examples"
        if 2 * sum(sizes) > total:
            raise DataError(f"{problem}; lower data.held_out, or name held-out files")
        if (chosen := _parts(hashes, rows, sizes)) is not None and sum(map(len, chosen)) < total:
            return chosen
        if len(rows) == total:
            differ = len(np.unique(hashes))
            raise DataError(f"{problem}: only {differ:,} of them differ; lower data.held_out, or name held-out files")
        most *= 2


def _smallest_hashes(blocks: Iterable[Sequence[str]], seed: int, most: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Returns the `most` smallest hashes of texts and those equal to one, their rows, and the number of all rows."""
    prefix, total = f"{seed}\n".encode(), 0
    hashes, rows = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    waiting: list[np.ndarray] = []
    for block in itertools.chain(blocks, [None]):
        if block is not None:
            digests = b"".join(hashlib.sha256(prefix + text.encode()).digest()[:8] for text in block)
            waiting.append(np.frombuffer(digests, ">u8").astype(np.uint64))
        if block is None or sum(map(len, waiting)) > HASHES:
            new = np.concatenate([*waiting, np.zeros(0, np.uint64)])
            hashes, rows = np.append(hashes, new), np.append(rows, np.arange(total, total + len(new)))
            total, waiting = total + len(new), []
            if len(hashes) > most:
                kept = hashes <= np.partition(hashes, most - 1)[most - 1]
                hashes, rows = hashes[kept], rows[kept]
    return hashes, rows, total


def _parts(hashes: np.ndarray, rows: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray] | None:
    """Returns the rows of each part in order, the smallest hashes in the first; equal hashes are in one part.

    Returns None if the rows do not suffice.
    """
    order = np.argsort(hashes, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(hashes[order])) + 1, len(rows))  # of rows with equal hashes
    chosen, begin = list[np.ndarray](), 0
    for size in sizes:
        if begin + size > len(rows):
            return None
        end = int(ends[np.searchsorted(ends, begin + size)]) if size else begin
        chosen.append(np.sort(rows[order[begin:end]]))
        begin = end
    return chosen


def split_rows(texts: Sequence[str], number: int) -> tuple[list[int], list[int]]:
    """Returns the rows that are kept and about `number` rows that are held out: see `held_out_rows`."""
    (part,) = held_out_rows(lambda: [texts], sizes=[number], seed=0)
    return np.setdiff1d(np.arange(len(texts)), part).tolist(), part.tolist()


def split_by_source(pairs: Pairs, *, held_out: Sequence[int], seed: int) -> list[Pairs]:
    """Splits pairs into ``[rest, part, part, ...]``, with no source sentence in two of them: see `held_out_rows`.

    Only the rest keeps the numbers of the lines that were skipped in the file.

    Args:
      held_out: the approximate number of pairs of each part after the first.

    Raises:
      DataError: more than half of the corpus would be set aside, or no pair would be left.
    """
    chosen = held_out_rows(lambda: pairs.side(0), sizes=held_out, seed=seed)
    if isinstance(pairs, FilePairs):
        codes = pairs.codes.copy()
        for number, rows in enumerate(chosen, 1):
            codes[pairs.lines_of(rows)] = number
        rest, *parts = (dataclasses.replace(pairs, codes=codes, part=number) for number in range(len(chosen) + 1))
        small = [part.part for part in parts if len(part) <= IN_MEMORY]
        loaded: dict[int, Pairs] = dict(zip(small, rest.load_parts(small), strict=True)) if small else {}
        return [rest, *(loaded.get(part.part, part) for part in parts)]
    assert isinstance(pairs, Parallel)
    rest = np.setdiff1d(np.arange(len(pairs)), np.concatenate(chosen))
    take = lambda rows: Parallel(tuple(pairs.source[i] for i in rows), tuple(pairs.target[i] for i in rows))
    return [dataclasses.replace(take(rest), empty=pairs.empty, overlong=pairs.overlong), *map(take, chosen)]
