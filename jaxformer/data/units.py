"""Tokens of a large corpus, made in units by several processes and hosts; a finished unit is a file and is kept.

A unit holds the tokens of `UNIT` pairs in order, so units are the same for any number of workers and parts. All of
them, joined, are the arrays of the cache (`token_cache`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import numpy as np

from jaxformer.data.pairs import Pairs
from jaxformer.data.token_cache import DAMAGED, Ragged, token_dtype
from jaxformer.errors import DataError, JaxformerError
from jaxformer.files import remove_folder, replacing
from jaxformer.tokenizers.base import Tokenizer, encode_texts
from jaxformer.tokenizers.normalization import Side

logger = logging.getLogger(__name__)

UNIT = 1 << 14
"""The number of pairs in a unit."""

SIDES: tuple[Side, Side] = ("source", "target")


@dataclasses.dataclass(frozen=True)
class Share:
    """The share of one process in work that several do: units `part`, `part` + `parts`, and so on.

    Attributes:
      workers: the number of processes that tokenize here.
      patience: the seconds to wait for units of the others while none appears.
      progress: a function that is called with the number of lines that were tokenized.
    """

    part: int = 0
    parts: int = 1
    workers: int = 1
    patience: float = 100.0
    progress: Callable[[int], None] = lambda lines: None


ALONE = Share()


@dataclasses.dataclass(frozen=True)
class Units:
    """The units of a corpus in a folder.

    Attributes:
      key: the name of everything that the tokens depend on; it is saved in each unit.
    """

    folder: pathlib.Path
    key: str
    corpus: Pairs
    tokenizer: Tokenizer

    def __len__(self) -> int:
        return -(-len(self.corpus) // UNIT)

    def path(self, number: int) -> pathlib.Path:
        """Returns the file of a unit."""
        return self.folder / f"{number:06d}.npz"

    def missing(self) -> list[int]:
        """Returns the numbers of the units that have no file."""
        found = {path.name for path in self.folder.glob("*.npz")}
        return [number for number in range(len(self)) if self.path(number).name not in found]

    def make(self, share: Share) -> None:
        """Makes the units of a share that are missing or damaged.

        Raises:
          DataError: a file in the folder is a unit of other data or settings; or see `Tokenizer.encode`.
          JaxformerError: a worker process ended.
          OSError: the disk is full.
        """
        mine = [number for number in range(share.part, len(self), share.parts) if not self._is_sound(number)]
        if not mine:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        if share.workers == 1:
            for number, sides in self._chosen(mine):
                write_unit(self.path(number), self.key, sides, self.tokenizer)
                share.progress(sum(map(len, sides)))
            return
        with tempfile.TemporaryDirectory() as temporary:
            file = pathlib.Path(temporary) / "tokenizer"
            self.tokenizer.save(file)
            jobs = ((self.path(number), self.key, sides) for number, sides in self._chosen(mine))
            _Pool(file, min(share.workers, len(mine))).run(jobs, share.progress)

    def wait(self, share: Share, *, until: Callable[[], bool]) -> None:
        """Waits for other processes.

        Args:
          until: returns True when the wait is over.

        Raises:
          JaxformerError: nothing changed in the folder for `share.patience` seconds.
        """
        seen, since = None, time.monotonic()
        while not until():
            now = self._sizes()
            if now != seen:
                seen, since = now, time.monotonic()
            if time.monotonic() - since > share.patience:
                missing = [number for number in range(len(self)) if not self.path(number).exists()]
                what = f"{len(missing)} of {len(self)} units of {self.folder} are missing"
                raise JaxformerError(
                    f"{what}, and no other process has written there for {share.patience:.0f} s; run it again"
                )
            time.sleep(0.2)

    def _sizes(self) -> dict[str, int]:
        """Returns the sizes of the files that other processes are writing or have written."""
        sizes: dict[str, int] = {}
        for place in (self.folder, *self.folder.parent.glob(f".tmp-*-{self.key}")):
            for path in place.glob("*"):
                with contextlib.suppress(FileNotFoundError):  # it has its final name now
                    sizes[str(path)] = path.stat().st_size
        return sizes

    def blocks(self, side: str) -> Iterator[Ragged]:
        """Yields the tokens of all units on one side."""
        for number in range(len(self)):
            with np.load(self.path(number)) as arrays:
                offsets = np.concatenate([[0], np.cumsum(arrays[f"{side}-lengths"], dtype=np.int64)])
                yield Ragged(arrays[side], offsets)

    def remove(self) -> None:
        """Removes the folder."""
        remove_folder(self.folder)

    def _is_sound(self, number: int) -> bool:
        """Returns True if a unit exists and is complete; a damaged one is removed.

        Raises:
          DataError: it is a unit of other data or settings.
        """
        path = self.path(number)
        try:
            with np.load(path) as arrays:
                key, rows = str(arrays["key"]), min(UNIT, len(self.corpus) - number * UNIT)
                for side in SIDES:
                    lengths = arrays[f"{side}-lengths"]
                    if key == self.key and (len(lengths), lengths.sum()) != (rows, len(arrays[side])):
                        raise ValueError(f"{side} has {len(lengths)} rows, not {rows}")
        except FileNotFoundError:
            return False
        except (*DAMAGED, OSError) as error:
            logger.warning("%s is damaged (%s); making it again", path, error)
            path.unlink(missing_ok=True)
            return False
        if key != self.key:
            raise DataError(f"{path} is a unit of other data or settings ({key}); remove it")
        return True

    def _chosen(self, numbers: Sequence[int]) -> Iterator[tuple[int, tuple[list[str], list[str]]]]:
        """Yields these units, each with its sources and its targets."""
        wanted, last = set(numbers), max(numbers)
        waiting: tuple[list[str], list[str]] = [], []
        number, rows = 0, 0  # of the unit that is being read
        for block in self.corpus.blocks():
            begin = 0
            while begin < len(block[0]):
                end = min(len(block[0]), begin + UNIT - rows)
                if number in wanted:
                    for side, lines in zip(waiting, block, strict=True):
                        side += lines[begin:end]
                rows += end - begin
                begin = end
                if rows == UNIT:
                    if number in wanted:
                        self.corpus.check_unchanged()  # this may be the last unit, and the rest is not read
                        yield number, waiting
                    if number == last:
                        return
                    number, rows, waiting = number + 1, 0, ([], [])
        if rows and number in wanted:
            yield number, waiting


def write_unit(path: pathlib.Path, key: str, sides: Sequence[Sequence[str]], tokenizer: Tokenizer) -> None:
    """Tokenizes the sources and the targets of a unit and writes its file, whole or not at all."""
    dtype = token_dtype(tokenizer.vocab_size)
    arrays: dict[str, Any] = {"key": np.array(key)}
    for name, texts in zip(SIDES, sides, strict=True):
        parts = [
            Ragged.join(encode_texts(tokenizer, texts[start : start + 1024], name))
            for start in range(0, len(texts), 1024)
        ]
        arrays[name] = np.concatenate([part.tokens.astype(dtype) for part in parts])
        arrays[f"{name}-lengths"] = np.concatenate([part.lengths for part in parts])
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # a zip file, which has checksums


Job = tuple[pathlib.Path, str, tuple[list[str], list[str]]]
"""The file of a unit, its key, its sources and targets."""


class _Pool:
    """Processes that tokenize, each fed by a thread of its own: see `jaxformer.data.worker`."""

    def __init__(self, tokenizer: pathlib.Path, number: int):
        self._tokenizer, self._number = tokenizer, number
        self._reading, self._errors = threading.Lock(), list[BaseException]()

    def run(self, jobs: Iterator[Job], progress: Callable[[int], None]) -> None:
        """Does all jobs.

        Raises:
          DataError, OSError: a job failed.
          JaxformerError: a worker ended.
        """
        command = [sys.executable, "-m", "jaxformer.data.worker", str(self._tokenizer)]
        root = str(pathlib.Path(__file__).parents[2])
        workers = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment(root))  # noqa: S603
            for _ in range(self._number)
        ]
        try:
            threads = [
                threading.Thread(target=self._drive, args=(worker, jobs, progress), daemon=True) for worker in workers
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
                for stream in (worker.stdin, worker.stdout):
                    assert stream is not None
                    with contextlib.suppress(OSError):  # what was left to write has no reader
                        stream.close()
        if self._errors:
            raise self._errors[0]

    def _drive(self, worker: subprocess.Popen[bytes], jobs: Iterator[Job], progress: Callable[[int], None]) -> None:
        try:
            assert worker.stdin is not None
            assert worker.stdout is not None
            while not self._errors:
                with self._reading:
                    job = next(jobs, None)
                if job is None:
                    return
                send(worker.stdin, job)
                number = len(job[2][0])
                del job
                reply = worker.stdout.readline()
                if not reply:
                    raise JaxformerError(f"a process that tokenizes ended with {worker.wait()}; run it again")
                _raise(json.loads(reply))
                progress(2 * number)
        except BrokenPipeError:
            self._errors.append(JaxformerError(f"a process that tokenizes ended with {worker.wait()}; run it again"))
        except BaseException as error:  # raised again in the main thread
            self._errors.append(error)


def _environment(root: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))}


def send(stream: IO[bytes], job: Job) -> None:
    """Writes a job: a line of JSON, then for each side the lengths of its texts, and the texts."""
    path, key, sides = job
    parts = [part for side in sides for part in (_lengths(side), "".join(side).encode())]
    head = {"path": str(path), "key": key, "bytes": [len(part) for part in parts]}
    for part in (json.dumps(head).encode() + b"\n", *parts):
        stream.write(part)
    stream.flush()


def received(stream: IO[bytes]) -> Job | None:
    """Reads a job that `send` wrote; None at the end."""
    line = stream.readline()
    if not line:
        return None
    head = json.loads(line)
    lengths, source, more, target = (stream.read(size) for size in head["bytes"])
    return pathlib.Path(head["path"]), head["key"], (_texts(lengths, source), _texts(more, target))


def _lengths(texts: list[str]) -> bytes:
    return np.fromiter(map(len, texts), np.int32, len(texts)).tobytes()


def _texts(lengths: bytes, data: bytes) -> list[str]:
    """Returns texts from their lengths and their characters; takes a third of the time of JSON."""
    ends, text = np.cumsum(np.frombuffer(lengths, np.int32)).tolist(), data.decode()
    return [text[start:end] for start, end in itertools.pairwise([0, *ends])]


def _raise(reply: dict[str, object]) -> None:
    """Raises the error that a worker replies, if any."""
    if reply["kind"] == "OSError":
        raise OSError(reply["errno"], reply["message"], reply["path"])
    if reply["kind"] == "DataError":
        raise DataError(reply["message"])
