"""Checks and reads settings of Hugging Face's ``config.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from jaxformer.errors import DataError

T = TypeVar("T", bound=bool | int | float | str)
Settings = Mapping[str, Any]
"""The object of a ``config.json``."""

_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
their_activation = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}.__getitem__
"""Returns Hugging Face's name for one of our activations."""

_MAX_SIZE = 2**24


def get(settings: Settings, name: str, default: T) -> T:
    """Returns a setting, checked to have the type of its default, which replaces a missing or null setting.

    Raises:
      DataError: it has another type, a size is negative or larger than that of any model, or another number is negative
        or not finite.
    """
    value = settings.get(name)
    if value is None:
        return default
    if type(default) is float and type(value) is int and abs(value) < 2**53:
        value = type(default)(value)
    if type(value) is not type(default):
        raise DataError(f"{name} in config.json must be of type {type(default).__name__}, got {value!r}")
    if type(value) is int and not 0 <= value <= _MAX_SIZE:
        raise DataError(f"{name} in config.json must be from 0 to {_MAX_SIZE}, got {value}")
    if type(value) is float and not 0 <= value < math.inf:
        raise DataError(f"{name} in config.json must be finite and not negative, got {value}")
    return value


def require(settings: Settings, **values: object) -> None:
    """Checks settings for which this library supports a single value; missing or null settings have that value.

    Raises:
      DataError: one has another value.
    """
    for name, value in values.items():
        if settings.get(name) not in (None, value):
            raise DataError(f"{name} in config.json must be {value!r} for the models here, got {settings[name]!r}")


def renamed(settings: Settings, names: Mapping[str, str]) -> Settings:
    """Returns settings in which alternative names, which Hugging Face reads too, are replaced by the main names.

    Args:
      names: main names by alternative names, such as ``{"num_attention_heads": "n_head"}``.

    Raises:
      DataError: a setting has different values under its two names.
    """
    result = {name: value for name, value in settings.items() if value is not None}
    for second, main in names.items():
        value = settings.get(second)
        if value is not None and result.setdefault(main, value) != value:
            raise DataError(f"{second} and {main} in config.json must be equal, got {value!r} and {result[main]!r}")
    return result


def shared(settings: Settings, first: str, second: str, default: T) -> T:
    """Returns the value of two settings that must agree, such as the heads of the encoder and of the decoder.

    Raises:
      DataError: they do not agree.
    """
    value = get(settings, first, default)
    if get(settings, second, default) != value:
        raise DataError(f"{first} and {second} in config.json must be equal for the models here")
    return value


def activation(settings: Settings, name: str, default: str) -> str:
    """Returns this library's name for an activation.

    Raises:
      DataError: it is unknown.
    """
    value = get(settings, name, default)
    if value not in _ACTIVATIONS:
        raise DataError(f"{name} in config.json must be one of {', '.join(_ACTIVATIONS)}, got {value!r}")
    return _ACTIVATIONS[value]
