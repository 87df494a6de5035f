"""Short reprs of dataclasses, without the values of arrays and the settings that have their defaults."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

LONGEST = 80
"""The number of characters after which only the class of a value is named, unless it is text."""

SHOWN = 8
"""The number of items after which a sequence is cut."""


def brief(self: object) -> str:
    """Returns a dataclass or a named tuple as one line; used as its ``__repr__``.

    Arrays are shown as dtype and shape. Fields that have their defaults are left out.

    >>> @dataclasses.dataclass
    ... class Point:
    ...     x: float
    ...     y: float = 0.0
    >>> brief(Point(1.0)), brief(Point(1.0, 2.0))
    ('Point(x=1.0)', 'Point(x=1.0, y=2.0)')
    """
    return f"{type(self).__name__}({', '.join(_fields(self))})"


def brief_with_methods(self: object) -> str:
    """Returns the same as `brief` with the names of the methods that a user may call."""
    kinds = type(self).__mro__
    members = {name: member for kind in reversed(kinds) for name, member in vars(kind).items()}
    fields = getattr(self, "__dataclass_fields__", {})
    methods = [name for name, member in members.items() if inspect.isfunction(member) and name not in fields]
    return f"{brief(self)[:-1]}; methods: {', '.join(name for name in sorted(methods) if name[0] != '_')})"


def _fields(value: Any) -> Iterator[str]:
    """Yields the fields that differ from their defaults."""
    if isinstance(value, tuple):
        defaults = getattr(value, "_field_defaults", {})
        pairs = [(name, getattr(value, name), defaults.get(name, dataclasses.MISSING)) for name in _names(value)]
    else:
        shown = [field for field in dataclasses.fields(value) if field.repr]
        pairs = [(field.name, getattr(value, field.name), _default(field)) for field in shown]
    for name, item, default in pairs:
        if item is not default and not (type(item) is type(default) and not _is_array(item) and item == default):
            yield f"{name}={_shown(item)}"


def _names(value: object) -> tuple[str, ...]:
    """Returns the names of the fields of a named tuple."""
    return getattr(value, "_fields", ())


def _default(field: dataclasses.Field[object]) -> object:
    """Returns the default of a field, or `dataclasses.MISSING`."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _is_array(value: object) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _shown(value: Any) -> str:
    """Returns a value as one line."""
    if _is_array(value):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, type):
        return value.__name__
    if dataclasses.is_dataclass(value) or _names(value):
        return brief(value)
    if isinstance(value, tuple | list):
        items = [_shown(item) for item in value[:SHOWN]]
        if len(value) > SHOWN:
            items.append(f"... {len(value):,} in all")
        text = ", ".join(items)
        if isinstance(value, list):
            return f"[{text}]"
        return f"({text},)" if len(value) == 1 else f"({text})"
    if isinstance(value, Mapping) and (sizes := list(_sizes(value))):
        return f"<{sum(sizes):,} values in {len(sizes)} arrays>"
    text = getattr(value, "__qualname__", None) or repr(value)  # a function's repr is its address
    if isinstance(value, str) or (len(text) <= LONGEST and "\n" not in text and " object at 0x" not in text):
        return text
    return f"<{type(value).__name__}>"


def _sizes(tree: Mapping[Any, Any]) -> Iterator[int]:
    """Yields the number of values of each array of a nested mapping."""
    for item in tree.values():
        if isinstance(item, Mapping):
            yield from _sizes(item)
        elif _is_array(item):
            yield item.size
