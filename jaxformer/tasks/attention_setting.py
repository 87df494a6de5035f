"""The setting `attention`, FILE.py:NAME: an attention of a user's own, remembered as ABSOLUTE/FILE.py:NAME@DIGEST.

The digest is that of the whole file. A text without one is given now, and takes the file as it is; one with a digest
takes the file only if it is still the same. No file in the directory of a run is ever taken. `own_attention` loads the
attention; importing this imports no JAX.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from typing import TYPE_CHECKING, TypeVar

from jaxformer.errors import ConfigError
from jaxformer.files import local_path

if TYPE_CHECKING:
    from jaxformer.tasks.config import TaskConfig

DIGITS = 16
"""The number of hexadecimal digits of the SHA-256 in a setting."""

PYTHON = "python:"
"""The beginning of the setting of an attention without a file; the name follows."""

ALWAYS = "a run keeps its attention when it resumes, and a new run with --init-from RUN can start without it"
"""The reason why no text removes the attention of a run."""

_TEXT = re.compile(rf"(?P<path>.+\.py):(?P<name>[^\W\d]\w*)(?:@(?P<digest>[0-9a-f]{{{DIGITS}}}))?", re.DOTALL)

ConfigT = TypeVar("ConfigT", bound="TaskConfig")


@dataclasses.dataclass(frozen=True)
class Reference:
    """The parts of the setting; without a path, the attention was given in Python."""

    path: pathlib.Path | None
    name: str
    digest: str


def parse(text: str) -> Reference:
    """Returns the parts of a setting.

    Raises:
      ConfigError: it is no ``FILE.py:NAME``.
    """
    if text.startswith(PYTHON) and len(text) > len(PYTHON):
        return Reference(None, text.removeprefix(PYTHON), "")
    match = _TEXT.fullmatch(text)
    if match is None and text.lower() in ("", "none"):
        raise ConfigError(f"attention must be FILE.py:NAME, got {text!r}; leave it out for the library's: {ALWAYS}")
    if match is None:
        raise ConfigError(f"attention must be FILE.py:NAME, a function in a file of your own, got {text!r}")
    return Reference(local_path(match["path"]), match["name"], match["digest"] or "")


def are_same(text: str, other: str) -> bool:
    """Returns True if two settings give the same name in the same file, whose contents may differ."""
    if not (text and other):
        return False
    a, b = parse(text), parse(other)
    return (a.path and a.path.absolute(), a.name) == (b.path and b.path.absolute(), b.name)


def check_saved(text: str, folder: pathlib.Path) -> None:
    """Checks the setting in a saved config.json, which may be someone else's: it says what to run, and with which hash.

    Raises:
      ConfigError: it has no digest or a relative path, or names a file in the folder of that config.json.
    """
    reference = parse(text)
    if reference.path is None:
        return
    if not (reference.digest and reference.path.is_absolute()):
        raise ConfigError(f"attention must be /FOLDER/FILE.py:NAME@DIGEST in a saved configuration, got {text!r}")
    check_outside(reference.path, folder)


def replaced(config: ConfigT, text: str | None, run: pathlib.Path) -> ConfigT:
    """Returns the configuration of a run with another attention, a text; None changes nothing.

    Raises:
      ConfigError: the run has the library's attention, or the text is wrong.
    """
    if text is None:
        return config
    parse(text)
    if not config.attention:
        raise ConfigError(f"{run} was trained with the library's attention, so it takes no other, got {text!r}")
    return dataclasses.replace(config, attention=text)


def check_outside(path: pathlib.Path, run: pathlib.Path) -> None:
    """Checks that a file is neither in this directory nor in that of any run, which may come from someone else.

    Raises:
      ConfigError: it is.
    """
    folders = (*path.absolute().parents, *path.resolve().parents)
    if inside := [folder for folder in folders if folder in (run.absolute(), run.resolve()) or _is_run(folder)]:
        raise ConfigError(f"{path} is in the run {inside[0]}, from which no code is run; move the file elsewhere")


def _is_run(folder: pathlib.Path) -> bool:
    try:
        saved = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(saved, dict) and {"task", "config"} <= saved.keys()
