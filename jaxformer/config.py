"""Settings as frozen dataclasses: conversion to and from plain data, changes by name, and fingerprints.

Plain data must match exactly: an unknown key or a wrong type is an error that names the key and suggests another.
"""

from __future__ import annotations

import dataclasses
import json
import os
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from jaxformer.digests import short_digest
from jaxformer.errors import ConfigError, did_you_mean

T = TypeVar("T")

PLACE = {"place": True}
"""Metadata of a setting that only affects where a run is computed: a run may be resumed with another value."""


LATER = {"later": True}
"""Metadata of a setting that may differ in a resumed run, because it changes no completed step. Settings of the
learning rate are checked: the rates of the completed steps must be the same."""


LARGEST_FLOAT = 3.4e38
"""The largest float32; larger numbers would be infinite in models."""


def to_data(config: Any) -> Any:
    """Returns a dataclass as dicts, lists and scalars, ready for JSON; scalars and arrays of numpy become Python's."""
    if hasattr(config, "tolist"):
        return config.tolist()
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {field.name: to_data(getattr(config, field.name)) for field in dataclasses.fields(config)}
    if isinstance(config, tuple | list):
        return [to_data(item) for item in config]
    return config


def from_data(kind: type[T], data: object, *, path: str = "") -> T:
    """Builds the dataclass `kind` from plain data.

    Raises:
      ConfigError: an unknown key, a value of the wrong type, or a value that `kind` itself refuses.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path or kind.__name__} must be a table of settings, got {data!r}")
    hints = typing.get_type_hints(kind)
    names = _names(kind)
    values = {}
    for key, value in data.items():
        setting = f"{path}.{key}" if path else str(key)
        if key not in names:
            raise ConfigError(f"unknown setting {setting!r}{did_you_mean(str(key), names)}")
        values[key] = _checked(hints[key], value, setting)
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path or kind.__name__}: {error}") from error


def changed(config: T, changes: Mapping[str, object]) -> T:
    """Returns a configuration with some settings replaced; settings of a nested part are given as a mapping.

    Another `kind` of a part, such as ``{"model": {"kind": "recurrent"}}``, keeps the settings that both kinds have.

    Args:
      changes: by name, such as ``{"seed": 1, "train": {"steps": 500}}``; paths may be ``os.PathLike``.

    Raises:
      ConfigError: see `from_data`.
    """
    return from_data(type(config), _merged(to_data(_of_kinds(config, changes)), changes))


def comparable(config: Any) -> dict[str, Any]:
    """Returns a configuration as plain data, without the settings that are marked `PLACE`."""
    return _without(config, "place")


def lasting(config: Any) -> dict[str, Any]:
    """Returns a configuration as plain data, without the settings that are marked `PLACE` or `LATER`."""
    return _without(config, "place", "later")


def _without(config: Any, *marks: str) -> dict[str, Any]:
    kept = {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if not f.metadata.keys() & {*marks}}
    return {name: _without(x, *marks) if dataclasses.is_dataclass(x) else to_data(x) for name, x in kept.items()}


def fingerprint(config: Any) -> str:
    """Returns a hash of every setting, except those that are marked `PLACE`."""
    text = json.dumps(comparable(config), sort_keys=True, separators=(",", ":"))
    return short_digest([text])


def flat(data: Any, path: str = "") -> dict[str, Any]:
    """Returns nested dictionaries as one, with dotted names.

    >>> flat({"a": {"b": 1}, "c": [2]})
    {'a.b': 1, 'c': [2]}
    """
    if not isinstance(data, dict):
        return {path: data}
    return {key: x for name, part in data.items() for key, x in flat(part, f"{path}.{name}" if path else name).items()}


def difference(old: object, new: object, path: str = "") -> str:
    """Describes the first difference between two trees of plain data."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            if old.get(key) != new.get(key):
                return difference(old.get(key), new.get(key), f"{path}.{key}" if path else str(key))
    return f"{path} was {old!r}, now {new!r}"


def at_least(minimum: float, config: object, *names: str) -> None:
    """Checks that numeric settings are at least `minimum`, in the ``__post_init__`` of a configuration.

    Raises:
      ConfigError: a setting is below `minimum`, or NaN.
    """
    for name in names:
        if not getattr(config, name) >= minimum:
            raise ConfigError(f"{name} must be at least {minimum}, got {getattr(config, name)}")


def check_numbers(config: object) -> None:
    """Checks that the numbers of a configuration and its parts are finite in float32, and that counts fit in 32 bits.

    Raises:
      ConfigError: a number is not; the message has its dotted name.
    """
    for name, value in _numbers(config):
        if isinstance(value, float) and not abs(value) <= LARGEST_FLOAT:
            raise ConfigError(f"{name} must be finite in float32, got {value}")
        if isinstance(value, int) and abs(value) >= 2**31 and not name.endswith("seed"):
            raise ConfigError(f"{name} must be less than 2**31, got {value}")


def _numbers(config: object, path: str = "") -> Iterator[tuple[str, int | float]]:
    for field in dataclasses.fields(config):  # pyright: ignore[reportArgumentType]
        value, name = getattr(config, field.name), f"{path}{field.name}"
        if dataclasses.is_dataclass(value):
            yield from _numbers(value, f"{name}.")
        else:
            yield from ((name, x) for x in (value if isinstance(value, tuple) else (value,)) if type(x) in (int, float))


def kinds_of(hint: Any) -> dict[object, type]:
    """Returns the dataclasses of a union, the default first, by the value of their field `kind`."""
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else ()
    if not kinds or not all(dataclasses.is_dataclass(kind) for kind in kinds):
        return {}
    return {typing.get_args(typing.get_type_hints(kind)["kind"])[0]: kind for kind in kinds}


def _of_kinds(config: T, changes: Mapping[str, object]) -> T:
    """Returns a configuration whose parts have the kinds in `changes`, and keep the settings that both kinds have."""
    hints = typing.get_type_hints(type(config))
    for name, change in changes.items():
        kind = kinds_of(hints.get(name)).get(change.get("kind")) if isinstance(change, Mapping) else None
        part = getattr(config, name, None)
        if kind is not None and not isinstance(part, kind):
            common = set(_names(kind)) & set(_names(type(part))) - {"kind"}
            config = dataclasses.replace(
                typing.cast(Any, config), **{name: kind(**{each: getattr(part, each) for each in common})}
            )
    return config


def _names(kind: type) -> list[str]:
    if not dataclasses.is_dataclass(kind):
        raise TypeError(f"{kind.__name__} is not a dataclass")
    return [field.name for field in dataclasses.fields(kind)]


def _merged(data: object, changes: object) -> object:
    if isinstance(data, dict) and isinstance(changes, Mapping):
        return data | {name: _merged(data.get(name), value) for name, value in changes.items()}
    return os.fspath(changes) if isinstance(changes, os.PathLike) else to_data(changes)


def _checked(hint: Any, value: object, path: str) -> object:
    """Returns `value`, checked against a type annotation."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_data(hint, value, path=path)
    if kinds := kinds_of(hint):
        name = value.get("kind", next(iter(kinds))) if isinstance(value, Mapping) else next(iter(kinds))
        if not isinstance(name, str) or name not in kinds:
            raise ConfigError(f"{path}.kind: got {name!r}, expected one of {', '.join(map(repr, kinds))}")
        return from_data(kinds[name], value, path=path)
    if origin is typing.Literal:
        if value in arguments:
            return value
        raise ConfigError(f"{path}: got {value!r}, expected one of {', '.join(map(repr, arguments))}")
    if origin in (typing.Union, types.UnionType):
        others = [argument for argument in arguments if argument is not type(None)]
        if type(value) in arguments or len(others) == 1:
            return value if type(value) in arguments else _checked(others[0], value, path)
    if origin is tuple and isinstance(value, tuple | list):
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        if len(kinds) == len(value):
            return tuple(_checked(k, v, f"{path}[{i}]") for i, (k, v) in enumerate(zip(kinds, value, strict=True)))
    if hint is float and type(value) is int:
        try:
            return float(value)
        except OverflowError as error:
            raise ConfigError(f"{path}: a number of {len(str(value)):,} digits is too large") from error
    if isinstance(hint, type) and type(value) is hint:
        return value
    raise ConfigError(f"{path}: got {value!r}, expected {hint if origin else getattr(hint, '__name__', hint)}")
