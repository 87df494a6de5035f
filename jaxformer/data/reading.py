"""Large corpora are read once: what is known about their lines is kept, under a hash of the files' contents."""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import logging
import os
import pathlib
import zlib
from collections.abc import Callable, Sequence, Set

import numpy as np

from jaxformer.data.distinct import without
from jaxformer.data.pairs import FilePairs, PairFiles, Pairs, Parallel, read_pairs
from jaxformer.data.sources import num_held_out, split_by_source
from jaxformer.data.token_cache import DAMAGED
from jaxformer.digests import sealed, short_digest, unsealed
from jaxformer.errors import DataError
from jaxformer.files import creating_folder, remove_abandoned, remove_folder

logger = logging.getLogger(__name__)


def read_split(files: PairFiles, *, held_out: float, parts: int, cache: pathlib.Path | None) -> list[Pairs]:
    """Reads pairs and holds out some: ``[rest, part, ...]``; see `read_pairs` and `split_by_source`.

    Of files that are large, the cache keeps the part of each line, the fingerprints, and the pairs that are
    held out, so that the next start only hashes the files.

    Args:
      held_out: the number of pairs of each part, or a fraction of all: see `num_held_out`.
      parts: the number of parts to hold out.

    Raises:
      DataError, ConfigError: see `read_pairs` and `split_by_source`.
    """
    if cache is None or not files.are_large:
        return _read(files, held_out, parts)
    state = files.state()
    folder = cache / f"pairs-{short_digest([_digest(files), repr((files.columns, held_out, parts))])}"
    return _read_once(folder, files, state, parts, lambda: _read(files, held_out, parts))


def read_without(pairs: Pairs, texts: Set[str], *, cache: pathlib.Path | None) -> Pairs:
    """Returns the pairs that have none of these texts: see `without`. Of large files, the cache keeps which they are.

    Args:
      pairs: the first of `read_split`.
    """
    if cache is None or not texts or not isinstance(pairs, FilePairs) or not pairs.files.are_large:
        return without(pairs, texts)
    lines = repr((pairs.ends, zlib.crc32(pairs.codes)))  # the same pairs may be in other lines
    folder = cache / f"pairs-{short_digest([pairs.fingerprint, lines, repr(sorted(texts))])}"
    (rest,) = _read_once(folder, pairs.files, pairs.state, 0, lambda: [without(pairs, texts)])
    return rest


def _read_once(
    folder: pathlib.Path,
    files: PairFiles,
    state: tuple[tuple[int, int], ...],
    parts: int,
    read: Callable[[], list[Pairs]],
) -> list[Pairs]:
    """Returns the pairs that a folder keeps; if it has none, they are read and kept there."""
    if os.path.lexists(folder):
        try:
            return _kept(folder, files, state, parts)
        except DAMAGED as error:
            logger.warning("%s is damaged (%s); reading the files again", folder, error)
            remove_folder(folder)
        except OSError as error:
            logger.warning("%s cannot be read (%s)", folder, error.strerror)
    pairs = read()
    try:
        _keep(folder, pairs)
    except OSError as error:
        logger.warning("what was read is not kept for later runs: %s", error)
    return pairs


def _read(files: PairFiles, held_out: float, parts: int) -> list[Pairs]:
    pairs = read_pairs(files)
    if not parts:
        return [pairs]
    number = num_held_out(held_out, len(pairs)) if held_out else 0
    return [*split_by_source(pairs, held_out=[number] * parts, seed=0)]


def _digest(files: PairFiles) -> str:
    """Returns a hash of the contents of all files, which threads compute."""
    paths = list(dict.fromkeys(path for paths in files.files for path in paths))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        digests = dict(zip(paths, pool.map(_digest_of, paths), strict=True))
    return "\n".join(" ".join(digests[path] for path in paths) for paths in files.files)


def _digest_of(path: pathlib.Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def _keep(folder: pathlib.Path, pairs: Sequence[Pairs]) -> None:
    """Saves what is known, if the pairs stay in files.

    Raises:
      OSError: the folder cannot be written.
    """
    first, *others = pairs
    if not isinstance(first, FilePairs) or not all(isinstance(part, Parallel) for part in others):
        return
    remove_abandoned(folder.parent)
    facts = {"ends": first.ends, "crc": zlib.crc32(first.codes), "fingerprints": [part.fingerprint for part in pairs]}
    texts = [[part.source, part.target] for part in others if isinstance(part, Parallel)]
    with creating_folder(folder, replaceable=True) as temporary:
        np.save(temporary / "codes.npy", first.codes)
        (temporary / "facts.json").write_bytes(sealed(json.dumps({**facts, "held_out": texts}).encode()))


def _kept(folder: pathlib.Path, files: PairFiles, state: tuple[tuple[int, int], ...], parts: int) -> list[Pairs]:
    """Returns the pairs of a folder, checked.

    Raises:
      OSError, or one of `DAMAGED`: the folder cannot be read, or is damaged.
    """
    facts = json.loads(unsealed((folder / "facts.json").read_bytes()))
    codes = np.load(folder / "codes.npy", mmap_mode="r").view(np.ndarray)
    if zlib.crc32(codes) != facts["crc"] or codes.dtype != np.uint8:
        raise ValueError("codes.npy has another checksum than when it was written")
    first, *others = facts["fingerprints"]
    held_out = [Parallel(tuple(source), tuple(target)) for source, target in facts["held_out"]]
    if [part.fingerprint for part in held_out] != others or len(others) != parts:
        raise ValueError("the pairs that were held out are not those of their fingerprints")
    return [FilePairs(files, codes, tuple(facts["ends"]), state, known=first), *held_out]
