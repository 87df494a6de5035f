"""Running text for a language model: read from plain files, and split into training and held-out text."""

from __future__ import annotations

import dataclasses
import functools
import io
import os
from collections.abc import Iterator

from jaxformer.config import check_held_out
from jaxformer.data.lines import read_utf8
from jaxformer.digests import short_digest
from jaxformer.errors import DataError

LONGEST = 1000
"""The number of characters after which `Text.lines` splits a line; sentencepiece does not train on lines of more than
4,192 bytes."""


@dataclasses.dataclass(frozen=True)
class Text:
    """A text with all its line breaks."""

    characters: str

    def __len__(self) -> int:
        return len(self.characters)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of every character."""
        return short_digest([self.characters])

    def lines(self) -> list[str]:
        """Returns the parts of the text, split after each line break, and inside lines longer than `LONGEST`.

        >>> Text("To be,\\nor not").lines()
        ['To be,\\n', 'or not']
        """
        return [part for line in io.StringIO(self.characters, newline="\n") for part in _cut(line)]

    def report(self) -> str:
        """Returns one line with the size of the text."""
        return f"{len(self):,} characters"


@dataclasses.dataclass(frozen=True)
class Texts:
    """Several texts, to learn one vocabulary from: as one text with a line break between them, but not joined."""

    parts: tuple[Text, ...]

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of every character."""
        return short_digest("\n" * (i % 2) or self.parts[i // 2].characters for i in range(2 * len(self.parts) - 1))

    def lines(self) -> Iterator[str]:
        """Yields the lines of each text: see `Text.lines`."""
        for number, text in enumerate(self.parts, 1):
            yield from (text if number == len(self.parts) else Text(text.characters + "\n")).lines()


def read_text(*paths: str | os.PathLike[str]) -> Text:
    """Reads one or several UTF-8 files as one text, in order.

    Windows line ends become ``"\\n"``. A file that does not end with a line break gets one if another file follows.

    Raises:
      DataError: a file is missing, unreadable, without text, or not UTF-8; or no file was named.
    """
    if not paths:
        raise DataError("no text: name at least one file")
    parts = []
    for path in paths:
        if parts and not parts[-1].endswith("\n"):
            parts.append("\n")
        parts.append(read_utf8(path))
        if not parts[-1].strip():
            raise DataError(f"{path} holds no text")
    return Text("".join(parts))


def split_text(text: Text, *, held_out: float = 0.1) -> tuple[Text, Text]:
    """Splits a text into training text and held-out text; the latter is the last `held_out` of the text.

    Characters are counted, so 0.1 gives the public split of tinyshakespeare (1,003,854 and 111,540 characters).

    Args:
      held_out: a fraction of the characters, or their number if it is an integer.

    Raises:
      ConfigError: `held_out` is neither a fraction between 0 and 1 nor an integer from 1.
      DataError: the text is too short, so that a part would be empty.
    """
    check_held_out(held_out)
    size = len(text) - held_out if isinstance(held_out, int) else int(len(text) * (1 - held_out))
    if not 0 < size < len(text):
        part = f"{held_out:,}" if isinstance(held_out, int) else f"{held_out:.0%}"
        raise DataError(f"cannot hold out {part} of a text of {len(text):,} characters; give a longer text")
    return Text(text.characters[:size]), Text(text.characters[size:])


def _cut(line: str) -> Iterator[str]:
    """Yields parts of at most `LONGEST` characters, cut before a space if there is one."""
    start = 0
    while len(line) - start > LONGEST:
        space = line.rfind(" ", start + 1, start + LONGEST + 1)
        stop = space if space > 0 else start + LONGEST
        yield line[start:stop]
        start = stop
    if start < len(line):
        yield line[start:]
