"""A Hugging Face model family: the settings and tensors that reading and writing its files need."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import jax

from jaxformer.interop.packing import Shape, Table
from jaxformer.interop.settings import Settings
from jaxformer.modules.pure import Pure
from jaxformer.reprs import brief


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
