"""Errors that a user can act on: a command prints them as one line and exits with their exit code.

Any other exception that reaches the command line is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class JaxformerError(Exception):
    """The base class of errors for users; `exit_code` is the exit code of a command that fails with the error."""

    exit_code = 1


class ConfigError(JaxformerError, ValueError):
    """A setting, or a combination of settings, is wrong: trying again cannot help."""

    exit_code = 2


class DataError(JaxformerError, ValueError):
    """The user's data is missing or malformed; the message has the file and the line."""

    exit_code = 2


class UnknownSizeError(ConfigError):
    """Only the data determine the size of a vocabulary; `smallest` is the smallest one that the settings allow."""

    def __init__(self, message: str, smallest: int | tuple[int, ...]):
        super().__init__(message)
        self.smallest = smallest


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Returns ``"; did you mean 'x'?"`` for the most similar name, or the list of all names if none is similar.

    >>> did_you_mean("wide", ["width", "depth"])
    "; did you mean 'width'?"
    >>> did_you_mean("color", ["width", "depth"])
    '; there are depth, width'
    """
    names = sorted(names)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names)}"


def first_line(error: BaseException, most: int = 300) -> str:
    """Returns the beginning of the first line of the message of an error.

    >>> first_line(ValueError("no room\\nand a long story"))
    'no room'
    """
    return (str(error).strip().splitlines() or ["no message"])[0][:most]


def first_few(names: Sequence[str], most: int = 5) -> str:
    """Returns the first `most` names in one line, with dots if there are more.

    >>> first_few(["a", "b"]), first_few("abcdefg")
    ('a, b', 'a, b, c, d, e, ...')
    """
    return ", ".join(names[:most]) + ", ..." * (len(names) > most)


def plural(number: int, noun: str) -> str:
    """Returns a number with its noun.

    >>> plural(1, "device"), plural(1024, "device")
    ('1 device', '1,024 devices')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
