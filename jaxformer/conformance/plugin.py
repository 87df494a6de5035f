"""A plugin of pytest that runs one test for each property of an attention function.

    pytest -p jaxformer.conformance.plugin --attention jax.nn:dot_product_attention

Importing the module that is named runs its code. The name may also be that of a `conformance.Adapter`. Tests of files
run as well only if paths are given.
"""

from __future__ import annotations

from typing import Any

import pytest

from jaxformer.conformance.adapter import Adapter, adapt
from jaxformer.conformance.check import check, load
from jaxformer.conformance.report import Row
from jaxformer.conformance.trials import PROPERTIES
from jaxformer.errors import ConfigError

ADAPTER = pytest.StashKey[Adapter]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of the kit."""
    group = parser.getgroup("attention", "conformance of attention functions")
    about = "package.module:function, an attention or its Adapter; its module is imported, which runs its code"
    group.addoption("--attention", metavar="NAME", help=about)
    group.addoption("--attention-layout", default=None, help="order of batch, length, heads and dim (default BTNH)")
    group.addoption("--attention-seconds", type=float, default=120.0, help="the limit of each property (default 120)")


def pytest_configure(config: pytest.Config) -> None:
    """Reads the function, so that a wrong name is one line and exit code 2."""
    name, layout = config.getoption("--attention"), config.getoption("--attention-layout")
    if name is None:
        return
    try:
        fields = {} if layout is None else {"layout": layout}
        found: Any = load(name)
        if isinstance(found, Adapter) and fields:
            raise ConfigError(f"{name} is an Adapter, which has a layout; leave out --attention-layout")
        config.stash[ADAPTER] = found if isinstance(found, Adapter) else adapt(found, name=name, **fields)
    except ConfigError as error:
        pytest.exit(str(error), returncode=2)
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = []


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Adds one test for each property."""
    if ADAPTER in config.stash:
        items += [PropertyItem.from_parent(session, name=name) for name in PROPERTIES]


class FailedError(Exception):
    """A property that a function does not have."""


class PropertyItem(pytest.Item):
    """The test of one property."""

    def runtest(self) -> None:
        limit: Any = self.config.getoption("--attention-seconds")
        row = check(self.config.stash[ADAPTER], only=[self.name], seconds=limit).rows[0]
        if row.status == "not offered":
            pytest.skip(f"not offered: {row.finding}")
        if row.status == "failed":
            raise FailedError(row)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if not isinstance(excinfo.value, FailedError):
            return super().repr_failure(excinfo, style)
        row: Row = excinfo.value.args[0]
        return f"{PROPERTIES[self.name].about}\n{row.finding}\n\n{row.code}"

    def reportinfo(self) -> tuple[str, None, str]:
        adapter = self.config.stash[ADAPTER]
        return ".".join(adapter.place), None, self.name
