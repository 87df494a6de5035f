"""`check`: runs every property of a function, shrinks what fails, and gathers a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxformer.conformance import derivatives as derivatives  # registers its properties
from jaxformer.conformance.adapter import Adapter, NotOfferedError, adapt
from jaxformer.conformance.engines import make_engine
from jaxformer.conformance.report import Report, Row, reproduction
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


def check(
    function: Callable[..., Any] | Adapter,
    *,
    only: Sequence[str] | None = None,
    shrink: bool = True,
    limits: Mapping[str, float] | None = None,
    **fields: Any,
) -> Report:
    """Checks which properties an attention function has: of JAX, NumPy or PyTorch, of this library or not.

    What the function does not take is "not offered", and never "passed". A property that raises an error or gets a
    result of another shape has failed. Each failure has a call of the smallest sizes that still fail.

    Args:
      function: called as ``function(query, key, value, **arguments)``; or its `Adapter`.
      only: the names of properties, all of `PROPERTIES` by default.
      shrink: False leaves a failure at the sizes at which it was found.
      limits: the largest error by dtype, in place of `LIMITS`.
      fields: those of `Adapter` that its signature does not tell, such as ``layout="BNTH"``.

    Raises:
      ConfigError: a field or a property does not exist, or the function cannot be called.

    >>> import numpy as np
    >>> def attend(q, k, v):
    ...     weights = np.exp(np.einsum("btnh,bsnh->bnts", q, k) / q.shape[-1] ** 0.5)
    ...     return np.einsum("bnts,bsnj->btnj", weights / weights.sum(-1, keepdims=True), v)
    >>> report = check(attend, only=["values", "mask", "large logits"], framework="numpy", dtypes=["float32"])
    >>> [(row.name, row.status) for row in report.rows]
    [('values', 'passed'), ('mask', 'not offered'), ('large logits', 'failed')]
    """
    adapter = adapt(function, **fields) if not isinstance(function, Adapter) else function
    for name in only or ():
        if name not in PROPERTIES:
            raise ConfigError(f"there is no property {name!r}{did_you_mean(name, PROPERTIES)}")
    subject = Subject(adapter, make_engine(adapter), {**LIMITS, **(limits or {})})
    names = PROPERTIES if only is None else only
    return Report(adapter, tuple(_row(subject, PROPERTIES[name], shrink) for name in names))


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
