"""The public names of packages; lazy packages import them at first use, so that settings can be read without JAX."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from jaxformer.errors import ConfigError


def require(package: str, *, what: str, extra: str) -> None:
    """Checks that a package of an extra is installed.

    Args:
      what: the beginning of the message, such as "exported programs need".
    """
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f"{what} the package {package}: pip install 'jaxformer[{extra}]'")


def list_names(package: str) -> None:
    """Sets the ``__all__`` of a package to the names that it has imported, because `help` shows no others."""
    module = sys.modules[package]
    names = [name for name, value in vars(module).items() if name[0] != "_" and not inspect.ismodule(value)]
    vars(module).update(__all__=sorted(names))


def members(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns a ``__getattr__`` for a package, and sets its ``__all__`` and ``__dir__``.

    They list the names in the table and those that the package has already imported from its own submodules.

    Args:
      modules: the public names that each submodule holds, separated by spaces; submodules are also attributes.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}
    module = sys.modules[package]
    within = lambda value: getattr(value, "__module__", "").startswith(f"{package}.")
    imported = [name for name, value in vars(module).items() if within(value)]
    public = sorted({*modules, *homes, *imported})
    vars(module).update(__all__=public, __dir__=lambda: sorted({*vars(module), *public}))

    def get(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name in homes:
            value = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
            setattr(sys.modules[package], name, value)
            return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
