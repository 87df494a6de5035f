"""Sentence pairs from plain files: two aligned text files, or a table of tab-separated columns."""

from __future__ import annotations

import codecs
import dataclasses
import functools
import hashlib
import os
import pathlib
import stat
from collections.abc import Iterator, Sequence

from jaxformer.digests import short_digest
from jaxformer.errors import ConfigError, DataError, first_few
from jaxformer.files import local_path

LARGEST_STREAM = 1 << 30
"""The maximum number of bytes read from a file that is not regular, such as a pipe; ``/dev/zero`` never ends."""

_PACKED = {"gunzip": (0, b"\x1f\x8b"), "unzip": (0, b"PK\3\4"), "tar -xf": (257, b"ustar")}
"""Commands that unpack files, and the offset and signature that identify these files; a tar of texts is valid UTF-8."""


@dataclasses.dataclass(frozen=True)
class Parallel:
    """Aligned sentences, and the line numbers, from 1, of pairs that were skipped."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    empty: tuple[int, ...] = ()
    overlong: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.source)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of every sentence in order."""
        return short_digest(f"{text}\n" for text in self.lines())

    def lines(self) -> tuple[str, ...]:
        """Returns all sentences: every source, then every target."""
        return (*self.source, *self.target)

    def report(self) -> str:
        """Returns one line with the number of pairs, and the skipped lines by reason."""
        skipped = []
        if self.empty:
            skipped.append(f"{len(self.empty)} with an empty side (line {first_few([*map(str, self.empty)])})")
        if self.overlong:
            skipped.append(f"{len(self.overlong)} overlong (line {first_few([*map(str, self.overlong)])})")
        return f"{len(self):,} pairs" + f"; skipped {' and '.join(skipped)}" * bool(skipped)


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


def read_parallel(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, max_characters: int = 10_000
) -> Parallel:
    """Reads two aligned files, one sentence per line.

    A pair with a side that is empty or longer than `max_characters` is skipped, and its line number is kept.

    Raises:
      DataError: a file is missing or not UTF-8 (the message has file and line), the numbers of lines differ, or no
        pair is left.
    """
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise DataError(f"{source} has {len(sources):,} lines, but {target} has {len(targets):,}; they must be aligned")
    return _pairs(sources, targets, max_characters, f"{source} and {target}")


def read_table(
    path: str | os.PathLike[str], *, columns: tuple[int, int] = (0, 1), max_characters: int = 10_000
) -> Parallel:
    """Reads two columns, counted from 0, of a table with tabs between columns; skips lines as `read_parallel` does.

    Raises:
      DataError: the file is missing or not UTF-8, a line has too few columns or a tab in a sentence, or no pair is
        left.
    """
    rows = read_rows(path)
    what = "the sentence is in column {} and its translation in column {}, counted from 0; see --data.columns, or name "
    what += "the file of the translations, too"
    sources, targets = [""] * len(rows), [""] * len(rows)
    for number, source, target in cells_of(rows, path, columns, what):
        sources[number - 1], targets[number - 1] = source, target
    return _pairs(sources, targets, max_characters, str(path))


def read_rows(path: str | os.PathLike[str], separator: str = "\t", most: int = -1) -> list[list[str]]:
    """Returns the cells of each line of a table, after at most `most` separators; none for a blank line."""
    return [line.split(separator, most) if line.strip() else [] for line in read_lines(path)]


def cells_of(
    rows: list[list[str]], path: str | os.PathLike[str], columns: tuple[int, int], what: str, separator: str = "\t"
) -> Iterator[tuple[int, str, str]]:
    """Yields the number of each row with cells, from 1, and those in two columns; then checks all (`check_columns`).

    Raises:
      DataError: a row has too few columns; the message has `what`, with the columns.
    """
    for number, row in enumerate(rows, 1):
        if row and len(row) <= max(columns):
            raise DataError(f"{path}, line {number}: {len(row)} column(s), but {what.format(*columns)}")
        if row:
            yield number, row[columns[0]], row[columns[1]]
    check_columns(rows, str(path), separator)


def check_columns(rows: Sequence[Sequence[str]], place: str, separator: str = "\t") -> None:
    r"""Checks that no line has text in a column that another line lacks, as after a tab in a sentence.

    Empty columns at the end of a line may be missing.

    Args:
      rows: the cells of each line; none for a blank line, which is not checked.
      place: the file, for messages.

    >>> check_columns([["Go.", "Va !"], [], ["Run!", "Cours !", ""]], "pairs.tsv")

    Raises:
      DataError: a line has such text; the message has both lines.
    """
    if len({len(row) for row in rows if row}) < 2:
        return
    fewest, short = min((len(row), number) for number, row in enumerate(rows, 1) if row)
    for number, row in enumerate(rows, 1):
        if any(cell.strip() for cell in row[fewest:]):
            raise DataError(
                f"{place}, line {number}: {len(row)} columns, but line {short} has {fewest}; a text must not contain "
                f"{separator!r}"
            )


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    """Returns the lines of a UTF-8 file, without line ends.

    Raises:
      DataError: see `read_utf8`.
    """
    lines = read_utf8(path).split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def read_utf8(path: str | os.PathLike[str]) -> str:
    """Returns the text of a UTF-8 file, without a byte order mark, every line end as ``"\\n"``.

    Raises:
      DataError: the file is missing, unreadable or endless, or a line is not UTF-8; or all lines end with carriage
        returns alone.
    """
    try:
        with pathlib.Path(path).open("rb") as stream:
            regular = stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
            data = stream.read() if regular else stream.read(LARGEST_STREAM + 1)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    if not regular and len(data) > LARGEST_STREAM:
        raise DataError(f"{path} is not a regular file and does not end after {LARGEST_STREAM:,} bytes; name a file")
    if packer := next((command for command, (start, mark) in _PACKED.items() if data.startswith(mark, start)), ""):
        raise DataError(f"{path} looks compressed or packed; unpack it, for example with: {packer}")
    if encoding := _wide_encoding(data):
        raise DataError(f"{path} looks like {encoding}; convert it, for example with: iconv -f {encoding} -t UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1  # error.object does not hold the byte order mark
        raise DataError(f"{path}, line {line}: not UTF-8 (byte 0x{error.object[error.start]:02x})") from error
    if "\r" in text and "\n" not in text:
        raise DataError(f"{path} ends its lines with carriage returns alone; convert it with: tr '\\r' '\\n'")
    return text.replace("\r\n", "\n")


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


def check_held_out(held_out: float) -> None:
    """Checks that `held_out` says what to hold out: a fraction in (0, 1), or a number of examples, an integer from 1.

    Raises:
      ConfigError: it is neither; 1.0 could mean either.
    """
    is_count = isinstance(held_out, int) and not isinstance(held_out, bool)
    if not (held_out >= 1 if is_count else isinstance(held_out, float) and 0 < held_out < 1):
        raise ConfigError(f"held_out must be a fraction between 0 and 1, or an integer from 1, got {held_out}")


def num_held_out(held_out: float, total: int) -> int:
    """Returns the number of examples to hold out of `total`: a fraction of them, but at least one, or a given number.

    >>> num_held_out(0.1, 2000), num_held_out(1000, 2000)
    (200, 1000)

    Raises:
      ConfigError: see `check_held_out`.
    """
    check_held_out(held_out)
    return held_out if isinstance(held_out, int) else max(1, round(held_out * total))


def split_by_source(pairs: Parallel, *, held_out: Sequence[int], seed: int) -> list[Parallel]:
    """Splits pairs into ``[rest, part, part, ...]``, with no source sentence in two of them.

    Only the rest keeps the numbers of the lines that were skipped in the file.

    Corpora repeat sentences with different translations; a split by lines would leak them from training into test.
    A hash of each source sentence and `seed` chooses its part, so the split does not depend on the file's order.

    Args:
      held_out: the approximate number of pairs of each part after the first.

    Raises:
      DataError: more than half of the corpus would be set aside, or no pair would be left.
    """
    problem = f"cannot set aside {sum(held_out):,} of {len(pairs):,} examples"
    if 2 * sum(held_out) > len(pairs):
        raise DataError(f"{problem}; lower data.held_out, or name held-out files")
    order = sorted(set(pairs.source), key=lambda text: hashlib.sha256(f"{seed}\n{text}".encode()).digest())
    indices_of: dict[str, list[int]] = {}
    for i, text in enumerate(pairs.source):
        indices_of.setdefault(text, []).append(i)
    parts: list[list[int]] = []
    remaining = iter(order)
    for size in held_out:
        part: list[int] = []
        while len(part) < size and (text := next(remaining, None)) is not None:
            part += indices_of[text]
        parts.append(part)
    parts.insert(0, [i for text in remaining for i in indices_of[text]])
    if sum(held_out) and not parts[0]:
        raise DataError(f"{problem}: only {len(order):,} of them differ; lower data.held_out, or name held-out files")
    chosen = [tuple(tuple(side[i] for i in sorted(part)) for side in (pairs.source, pairs.target)) for part in parts]
    (source, target), *others = chosen
    return [Parallel(source, target, pairs.empty, pairs.overlong), *(Parallel(part[0], part[1]) for part in others)]


def _pairs(left: list[str], right: list[str], max_characters: int, name: str) -> Parallel:
    kept, empty, overlong = [], [], []
    for number, (source, target) in enumerate(zip(left, right, strict=True), 1):
        if not source.strip() or not target.strip():
            empty.append(number)
        elif max(len(source), len(target)) > max_characters:
            overlong.append(number)
        else:
            kept.append((source, target))
    if not kept:
        long = f"over {max_characters:,} characters"
        reasons = {"the file is empty": not left, "a side is empty": empty, long: overlong}
        reason = " or ".join(reason for reason, holds in reasons.items() if holds)
        raise DataError(f"{name}: no pair of sentences in {len(left):,} lines ({reason})")
    sources, targets = zip(*kept, strict=True)
    return Parallel(sources, targets, tuple(empty), tuple(overlong))
