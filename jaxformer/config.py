"""Settings as frozen dataclasses: conversion to and from plain data, changes by name, and fingerprints.

Plain data must match exactly: an unknown key or a wrong type is an error that names the key and suggests another.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import os
import re
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
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


def to_data(config: object, *, without: Collection[str] = ()) -> Any:
    """Returns a dataclass as dicts, lists and scalars, ready for JSON; scalars and arrays of numpy become Python's.

    Args:
      without: marks, such as ``"place"``: settings with one of them in their metadata are left out.
    """
    if tolist := getattr(config, "tolist", None):
        return tolist()
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        fields = [field for field in dataclasses.fields(config) if not field.metadata.keys() & {*without}]
        data = {field.name: to_data(getattr(config, field.name), without=without) for field in fields}
        return {"kind": kind_of(config)} | data if kind_of(config) else data
    if isinstance(config, tuple | list):
        return [to_data(item, without=without) for item in config]
    if isinstance(config, Mapping):
        return {name: to_data(item, without=without) for name, item in config.items()}
    return config


def from_data(kind: type[T], data: object, *, path: str = "") -> T:
    """Builds the dataclass `kind` from plain data.

    A choice, which is a field whose type is a union of dataclasses (see `choices_of`), is a table with the `kind` and
    its settings, or the kind alone.

    Raises:
      ConfigError: an unknown key, a value of the wrong type, or a value that `kind` itself refuses.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path or kind.__name__} must be a table of settings, got {data!r}")
    hints, defaults = types_of(kind), defaults_of(kind)
    values = {}
    for key, value in data.items():
        setting = f"{path}.{key}".removeprefix(".")
        if key not in defaults:
            raise ConfigError(f"unknown setting {setting!r}{did_you_mean(str(key), defaults)}")
        if choices := choices_of(hints[key]):
            values[key] = _chosen(choices, value, setting, kind_of(defaults[key]))
        else:
            values[key] = _checked(hints[key], value, setting)
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path or kind.__name__}: {error}") from error


def _chosen(choices: Mapping[str, type], data: object, path: str, default: str) -> object:
    """Returns one of the choices with its settings."""
    settings = dict(data) if isinstance(data, Mapping) else {"kind": "none" if data is None else data}
    kind = settings.pop("kind", default)
    if not isinstance(kind, str) or kind not in choices:
        raise _not_one_of(choices, kind, path)
    if choices[kind] is not types.NoneType:
        return from_data(choices[kind], settings, path=path)
    if settings:
        names = ", ".join(name for name in choices if name != kind)
        raise ConfigError(f"{path} of kind 'none' has no setting {next(iter(settings))!r}; give its kind: {names}")
    return None


def changed(config: T, changes: Mapping[str, object]) -> T:
    """Returns a configuration with some settings replaced; settings of a nested part are given as a mapping.

    Another kind of a choice, such as ``{"model": "recurrent"}`` or ``{"model": {"kind": "recurrent", "cell": "gru"}}``,
    keeps the settings that both kinds have.

    Args:
      changes: by name, such as ``{"seed": 1, "train": {"steps": 500}}``; paths may be ``os.PathLike``.
    """
    return from_data(type(config), _merged(type(config), to_data(config), changes))


def _merged(hint: object, data: object, changes: object) -> object:
    """Returns plain data of the type `hint` with changes."""
    choices = choices_of(hint)
    if choices and (changes is None or isinstance(changes, str)):
        changes = {"kind": changes or "none"}
    if not isinstance(changes, Mapping):
        return os.fspath(changes) if isinstance(changes, os.PathLike) else to_data(changes)
    before = {**data} if isinstance(data, dict) else {}
    if named := value_type(hint):
        return before | {name: _merged(named, before.get(name), value) for name, value in changes.items()}
    old = choices.get(str(before.get("kind", "none")), hint)
    new = choices.get(str(changes.get("kind", before.get("kind", "none"))), hint)
    hints = types_of(new)
    if new is not old:
        before = {name: x for name, x in before.items() if name in hints and hints[name] == types_of(old).get(name)}
    return before | {name: _merged(hints.get(name), before.get(name), value) for name, value in changes.items()}


def comparable(config: object) -> dict[str, object]:
    """Returns a configuration as plain data, without the settings that are marked `PLACE`."""
    return to_data(config, without=PLACE)


def lasting(config: object) -> dict[str, object]:
    """Returns a configuration as plain data, without the settings that are marked `PLACE` or `LATER`."""
    return to_data(config, without=PLACE | LATER)


def fingerprint(config: object) -> str:
    """Returns a hash of every setting, except those that are marked `PLACE`."""
    text = json.dumps(comparable(config), sort_keys=True, separators=(",", ":"))
    return short_digest([text])


def flat(data: object, path: str = "") -> dict[str, Any]:
    """Returns nested dictionaries as one, with dotted names; the `kind` of a choice has the name of the choice.

    >>> flat({"a": {"kind": "x", "b": 1}, "c": [2]})
    {'a': 'x', 'a.b': 1, 'c': [2]}
    """
    if not isinstance(data, dict):
        return {path: data}
    names = {name: f"{path}.{name}".removeprefix(".") for name in data}
    if path and "kind" in data:
        names["kind"] = path
    return {key: x for name, part in data.items() for key, x in flat(part, names[name]).items()}


def difference(old: object, new: object, path: str = "") -> str:
    """Describes the first difference between two trees of plain data."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            if old.get(key) != new.get(key):
                name = path if path and key == "kind" else f"{path}.{key}".removeprefix(".")
                return difference(old.get(key), new.get(key), name)
    return f"{path} was {old!r}, now {new!r}"


def check_held_out(held_out: float) -> None:
    """Checks that `held_out` is a fraction in (0, 1), or a number of examples, an integer from 1."""
    is_count = isinstance(held_out, int) and not isinstance(held_out, bool)
    if not (held_out >= 1 if is_count else isinstance(held_out, float) and 0 < held_out < 1):
        raise ConfigError(f"held_out must be a fraction between 0 and 1, or an integer from 1, got {held_out}")


def at_least(minimum: float, config: object, *names: str) -> None:
    """Checks that numeric settings are at least `minimum`, in the ``__post_init__`` of a configuration."""
    for name in names:
        if not getattr(config, name) >= minimum:
            raise ConfigError(f"{name} must be at least {minimum}, got {getattr(config, name)}")


def below(limit: float, config: object, *names: str) -> None:
    """Checks that numeric settings are less than `limit`, in the ``__post_init__`` of a configuration."""
    for name in names:
        if not getattr(config, name) < limit:
            raise ConfigError(f"{name} must be less than {limit}, got {getattr(config, name)}")


def check_numbers(config: object) -> None:
    """Checks that the numbers of a configuration are finite in float32, and that counts fit in 32 bits."""
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
        elif isinstance(value, Mapping):
            for key, part in value.items():
                yield from _numbers(part, f"{name}.{key}.")
        else:
            members = value if isinstance(value, tuple) else (value,)
            yield from ((name, x) for x in members if type(x) in (int, float))


def choices_of(hint: object) -> dict[str, type]:
    """Returns the classes of a choice by their kinds; for other types, nothing.

    A choice is a union of frozen dataclasses, each with its name as ``kind: ClassVar[str]``, and perhaps None ("none").
    A setting that belongs to one of them cannot be given to another. A protocol in the union stands for objects of your
    own, which have no name.
    """
    members = [member for member in members_of(hint) if member is not hint and not _is_protocol(member)]
    choices = {"none" if member is types.NoneType else getattr(member, "kind", ""): member for member in members}
    return choices if all(choices) and any(map(dataclasses.is_dataclass, members)) else {}


def value_type(hint: object) -> Any:
    """Returns the dataclass of the values of a mapping of names to settings; None for other types.

    Such a setting is a field of the type ``Mapping[str, Dataclass]``; its names are the user's.
    """
    return typing.get_args(hint)[1] if typing.get_origin(hint) is Mapping else None


def members_of(hint: object) -> tuple[Any, ...]:
    """Returns the types of a union, or the type alone."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def check_choices(config: object) -> None:
    """Checks that each choice of a configuration is one of its dataclasses, in the ``__post_init__`` of it.

    An object of your own, where there may be one, has the method `make`.
    """
    for name, value, hint in _foreign(config):
        choices = choices_of(hint)
        if not (hasattr(value, "make") and any(map(_is_protocol, typing.get_args(hint)))):
            classes = ", ".join("None" if kind == "none" else f"{each.__name__}()" for kind, each in choices.items())
            known = choices.get(OTHER_NAMES.get(str(value), str(value)))
            meant = f"; did you mean {known.__name__}()?" if known else ""
            raise ConfigError(f"{name} must be one of {classes}, got {value!r}{meant}")


def check_saved(config: object, path: str = "") -> None:
    """Checks that config.json can hold a configuration: that no choice is an object of the user's own."""
    for name, value, _ in _foreign(config):
        raise ConfigError(
            f"{path}{name} is your own {value!r}, which config.json cannot hold; train its model in your own loop"
        )
    for name in types_of(type(config)):
        check_saved(getattr(config, name), f"{path}{name}.")


def _foreign(config: object) -> Iterator[tuple[str, object, object]]:
    """Yields the name, value and type of each choice of a configuration that has a value of another class."""
    for name, hint in types_of(type(config)).items():
        choices, value = choices_of(hint), getattr(config, name)
        if choices and type(value) not in choices.values():
            yield name, value, hint


def _is_protocol(member: object) -> bool:
    return getattr(member, "_is_protocol", False)


@functools.cache
def types_of(kind: object) -> dict[str, object]:
    """Returns the type of each field of a dataclass; nothing for other types."""
    if not dataclasses.is_dataclass(kind):
        return {}
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def kind_of(config: object) -> str:
    """Returns the name of a choice, as on the command line: "none" for None, "" for what is not a choice."""
    if config is None:
        return "none"
    kind = getattr(type(config), "kind", "")
    return kind if isinstance(kind, str) else ""


def defaults_of(kind: type) -> dict[str, object]:
    """Returns the default of each field of a dataclass, `dataclasses.MISSING` without one."""
    if not dataclasses.is_dataclass(kind):
        raise TypeError(f"{kind.__name__} is not a dataclass")
    make = lambda field: {} if field.default_factory is dict else field.default
    return {field.name: make(field) for field in dataclasses.fields(kind)}


OTHER_NAMES = {
    **{"rope": "rotary", "sine": "sinusoidal", "layernorm": "layer", "rmsnorm": "rms", "swish": "silu"},
    **{"swiglu": "gated", "geglu": "gated", "moe": "experts", "bf16": "bfloat16", "fp32": "float32"},
}
"""Values of settings by the different names that other libraries use for them."""


def _checked(hint: object, value: object, path: str) -> object:
    """Returns `value`, checked against a type annotation."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_data(hint, value, path=path)
    if named := value_type(hint):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path} must be a table of names, each with a table of settings, got {value!r}")
        return {_name(name, path): _checked(named, part, f"{path}.{name}") for name, part in value.items()}
    if origin is typing.Literal:
        if value in arguments:
            return value
        raise _not_one_of(arguments, value, path)
    if origin in (typing.Union, types.UnionType):
        if type(value) in arguments:
            return value
        others = [argument for argument in arguments if argument is not type(None)]
        if len(others) == 1:
            return _checked(others[0], value, path)
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


def _name(name: object, path: str) -> str:
    """Returns a name that a user has given to a part of a configuration, which is an argument's part, too."""
    if not isinstance(name, str) or not re.fullmatch("[A-Za-z0-9_]{1,40}", name):
        plain = re.sub("[^A-Za-z0-9_]", "_", str(name))
        raise ConfigError(f"{path}: a name has up to 40 letters, digits and _, got {name!r}; take {plain[:40]!r}")
    return name


def _not_one_of(values: Iterable[object], value: object, path: str) -> ConfigError:
    names = [str(name) for name in values]
    near = difflib.get_close_matches(OTHER_NAMES.get(str(value), str(value)), names, n=1)
    hint = "".join(f"; did you mean {name!r}?" for name in near)
    return ConfigError(f"{path}: got {value!r}, expected one of {', '.join(map(repr, values))}{hint}")
