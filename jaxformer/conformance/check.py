"""`check`: runs every property of a function, shrinks what fails, and gathers a report."""

from __future__ import annotations

import ctypes
import functools
import importlib
import operator
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxformer.conformance import derivatives as derivatives  # registers its properties
from jaxformer.conformance.adapter import Adapter, NotOfferedError, adapt
from jaxformer.conformance.engines import Engine, JaxEngine
from jaxformer.conformance.report import Report, Row, reproduction
from jaxformer.conformance.torch_functions import TorchEngine
from jaxformer.conformance.trials import (
    LIMITS,
    PROPERTIES,
    BrokenError,
    Outcome,
    Property,
    Sizes,
    Subject,
    Trial,
)
from jaxformer.errors import ConfigError, did_you_mean, first_line


class HangsError(BaseException):
    """A property took longer than its limit; no handler of exceptions takes it for one of the function."""


def check(
    function: Callable[..., Any] | Adapter,
    *,
    only: Sequence[str] | None = None,
    shrink: bool = True,
    seconds: float = 120.0,
    limits: Mapping[str, float] | None = None,
    **fields: Any,
) -> Report:
    """Checks which properties an attention function has: of JAX, NumPy or PyTorch, of this library or not.

    What the function does not take is "not offered", and never "passed". A property that raises an error, takes too
    long, or gets a result of another shape has failed. Each failure has a call of the smallest sizes that still fail.

    Args:
      function: called as ``function(query, key, value, **arguments)``; or its `Adapter`.
      only: the names of properties, all of `PROPERTIES` by default.
      shrink: False leaves a failure at the sizes at which it was found.
      seconds: the limit of one property. It runs in a thread of its own, so settings of JAX that are made for one
        thread, by a context manager, do not reach it. A thread that runs Python beyond the limit is stopped by an
        exception; one that stays in compiled code is left behind, and the properties after it are not tried.
      limits: the largest error by dtype, in place of `LIMITS`.
      fields: those of `Adapter` that the signature of a function does not tell, such as ``layout="BNTH"``.

    Raises:
      ConfigError: a field, a property or the dtype of a limit does not exist, there are fields beside an `Adapter`, or
        the function cannot be called.

    >>> import numpy as np
    >>> def attend(q, k, v):
    ...     weights = np.exp(np.einsum("btnh,bsnh->bnts", q, k) / q.shape[-1] ** 0.5)
    ...     return np.einsum("bnts,bsnj->btnj", weights / weights.sum(-1, keepdims=True), v)
    >>> report = check(attend, only=["values", "mask", "large logits"], framework="numpy", dtypes=["float32"])
    >>> [(row.name, row.status) for row in report.rows]
    [('values', 'passed'), ('mask', 'not offered'), ('large logits', 'failed')]
    """
    if isinstance(function, Adapter) and fields:
        raise ConfigError(f"an Adapter has its own fields, got {', '.join(fields)} beside it; use dataclasses.replace")
    adapter = adapt(function, **fields) if not isinstance(function, Adapter) else function
    if wrong := [dtype for dtype in limits or () if dtype not in LIMITS]:
        raise ConfigError(f"there is no limit of {wrong[0]!r}{did_you_mean(wrong[0], LIMITS)}")
    for name in only or ():
        if name not in PROPERTIES:
            raise ConfigError(f"there is no property {name!r}{did_you_mean(name, PROPERTIES)}")
    engine = {"jax": JaxEngine, "numpy": Engine, "torch": TorchEngine}[adapter.framework]
    subject = Subject(adapter, engine(adapter), {**LIMITS, **(limits or {})})
    rows, stuck = [], ""
    for name in PROPERTIES if only is None else only:
        began = time.monotonic()
        if stuck:
            rows.append(Row(name, "failed", finding=f"not tried: {stuck} still runs"))
            continue
        try:
            row = limited(functools.partial(_row, subject, PROPERTIES[name], shrink), seconds)
        except HangsError as error:
            row, stuck = Row(name, "failed", finding=f"takes more than {seconds:g} seconds"), str(error) and name
        rows.append(row.timed(time.monotonic() - began))
    return Report(adapter, tuple(rows))


def limited(function: Callable[[], Any], seconds: float) -> Any:
    """Returns the result of a function, which runs in a thread.

    Raises:
      HangsError: it takes longer; the message is empty if the thread has ended.
    """
    results: list[Any] = []

    def run() -> None:
        try:
            results.append((function(), None))
        except BaseException as error:
            results.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(HangsError))
        thread.join(min(seconds, 2.0))
        raise HangsError("still runs" if thread.is_alive() else "")
    result, error = results[0]
    if error is not None:
        raise error
    return result


def _row(subject: Subject, property: Property, shrink: bool) -> Row:
    """Tries every label of a property; the first failure is shrunk."""
    outcomes: dict[str, Outcome] = {}
    refused: list[str] = []
    for label, trial in property.trials.items():
        try:
            outcomes[label] = tried(subject, trial, property.sizes)
        except NotOfferedError as error:
            refused.append(str(error))
    errors = {label: outcome.error for label, outcome in outcomes.items()}
    failed = {label: outcome for label, outcome in outcomes.items() if outcome.failure}
    notes = [outcome.note for outcome in outcomes.values() if outcome.note]
    raises = [f"{label}: {x.failure}" for label, x in failed.items() if x.failure.startswith("raises")]
    if property.name == "second derivatives" and len(raises) == len(failed) < len(outcomes):  # one mode is enough
        failed, notes = {}, [*notes, *raises]
    if failed:
        label, found = next(iter(failed.items()))
        if shrink:
            found = shrunk(subject, property.trials[label], property.sizes, found)
        texts: dict[str, list[str]] = {}
        for label, outcome in failed.items():
            texts.setdefault(outcome.failure, []).append(label)
        findings = [f"{', '.join(labels)}: {text}".removeprefix(": ") for text, labels in texts.items()]
        return Row(
            property.name, "failed", errors, "; ".join([*findings, *notes]), reproduction(subject.adapter, found)
        )
    if not outcomes:
        return Row(property.name, "not offered", {}, "; ".join(dict.fromkeys(refused)))
    return Row(property.name, "passed", errors, "; ".join(dict.fromkeys([*notes, *refused])))


def tried(subject: Subject, trial: Trial, sizes: Sizes) -> Outcome:
    """Returns the outcome of a trial; an error of the function is a failure."""
    try:
        with np.errstate(all="ignore"):
            return trial(subject, sizes)
    except NotOfferedError:
        raise
    except BrokenError as error:
        return Outcome(np.inf, str(error), subject.engine.last)
    except Exception as error:
        return Outcome(np.inf, f"raises {type(error).__name__}: {first_line(error, 160)}", subject.engine.last)


def shrunk(subject: Subject, trial: Trial, sizes: Sizes, outcome: Outcome, tries: int = 40) -> Outcome:
    """Returns the outcome of the smallest sizes, found greedily, at which a trial fails in the same way."""
    kind = outcome.failure.split(" ")[:2]
    index = 0
    while index < len(candidates := sizes.smaller()) and tries:
        tries -= 1
        try:
            smaller = tried(subject, trial, candidates[index])
        except NotOfferedError:
            smaller = Outcome()
        if smaller.failure.split(" ")[:2] == kind:
            sizes, outcome, index = candidates[index], smaller, 0
        else:
            index += 1
    return outcome


def load(text: str) -> Callable[..., Any] | Adapter:
    """Returns the function, or its adapter, that ``package.module:function`` names. Importing the module runs its code.

    Raises:
      ConfigError: there is no such module or function, or the import fails; in one line.
    """
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise ConfigError(f"an attention must be package.module:function, got {text!r}")
    try:
        imported = importlib.import_module(module)
    except Exception as error:
        raise ConfigError(f"cannot import {module}: {type(error).__name__}: {first_line(error)}") from error
    try:
        found: Any = operator.attrgetter(name)(imported)
    except AttributeError:
        raise ConfigError(f"{module} has no {name!r}{did_you_mean(name, vars(imported))}") from None
    if not callable(found) and not isinstance(found, Adapter):
        raise ConfigError(f"{text} must be a function, got {found!r}")
    return found
