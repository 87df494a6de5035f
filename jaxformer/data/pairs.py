"""Aligned sentences, in memory or in files that are read in blocks as often as they are needed."""

from __future__ import annotations

import abc
import dataclasses
import functools
import itertools
import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from jaxformer.data.lines import Path, column_blocks, line_blocks
from jaxformer.digests import short_digest
from jaxformer.errors import DataError, first_few
from jaxformer.reprs import brief

KEPT, EMPTY, OVERLONG = 0, 254, 255
"""The codes of lines: of the first part, with an empty side, too long; further parts are numbered from 1."""

LARGE = 1 << 26
"""The number of bytes from which on files are large: what is known about their lines is kept (`reading`)."""

LINES = 10_000
"""The number of pairs in a block of those in memory."""

_TABLE = (
    "the sentence is in column {} and its translation in column {}, counted from 0; see --data.columns, or name the "
    "file of the translations, too"
)


class Pairs(abc.ABC):
    """Aligned sentences, read in blocks as often as they are needed."""

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def blocks(self) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
        """Yields the sources and the targets of some pairs, in order."""

    @abc.abstractmethod
    def side(self, number: int) -> Iterator[Sequence[str]]:
        """Yields all sources (0) or all targets (1), in order, in blocks."""

    @abc.abstractmethod
    def skipped(self, code: int) -> tuple[int, list[str]]:
        """Returns the number of lines that are `EMPTY` or `OVERLONG`, and the places of the first of them."""

    @abc.abstractmethod
    def load(self) -> Parallel:
        """Returns the pairs in memory."""

    def check_unchanged(self) -> None:  # noqa: B027 - there is nothing to check of texts in memory
        """Checks that what was read is still what `fingerprint` names; texts in memory always are.

        Raises:
          DataError: the files have changed.
        """

    @property
    def num_lines(self) -> int:
        """The number of sentences on both sides."""
        return 2 * len(self)

    @property
    def num_skipped(self) -> int:
        """The number of lines that were skipped."""
        return self.skipped(EMPTY)[0] + self.skipped(OVERLONG)[0]

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of every sentence in order."""
        return self._fingerprint()

    def _fingerprint(self) -> str:
        blocks = itertools.chain(self.side(0), self.side(1))
        return short_digest("\n".join(block) + "\n" for block in blocks if block)

    def lines(self) -> Iterator[str]:
        """Yields all sentences: every source, then every target."""
        return itertools.chain.from_iterable(itertools.chain(self.side(0), self.side(1)))

    def report(self) -> str:
        """Returns one line with the number of pairs, and the skipped lines by reason."""
        reasons = {"with an empty side": EMPTY, "overlong": OVERLONG}
        found = {reason: self.skipped(code) for reason, code in reasons.items()}
        parts = [f"{count:,} {reason} (line {first_few(first)})" for reason, (count, first) in found.items() if count]
        return f"{len(self):,} pairs" + f"; skipped {' and '.join(parts)}" * bool(parts)


@dataclasses.dataclass(frozen=True)
class Parallel(Pairs):
    """Aligned sentences in memory, and the line numbers, from 1, of pairs that were skipped."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    empty: tuple[int, ...] = ()
    overlong: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.source)

    def blocks(self) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
        return zip(self.side(0), self.side(1), strict=True)

    def side(self, number: int) -> Iterator[Sequence[str]]:
        lines = self.target if number else self.source
        return (lines[start : start + LINES] for start in range(0, len(lines), LINES))

    def skipped(self, code: int) -> tuple[int, list[str]]:
        lines = self.empty if code == EMPTY else self.overlong
        return len(lines), [*map(str, lines[:6])]

    @property
    def num_lines(self) -> int:
        return len(self.source) + len(self.target)

    def load(self) -> Parallel:
        return self


@dataclasses.dataclass(frozen=True)
class PairFiles:
    """Files of aligned sentences: a file of sources and one of targets, or a table, any number of times.

    Attributes:
      files: the path of each table; or two paths.
      columns: the columns of the source and of the target in a table, counted from 0.
    """

    files: tuple[tuple[pathlib.Path, ...], ...]
    columns: tuple[int, int] = (0, 1)

    def __str__(self) -> str:
        return first_few([" and ".join(map(str, paths)) for paths in self.files])

    def blocks(self) -> Iterator[tuple[int, list[str], list[str]]]:
        """Yields the index of a file, and the sources and targets of its next lines; empty ones for a blank line.

        Raises:
          DataError: a file is missing, damaged or not UTF-8 (the message has file and line), the numbers of lines
            differ, or a line of a table has too few columns or a tab in a sentence.
        """
        for index, paths in enumerate(self.files):
            blocks = _aligned(paths[0], paths[1]) if len(paths) == 2 else _of_table(paths[0], self.columns)
            for sources, targets in blocks:
                yield index, sources, targets

    def side(self, number: int) -> Iterator[list[str]]:
        """Yields the sources (0) or the targets (1) of all lines, in blocks."""
        for paths in self.files:
            if len(paths) == 2:
                yield from (lines for _, lines in line_blocks(paths[number]))
            else:
                yield from (cells[number] for cells in _of_table(paths[0], self.columns))

    def state(self) -> tuple[tuple[int, int], ...]:
        """Returns the sizes and times of the files, which change when another program writes them."""
        try:
            found = [os.stat(path) for paths in self.files for path in paths]
        except OSError as error:
            raise DataError(f"cannot read {error.filename}: {error.strerror}") from error
        return tuple((file.st_size, file.st_mtime_ns) for file in found)

    @property
    def are_large(self) -> bool:
        """True for files of more than `LARGE` bytes that can be read again."""
        return self.can_repeat() and sum(size for size, _ in self.state()) > LARGE

    def can_repeat(self) -> bool:
        """Returns False if a file is a pipe, which can be read once."""
        return all(not os.path.exists(path) or os.path.isfile(path) for paths in self.files for path in paths)


@dataclasses.dataclass(frozen=True, eq=False)
class FilePairs(Pairs):
    """The pairs of some lines of files, which stay on the disk.

    Attributes:
      codes: for each line, in all files, the part that it belongs to, or why it was skipped, ``uint8 [lines]``.
      ends: the number of lines up to the end of each file.
      state: that of the files when `codes` were made.
      part: the part whose pairs these are.
      known: the fingerprint, if it is known.
    """

    files: PairFiles
    codes: np.ndarray
    ends: tuple[int, ...]
    state: tuple[tuple[int, int], ...]
    part: int = KEPT
    known: str = ""

    __repr__ = brief

    def _fingerprint(self) -> str:
        return self.known or super()._fingerprint()

    def __len__(self) -> int:
        return self._size

    @functools.cached_property
    def _size(self) -> int:
        return int(np.count_nonzero(self.codes == self.part))

    def blocks(self) -> Iterator[tuple[list[str], list[str]]]:
        for kept, (_, *sides) in self._chosen(self.files.blocks()):
            sources, targets = (list(itertools.compress(lines, kept)) for lines in sides)
            yield sources, targets

    def side(self, number: int) -> Iterator[list[str]]:
        for kept, (lines,) in self._chosen((lines,) for lines in self.files.side(number)):
            yield list(itertools.compress(lines, kept))

    def _chosen(self, blocks: Iterable[tuple]) -> Iterator[tuple[list[bool], tuple]]:
        """Yields blocks of lines that hold pairs of this part, and True for each line that is one."""
        line = 0
        for block in self._unchanged(blocks):
            kept = self.codes[line : line + len(block[-1])] == self.part
            line += len(block[-1])
            if kept.any():
                yield kept.tolist(), block

    def _unchanged(self, blocks: Iterable[tuple]) -> Iterator[tuple]:
        """Yields blocks of lines.

        Raises:
          DataError: the files have changed.
        """
        line = 0
        for block in blocks:
            line += len(block[-1])
            if line <= len(self.codes):
                yield block
        self.check_unchanged(line)

    def check_unchanged(self, num_lines: int | None = None) -> None:
        if self.files.state() != self.state or num_lines not in (None, len(self.codes)):
            raise DataError(f"{self.files} has changed since it was first read; start again")

    def load(self) -> Parallel:
        return self._loaded

    @functools.cached_property
    def _loaded(self) -> Parallel:
        (pairs,) = self.load_parts([self.part])
        lines = (np.flatnonzero(self.codes == code) + 1 for code in (EMPTY, OVERLONG))
        empty, overlong = (tuple(each.tolist()) * (self.part == KEPT) for each in lines)
        return dataclasses.replace(pairs, empty=empty, overlong=overlong)

    def lines_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns the indices of the lines of some pairs of this part, which are sorted."""
        found, before = list[np.ndarray](), 0
        for start in range(0, len(self.codes), LINES):
            lines = np.flatnonzero(self.codes[start : start + LINES] == self.part)
            begin, end = np.searchsorted(rows, [before, before + len(lines)])
            found.append(lines[rows[begin:end] - before] + start)
            before += len(lines)
        return np.concatenate([*found, np.zeros(0, np.int64)])

    def load_parts(self, parts: Sequence[int]) -> list[Parallel]:
        """Returns the pairs of these parts in memory, read at once."""
        found: list[tuple[list[str], list[str]]] = [([], []) for _ in parts]
        line = 0
        for _, *sides in self._unchanged(self.files.blocks()):
            codes = self.codes[line : line + len(sides[0])]
            line += len(codes)
            for part, lists in zip(parts, found, strict=True):
                if (codes == part).any():
                    kept = (codes == part).tolist()
                    for texts, lines in zip(lists, sides, strict=True):
                        texts += itertools.compress(lines, kept)
        return [Parallel(tuple(sources), tuple(targets)) for sources, targets in found]

    def skipped(self, code: int) -> tuple[int, list[str]]:
        if self.part != KEPT:
            return 0, []
        lines = np.flatnonzero(self.codes == code)
        return len(lines), [self._place(line) for line in lines[:6].tolist()]

    def _place(self, line: int) -> str:
        """Returns the number of a line in its file, from 1, with the name of the file if there are several."""
        index = int(np.searchsorted(self.ends, line, side="right"))
        number = line - (0, *self.ends)[index] + 1
        return f"{number} of {self.files.files[index][0].name}" if len(self.ends) > 1 else str(number)


def read_parallel(source: Path, target: Path, *, max_characters: int = 10_000) -> Parallel:
    """Reads two aligned files, one sentence per line, into memory.

    A pair with a side that is empty or longer than `max_characters` is skipped, and its line number is kept.

    Raises:
      DataError: a file is missing or not UTF-8 (the message has file and line), the numbers of lines differ, or no
        pair is left.
    """
    return _in_memory(PairFiles(((pathlib.Path(source), pathlib.Path(target)),)), max_characters)


def read_table(path: Path, *, columns: tuple[int, int] = (0, 1), max_characters: int = 10_000) -> Parallel:
    """Reads two columns, counted from 0, of a table with tabs between columns; skips lines as `read_parallel` does.

    Raises:
      DataError: the file is missing or not UTF-8, a line has too few columns or a tab in a sentence, or no pair is
        left.
    """
    return _in_memory(PairFiles(((pathlib.Path(path),),), columns), max_characters)


def read_pairs(files: PairFiles, *, max_characters: int = 10_000) -> FilePairs | Parallel:
    """Reads files once, and returns their pairs, which stay on the disk; those of pipes are read into memory.

    Raises:
      DataError: see `read_parallel` and `read_table`.
    """
    if not files.can_repeat():
        return _in_memory(files, max_characters)
    parts: list[np.ndarray] = []
    ends, line, state = [0] * len(files.files), 0, files.state()
    for index, sources, targets in files.blocks():
        parts.append(_codes(sources, targets, max_characters))
        line += len(sources)
        ends[index] = line
    codes = np.concatenate([*parts, np.zeros(0, np.uint8)])
    _check_left(files, codes, max_characters)
    return FilePairs(files, codes, tuple(itertools.accumulate(ends, max)), state)


def _in_memory(files: PairFiles, max_characters: int) -> Parallel:
    parts: list[np.ndarray] = []
    kept: tuple[list[str], list[str]] = [], []
    for _, sources, targets in files.blocks():
        parts.append(codes := _codes(sources, targets, max_characters))
        for side, lines in zip(kept, (sources, targets), strict=True):
            side += itertools.compress(lines, (codes == KEPT).tolist())
    codes = np.concatenate([*parts, np.zeros(0, np.uint8)])
    _check_left(files, codes, max_characters)
    empty, overlong = (tuple((np.flatnonzero(codes == code) + 1).tolist()) for code in (EMPTY, OVERLONG))
    return Parallel(tuple(kept[0]), tuple(kept[1]), empty, overlong)


def _codes(sources: list[str], targets: list[str], most: int) -> np.ndarray:
    """Returns `KEPT`, `EMPTY` or `OVERLONG` for each pair."""
    full = [bool(s and t) and not (s.isspace() or t.isspace()) for s, t in zip(sources, targets, strict=True)]
    longest = np.maximum(np.fromiter(map(len, sources), int), np.fromiter(map(len, targets), int))
    return np.where(np.array(full, bool), np.where(longest > most, OVERLONG, KEPT), EMPTY).astype(np.uint8)


def _check_left(files: PairFiles, codes: np.ndarray, max_characters: int) -> None:
    """Checks that a line is left.

    Raises:
      DataError: none is; the message says why.
    """
    if (codes == KEPT).any():
        return
    empty, overlong = (bool((codes == code).any()) for code in (EMPTY, OVERLONG))
    long = f"over {max_characters:,} characters"
    reasons = {"the file is empty": not len(codes), "a side is empty": empty, long: overlong}
    reason = " or ".join(reason for reason, holds in reasons.items() if holds)
    raise DataError(f"{files}: no pair of sentences in {len(codes):,} lines ({reason})")


def _aligned(source: pathlib.Path, target: pathlib.Path) -> Iterator[tuple[list[str], list[str]]]:
    """Yields blocks of as many lines of both files.

    Raises:
      DataError: the numbers of lines differ.
    """
    streams = [(lines for _, lines in line_blocks(path)) for path in (source, target)]
    waiting: list[list[str]] = [[], []]
    seen = 0
    while True:
        for side, stream in enumerate(streams):
            waiting[side] = waiting[side] or next(stream, [])
        size = min(map(len, waiting))
        if not size:
            break
        yield waiting[0][:size], waiting[1][:size]
        waiting = [lines[size:] for lines in waiting]
        seen += size
    if any(waiting):
        counts = [seen + len(lines) + sum(map(len, rest)) for lines, rest in zip(waiting, streams, strict=True)]
        raise DataError(f"{source} has {counts[0]:,} lines, but {target} has {counts[1]:,}; they must be aligned")


def _of_table(path: pathlib.Path, columns: tuple[int, int]) -> Iterator[tuple[list[str], list[str]]]:
    """Yields blocks of two columns; a blank line is two empty texts."""
    for _, cells in column_blocks(path, columns, _TABLE):
        pairs = [pair or ("", "") for pair in cells]
        yield [pair[0] for pair in pairs], [pair[1] for pair in pairs]
