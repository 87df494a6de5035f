"""Short reprs of dataclasses, without the values of arrays and settings that have their defaults; HTML for notebooks.

The text of a value is escaped in HTML, and colors are transparent, so that they fit light and dark pages.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

LONGEST = 80
"""The number of characters after which only the class of a value is named, unless it is text."""

SHOWN = 8
"""The number of items after which a sequence is cut."""

MOST_CELLS = 24
"""The number of rows, and of columns, after which a grid is cut."""


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
    return f"{brief(self)[:-1]}; methods: {_methods(self)})"


def as_html(self: object) -> str:
    """Returns a dataclass as a table of its fields, those with their defaults in gray; used as its ``_repr_html_``."""
    rows = [(name, _details(item), "opacity: 0.6" * is_default) for name, item, is_default in _items(self)]
    if type(self).__repr__ is brief_with_methods:
        rows.append(("methods", escape(_methods(self)), ""))
    left = 'style="text-align: left"'
    body = (f'<tr style="{gray}"><th {left}>{name}</th><td {left}>{text}</td></tr>' for name, text, gray in rows)
    return f"<table><caption {left}>{type(self).__name__}</caption>{''.join(body)}</table>"


def _details(value: Any) -> str:
    """Returns a value as HTML: its one line, which opens to a table if it has fields of its own."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and dataclasses.fields(value):
        return f"<details><summary>{escape(_shown(value))}</summary>{as_html(value)}</details>"
    return escape(_shown(value))


def as_grid(weights: Any, rows: Sequence[str], columns: Sequence[str], *, caption: str) -> str:
    """Returns weights ``[T, S]`` as a table of shades with labels, as HTML; the largest weight is the darkest shade."""
    shown = weights[:MOST_CELLS, :MOST_CELLS]
    top = float(shown.max()) or 1.0
    if shown.shape != (len(rows), len(columns)):
        caption += f"; the first {shown.shape[0]} of {len(rows)} rows and {shown.shape[1]} of {len(columns)} columns"
    head = "".join(f'<th style="writing-mode: vertical-rl">{escape(name)}</th>' for name in columns[:MOST_CELLS])
    body = ""
    for row, line in zip(rows, shown, strict=False):
        body += f"<tr><th>{escape(row)}</th>"
        for column, weight in zip(columns, map(float, line), strict=False):
            color, title = f"rgb(31 119 180 / {weight / top:.2f})", escape(f"{row}, {column}: {weight:.3g}")
            body += f'<td style="min-width: 1em; background: {color}" title="{title}"></td>'
        body += "</tr>"
    return f"<table><caption>{escape(caption)}</caption><tr><th></th>{head}</tr>{body}</table>"


def _methods(value: object) -> str:
    """Returns the names of the public methods of an object."""
    members = {name: member for kind in reversed(type(value).__mro__) for name, member in vars(kind).items()}
    fields = getattr(value, "__dataclass_fields__", {})
    methods = [name for name, member in members.items() if inspect.isfunction(member) and name not in fields]
    return ", ".join(name for name in sorted(methods) if name[0] != "_")


def _fields(value: Any) -> Iterator[str]:
    """Yields the fields that differ from their defaults."""
    for name, item, is_default in _items(value):
        if not is_default:
            yield f"{name}={_shown(item)}"


def _items(value: Any) -> Iterator[tuple[str, object, bool]]:
    """Yields the name and the value of each field that is shown, and whether it has its default."""
    if isinstance(value, tuple):
        defaults = getattr(value, "_field_defaults", {})
        pairs = [(name, getattr(value, name), defaults.get(name, dataclasses.MISSING)) for name in _names(value)]
    else:
        shown = [field for field in dataclasses.fields(value) if field.repr]
        pairs = [(field.name, getattr(value, field.name), _default(field)) for field in shown]
    for name, item, default in pairs:
        is_equal = type(item) is type(default) and not _is_array(item) and item == default
        yield name, item, item is default or bool(is_equal)


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
