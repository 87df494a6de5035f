"""A Hugging Face model family, and checked settings of its ``config.json``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TypeVar

import jax

from jaxformer import models
from jaxformer.errors import DataError
from jaxformer.interop.packing import Shape, Table
from jaxformer.interop.tensors import Settings
from jaxformer.modules.pure import Pure
from jaxformer.reprs import brief

T = TypeVar("T", bound=bool | int | float | str)
Fields = Mapping[str, tuple[str, bool | int | float | str]]
"""The names of settings in ``config.json`` and their defaults there, by our names."""

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
    """Returns a setting, checked to have the type of its default, which replaces a missing or null setting."""
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


def read(settings: Settings, fields: Fields) -> Settings:
    """Returns settings by our names; see `get` and, for the field `activation`, `activation`."""
    values = {ours: get(settings, theirs, default) for ours, (theirs, default) in fields.items()}
    if "activation" in fields:
        name, default = fields["activation"]
        values["activation"] = activation(settings, name, str(default))
    return values


def written(config: object, fields: Fields) -> Settings:
    """Returns the settings of ``config.json`` that say what our configuration says."""
    settings = {theirs: getattr(config, ours) for ours, (theirs, _) in fields.items()}
    if "activation" in fields:
        name, _ = fields["activation"]
        settings[name] = their_activation(settings[name])
    return settings


def require(settings: Settings, **values: object) -> None:
    """Checks settings for which this library supports a single value; missing or null settings have that value."""
    for name, value in values.items():
        if settings.get(name) not in (None, value):
            raise DataError(f"{name} in config.json must be {value!r} for the models here, got {settings[name]!r}")


def renamed(settings: Settings, names: Mapping[str, str]) -> Settings:
    """Returns settings in which alternative names, which Hugging Face reads too, are replaced by the main names.

    Args:
      names: main names by alternative names, such as ``{"num_attention_heads": "n_head"}``.
    """
    result = {name: value for name, value in settings.items() if value is not None}
    for second, main in names.items():
        value = settings.get(second)
        if value is not None and result.setdefault(main, value) != value:
            raise DataError(f"{second} and {main} in config.json must be equal, got {value!r} and {result[main]!r}")
    return result


def shared(settings: Settings, first: str, second: str, default: T) -> T:
    """Returns the value of two settings that must agree, such as the heads of the encoder and of the decoder."""
    value = get(settings, first, default)
    if get(settings, second, default) != value:
        raise DataError(f"{first} and {second} in config.json must be equal for the models here")
    return value


def activation(settings: Settings, name: str, default: str) -> str:
    """Returns this library's name for an activation."""
    value = get(settings, name, default)
    if value not in _ACTIVATIONS:
        raise DataError(f"{name} in config.json must be one of {', '.join(_ACTIVATIONS)}, got {value!r}")
    return _ACTIVATIONS[value]


def has_head(net: Pure) -> bool:
    """Returns True if the model is more than the base model of its family, whose files have no prefix."""
    return net.model is not models.make_encoder


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """A family: its settings and its table of tensors, which both directions use.

    Names in tables are those of the base model's file; the files of models with a head put `prefix` before them.
    """

    net: Callable[[Settings, Mapping[str, Shape]], Pure]
    """Makes the model from a ``config.json`` and the shapes of the tensors in the file."""
    settings: Callable[[Pure], Settings]
    """Makes the ``config.json`` of a model."""
    table: Callable[[Pure], Table]
    """The sources of the parameters."""
    prefix: str = ""
    """The prefix of the base model's names in files of models with a head."""
    heads: tuple[str, ...] = ()
    """Beginnings of names that never have the prefix."""
    copies: Callable[[Pure], Mapping[str, str]] = lambda net: {}
    """Other names under which a file may have a tensor, with the name in the table; if it has both, they must be
    equal."""
    repeated: Callable[[Pure], tuple[str, ...]] = lambda net: ()
    """The copies that are written too, because transformers ties fewer tables than the model."""
    ignored: tuple[str, ...] = ()
    """Patterns of tensors for which models of this library have no parameter."""
    computed: Callable[[Pure], Mapping[str, tuple[Shape, Callable[[], jax.Array]]]] = lambda net: {}
    """Tensors that a file may hold although they are not parameters, such as sinusoids, as shapes and functions that
    compute them; they must be equal."""
    renamed: tuple[tuple[str, str], ...] = ()
    """Older parts of names, each with its present form."""

    __repr__ = brief
