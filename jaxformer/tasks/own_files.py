"""Python files that a user names: each is read once, and what is run is what was read. Importing this imports no JAX.

The setting `attention`, FILE.py:NAME, names an attention of a user's own and is remembered as
ABSOLUTE/FILE.py:NAME@DIGEST. The digest is that of the whole file. A text without one is given now, and takes the file
as it is; one with a digest takes the file only if it is still the same. No file in the directory of a run is ever
taken. `own_attention` loads the attention.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.machinery
import importlib.util
import inspect
import json
import os
import pathlib
import re
import sys
import traceback
import types
from collections.abc import Iterator
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
    """Returns the parts of a setting."""
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
    """Checks the setting in a saved config.json, which may be someone else's: it says what to run, and its hash."""
    reference = parse(text)
    if reference.path is None:
        return
    if not (reference.digest and reference.path.is_absolute()):
        raise ConfigError(f"attention must be /FOLDER/FILE.py:NAME@DIGEST in a saved configuration, got {text!r}")
    check_outside(reference.path, folder)


def replaced(config: ConfigT, text: str | None, run: pathlib.Path) -> ConfigT:
    """Returns the configuration of a run with another attention, a text; None changes nothing."""
    if text is None:
        return config
    parse(text)
    if not config.attention:
        raise ConfigError(f"{run} was trained with the library's attention, so it takes no other, got {text!r}")
    return dataclasses.replace(config, attention=text)


def check_outside(path: pathlib.Path, run: pathlib.Path) -> None:
    """Checks that a file is neither in this directory nor in that of any run, which may come from someone else."""
    folders = (*path.absolute().parents, *path.resolve().parents)
    if inside := [folder for folder in folders if folder in (run.absolute(), run.resolve()) or _is_run(folder)]:
        raise ConfigError(f"{path} is in the run {inside[0]}, from which no code is run; move the file elsewhere")


def _is_run(folder: pathlib.Path) -> bool:
    try:
        saved = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(saved, dict) and {"task", "config"} <= saved.keys()


class _Loader(importlib.machinery.SourceFileLoader):
    """Runs a text that has been read, and no compiled file that may lie beside it."""

    source: bytes

    def get_code(self, fullname: str) -> types.CodeType:
        return self.source_to_code(self.source, self.path)


def run(path: pathlib.Path, source: bytes, *, name: str) -> types.ModuleType:
    """Runs the contents of a file as a new module of this name, which other modules cannot import by chance."""
    loader = _Loader(name, str(path))
    loader.source = source
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def check_unchanged(module: types.ModuleType, path: pathlib.Path, source: bytes) -> None:
    """Checks that the functions of an imported module are those of its file, which may have been edited since.

    The values of a module are not checked, nor a module whose loader changes its code.

    Raises:
      ConfigError: a function has other code.
    """
    if type(getattr(module.__spec__, "loader", None)) is not importlib.machinery.SourceFileLoader:
        return
    try:
        known = set(_codes(compile(source, path, "exec", dont_inherit=True)))
    except (SyntaxError, ValueError):
        known = set[types.CodeType]()
    names = {path, pathlib.Path(os.path.abspath(str(module.__file__)))}
    used = (code for code in _codes_of(module, set()) if pathlib.Path(os.path.abspath(code.co_filename)) in names)
    if any(next(_codes(code)) not in known for code in used):
        raise ConfigError(f"{path} has changed since it was imported: start again, or reload the module")


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yields a code object and those within it, without their places in the file."""
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    consts = tuple(next(_codes(part)) if part in inner else part for part in code.co_consts)
    yield code.replace(co_filename="", co_firstlineno=1, co_linetable=b"", co_consts=consts)
    for part in inner:
        yield from _codes(part)


def _codes_of(holder: types.ModuleType | type, seen: set[int]) -> Iterator[types.CodeType]:
    """Yields the code of each function of a module and of its classes."""
    seen.add(id(holder))
    module = holder.__name__ if isinstance(holder, types.ModuleType) else holder.__module__
    for value in list(vars(holder).values()):
        if isinstance(value, type):
            if value.__module__ == module and id(value) not in seen:
                yield from _codes_of(value, seen)
            continue
        with contextlib.suppress(AttributeError, ValueError):  # an object that claims to wrap another
            if isinstance(code := inspect.unwrap(value).__code__, types.CodeType):
                yield code


def read(path: pathlib.Path, *, what: str) -> bytes:
    """Returns the contents of a file."""
    if not path.is_file():
        raise ConfigError(f"no {what} {path}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


def explained(error: BaseException, path: pathlib.Path) -> str:
    """Returns an error that was raised while a file ran as one line, with the line of that file."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    where = f"{path}, line {lines[-1]}" if lines else str(path)
    if isinstance(error, SystemExit):
        return f"{where} ends the process"
    return f"{where}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
