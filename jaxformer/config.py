"""Configurations: frozen dataclasses as plain data and back, and the ways to name one.

A file that is read must fit exactly: an unknown key, a missing one without default or a wrong type is an error
that names the key, and the nearest one there is.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import importlib
import importlib.util
import inspect
import json
import pathlib
import sys
import types
import typing
from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T")


PLACE = {"place": True}
"""Metadata of a setting that says where something runs, not what: a run may go on under another value of it."""


class ConfigError(ValueError):
    """The configuration, or the way it was named, is wrong: nothing was started."""


def to_data(config: Any) -> Any:
    """A dataclass as dicts, lists and scalars, ready for JSON."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {field.name: to_data(getattr(config, field.name)) for field in dataclasses.fields(config)}
    if isinstance(config, tuple | list):
        return [to_data(item) for item in config]
    return config


def from_data(kind: type[T], data: Any, *, path: str = "") -> T:
    """The dataclass `kind` from plain data.

    Raises:
      ConfigError: a key that `kind` does not have, a value of the wrong type, or one that `kind` itself refuses.
    """
    if not isinstance(data, dict):
        raise ConfigError(f"{path or kind.__name__}: expected a table of settings, got {data!r}")
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]  # pyright: ignore[reportArgumentType]
    values = {}
    for key, value in data.items():
        where = f"{path}.{key}" if path else str(key)
        if key not in names:
            raise ConfigError(f"unknown setting {where!r}{nearest(key, names)}")
        values[key] = _read(hints[key], value, where)
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path or kind.__name__}: {error}") from error


def nearest(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"``, or the list of what there is."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(known)}"


def essence(config: Any) -> dict[str, Any]:
    """A configuration as plain data, without the settings that are marked `PLACE`."""
    kept = {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if not f.metadata.get("place")}
    return {name: essence(x) if dataclasses.is_dataclass(x) else to_data(x) for name, x in kept.items()}


def fingerprint(config: Any) -> str:
    """A hash of every setting that says what is computed."""
    text = json.dumps(essence(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def resolve(reference: str) -> tuple[str, Any]:
    """The task and configuration that a reference names.

    A reference is, in this order: a saved ``config.json``; ``path/file.py[:function]``; ``package.module:function``;
    a name below ``./experiments`` such as ``translation/multi30k:en_de`` or ``multi30k:en_de``; a built-in name.
    Without a function the file's only public one is meant.

    Raises:
      ConfigError: nothing of that name; the nearest names are listed.
    """
    if reference.endswith(".json"):
        from jaxformer.tasks.rundir import read_config_file

        return read_config_file(pathlib.Path(reference))
    path, _, function = reference.partition(":")
    if path.endswith(".py"):
        return _call(_load_file(pathlib.Path(path)), function, reference)
    for candidate in _below_experiments(path):
        return _call(_load_file(candidate), function, reference)
    from jaxformer.tasks import BUILTIN

    if reference in BUILTIN:
        return _with_task(BUILTIN[reference](), reference)
    if function and all(part.isidentifier() for part in path.split(".")):
        try:
            return _call(importlib.import_module(path), function, reference)
        except ModuleNotFoundError as error:
            raise ConfigError(f"no configuration {reference!r}: {error}") from error
    raise ConfigError(f"no configuration {reference!r}{nearest(reference, (name for name, _ in catalog()))}")


def catalog() -> list[tuple[str, str]]:
    """Names and summaries of the configurations at hand: below ``./experiments``, then the built-in ones.

    A file that cannot be read is listed with the reason: it must not stand in the way of the others.
    """
    from jaxformer.tasks import BUILTIN

    found = []
    root = pathlib.Path("experiments")
    for file in sorted(root.glob("**/*.py")):
        if file.name.startswith("_"):
            continue
        place = file.relative_to(root).with_suffix("").as_posix()
        try:
            module = _load_file(file)
        except (Exception, SystemExit) as error:  # whatever a user's file does
            reason = (str(error).splitlines() or [""])[0]
            found.append((place, f"cannot be read: {type(error).__name__}: {reason}"))
            continue
        found += [(f"{place}:{name}", _summary(getattr(module, name))) for name in _public(module)]
    return found + [(name, _summary(function)) for name, function in BUILTIN.items()]


def _read(hint: Any, value: Any, path: str) -> Any:
    """`value`, checked against a type annotation."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return from_data(hint, value, path=path)  # pyright: ignore[reportArgumentType]
    if origin is typing.Literal:
        if value in arguments:
            return value
        raise ConfigError(f"{path}: got {value!r}, expected one of {', '.join(map(repr, arguments))}")
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _read(next(a for a in arguments if a is not type(None)), value, path)
    if origin is tuple and isinstance(value, tuple | list):
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        if len(kinds) == len(value):
            return tuple(_read(k, v, f"{path}[{i}]") for i, (k, v) in enumerate(zip(kinds, value, strict=True)))
    if hint is float and type(value) is int:
        return float(value)
    if isinstance(hint, type) and type(value) is hint:
        return value
    raise ConfigError(f"{path}: got {value!r}, expected {getattr(hint, '__name__', hint)}")


def _below_experiments(name: str) -> list[pathlib.Path]:
    root = pathlib.Path("experiments").resolve()
    direct = (root / f"{name}.py").resolve()
    if direct.is_relative_to(root) and direct.is_file():
        return [direct]
    if "/" in name or not name.isidentifier():
        return []
    return sorted(root.glob(f"*/{name}.py"))[:1]


def _load_file(path: pathlib.Path) -> types.ModuleType:
    if not path.is_file():
        raise ConfigError(f"no configuration file {path}")
    name = f"jaxformer_config_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _public(module: types.ModuleType) -> list[str]:
    """Functions that the module itself defines, and that can be called without arguments."""
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, types.FunctionType)
        and value.__module__ == module.__name__
        and not name.startswith("_")
        and not _required(value)
    ]


def _required(function: types.FunctionType) -> list[str]:
    """The parameters that a call must give."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def _call(module: types.ModuleType, function: str, reference: str) -> tuple[str, Any]:
    names = _public(module)
    if not function:
        if len(names) != 1:
            raise ConfigError(f"{reference} holds {', '.join(names) or 'no function'}; say which: {reference}:NAME")
        function = names[0]
    found = getattr(module, function, None)
    if isinstance(found, types.FunctionType) and (needed := _required(found)):
        raise ConfigError(f"{reference}: {function} needs {', '.join(needed)}; a configuration takes no arguments")
    if function not in names:
        raise ConfigError(f"{reference}: no function {function!r}{nearest(function, names)}")
    return _with_task(found(), reference)


def _with_task(config: Any, reference: str) -> tuple[str, Any]:
    from jaxformer.tasks import TASKS

    for task, kind in TASKS.items():
        if isinstance(config, kind):
            return task, config
    raise ConfigError(f"{reference} returned {type(config).__name__}, which is no task's configuration")


def _summary(function: Any) -> str:
    return (function.__doc__ or "").strip().splitlines()[0] if function.__doc__ else ""
