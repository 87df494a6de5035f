"""Python files that a user names: a file is read once, and what is run is what was read."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import pathlib
import sys
import traceback
import types

from jaxformer.errors import ConfigError


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


def read(path: pathlib.Path, *, what: str) -> bytes:
    """Returns the contents of a file.

    Raises:
      ConfigError: there is no such file, or it cannot be read.
    """
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
