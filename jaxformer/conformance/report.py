"""The report of a check: rows as a table of text, JSON, Markdown and HTML, and code that reproduces a failure."""

from __future__ import annotations

import dataclasses
import json
import platform
import sys
from collections.abc import Mapping
from html import escape
from importlib import metadata
from typing import Any

import jax
import numpy as np

from jaxformer.conformance.adapter import Adapter
from jaxformer.conformance.trials import Outcome
from jaxformer.files import plain


@dataclasses.dataclass(frozen=True)
class Row:
    """The finding of one property."""

    name: str
    status: str
    """"passed", "failed" or "not offered"."""
    errors: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The largest error by dtype, shape or case; infinite for NaN and for an exception."""
    finding: str = ""
    code: str = ""
    """A call of the smallest sizes that fail."""
    seconds: float = 0.0

    def timed(self, seconds: float) -> Row:
        return dataclasses.replace(self, seconds=round(seconds, 2))

    @property
    def error(self) -> float:
        """The largest error of all cases; 0 without."""
        return max(self.errors.values(), default=0.0)

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """The row of a table."""
        return self.name, self.status, f"{self.error:.1e}" if self.errors else "", self.finding


@dataclasses.dataclass(frozen=True, repr=False)
class Report:
    """The result of `check`; it prints as a table, with code for each failure below it."""

    adapter: Adapter
    rows: tuple[Row, ...]

    @property
    def name(self) -> str:
        return ".".join(self.adapter.place)

    def __getitem__(self, name: str) -> Row:
        return {row.name: row for row in self.rows}[name]

    def of(self, status: str) -> list[str]:
        """Returns the names of the properties of a status."""
        return [row.name for row in self.rows if row.status == status]

    @property
    def counts(self) -> str:
        return ", ".join(f"{len(self.of(status))} {status}" for status in ("passed", "failed", "not offered"))

    @property
    def versions(self) -> dict[str, str]:
        """The versions of Python, of the framework, and of the package of the function."""
        top = {self.name.partition(".")[0], "jaxformer", "numpy", self.adapter.framework}
        homes = metadata.packages_distributions()
        packages = sorted({homes[name][0] for name in top if name in homes})
        return {"python": platform.python_version()} | {name: metadata.version(name) for name in packages}

    def __repr__(self) -> str:
        return f"Report({self.name}: {self.counts})"

    def __str__(self) -> str:
        cells = [("property", "status", "error", "finding"), *(row.cells for row in self.rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(3)]
        table = ["  ".join([*(row[i].ljust(widths[i]) for i in range(3)), row[3]]).rstrip() for row in cells]
        failures = [f"\n{row.name}: {row.finding}\n{row.code}" for row in self.rows if row.code]
        return "\n".join([f"{self.name}: {self.counts}", *table, *failures])

    def to_json(self) -> str:
        """Returns the report as JSON; an error that is infinite is null."""
        taken = {k: v for k, v in vars(self.adapter).items() if isinstance(v, str | bool | tuple | None) and v}
        devices = f"{len(jax.devices())} {jax.devices()[0].device_kind}"
        facts = {"name": self.name, "adapter": taken, "versions": self.versions, "devices": devices}
        return json.dumps(plain(facts | {"rows": list(map(dataclasses.asdict, self.rows))}), indent=1, allow_nan=False)

    def to_markdown(self) -> str:
        """Returns the table as Markdown."""
        lines = ["| property | status | error | finding |", "|---|---|---|---|"]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row.cells) + " |" for row in self.rows]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head, *body = (("property", "status", "error", "finding"), *(row.cells for row in self.rows))
        of = lambda cells, tag: "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"
        rows = of(head, "th") + "".join(of(cells, "td") for cells in body)
        return f"<table><caption>{escape(self.name)}: {self.counts}</caption>{rows}</table>"


def reproduction(adapter: Adapter, outcome: Outcome) -> str:
    """Returns lines of code that call the function as a failed trial did, to paste."""
    if outcome.request is None:
        return ""
    request = outcome.request
    module, name = adapter.place
    found = getattr(sys.modules.get(module), name, None)
    lines = ["import numpy as np", "from numpy import inf, nan"]
    if found is adapter.function:
        lines.append(f"from {module} import {name}")
    else:
        lines.append(f"attend = ...  # {module}.{name}")
        name = "attend"
    values = {x: adapter.to_layout(getattr(request, x)) for x in ("query", "key", "value")}
    arguments = adapter.arguments(request)
    arrays = values | {k: v for k, v in arguments.items() if isinstance(v, np.ndarray)}
    wrap = {"jax": "jnp.asarray", "torch": "torch.tensor"}.get(adapter.framework, "")
    lines += {"jax": ["import jax, jax.numpy as jnp"], "torch": ["import torch"]}.get(adapter.framework, [])
    lines += [f"{k} = {_literal(x, wrap, 'torch' if wrap[:1] == 't' else 'jnp')}" for k, x in arrays.items()]
    keywords = [f"{k}={k if k in arrays else repr(v)}" for k, v in arguments.items()]
    call = lambda first: f"{name}({', '.join([*first, *keywords])})"
    if outcome.of == "gradients" and adapter.framework == "jax":
        lines.append(f"f = lambda q, k, v: {call(['q', 'k', 'v'])}.astype(jnp.float32).sum()")
        lines.append("print(jax.grad(f, (0, 1, 2))(query, key, value))")
    else:
        lines.append(f"print({call(values)})")
    return "\n".join(lines)


def _literal(x: np.ndarray, wrap: str, module: str) -> str:
    """Returns an array as code."""
    narrow = x.dtype.name == "bfloat16"
    if x.size > 4 and (x == x.flat[0]).all():
        text = f"np.full({x.shape}, {x.flat[0].item()}, np.{'float32' if narrow else x.dtype.name})"
    else:
        text = f"np.array({_digits(x.tolist())}, np.{'float32' if narrow else x.dtype.name})"
    text = f"{wrap}({text})" if wrap else text
    return f"{text}.{'to' if module == 'torch' else 'astype'}({module}.bfloat16)" if narrow else text


def _digits(x: Any) -> str:
    if isinstance(x, list):
        return "[" + ", ".join(map(_digits, x)) + "]"
    return f"{x:.4g}" if isinstance(x, float) else repr(x)
