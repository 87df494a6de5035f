"""A sweep: one training for each combination of settings and each seed, one after another, and what they show together.

Importing this imports no JAX.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import stdtrit

from jaxformer import inspection, tasks, training
from jaxformer.config import changed, comparable, fingerprint
from jaxformer.digests import short_digest
from jaxformer.errors import ConfigError
from jaxformer.tasks import registry, rundir
from jaxformer.tasks.config import TaskConfig
from jaxformer.tasks.runs import read_run
from jaxformer.training.logging import read_log
from jaxformer.training.phase_timer import COMPLETE, ENDS

DONE = "complete"
"""The state of a training that has nothing left to do."""

LONGEST_NAME = 120
"""The number of characters above which the name of a folder is replaced by its digest."""

Grid = Mapping[str, Sequence[str]]
"""The values of each setting, by its dotted name, as they are written on the command line."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """One training of a sweep."""

    path: pathlib.Path
    """Its run directory."""
    values: Mapping[str, str]
    """The settings that differ between trainings, without the seed."""
    config: TaskConfig

    @property
    def cell(self) -> str:
        """The settings as text; all seeds have the same."""
        return described(self.values)

    @property
    def name(self) -> str:
        """The settings and the seed as text."""
        return ", ".join(filter(None, (self.cell, f"seed {self.config.seed}")))


def described(values: Mapping[str, str]) -> str:
    """Returns settings as text, such as "model.dropout 0.1, optimizer adam"."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def read_grid(words: Sequence[str]) -> dict[str, list[str]]:
    """Returns the values of each setting from words such as ``model.dropout=0,0.1``.

    >>> read_grid(["model.dropout=0,0.1", "optimizer=adam,muon"])
    {'model.dropout': ['0', '0.1'], 'optimizer': ['adam', 'muon']}

    Raises:
      ConfigError: a word has another form, or repeats a setting or a value; or the setting is the seed.
    """
    grid: dict[str, list[str]] = {}
    for word in words:
        written, _, text = word.partition("=")
        name, values = written.removeprefix("--").replace("-", "_"), text.split(",")
        if not name or not all(values):
            raise ConfigError(f"--set must be NAME=VALUE,VALUE,..., got {word!r}")
        if name == "seed":
            raise ConfigError("--set cannot vary the seed; --seeds N takes N seeds, and --seed the first of them")
        if name in grid:
            raise ConfigError(f"--set names {name} twice; give all its values at once, separated by commas")
        if len(set(values)) < len(values):
            raise ConfigError(f"--set {name} must have different values, got {text}")
        grid[name] = values
    return grid


def cells(grid: Grid) -> list[dict[str, str]]:
    """Returns every combination of the values of a grid, the last setting varying fastest; one without settings.

    >>> cells({"a": ["1", "2"], "b": ["x"]})
    [{'a': '1', 'b': 'x'}, {'a': '2', 'b': 'x'}]
    """
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def folder(values: Mapping[str, str]) -> str:
    """Returns the name of the folder of these settings; a value or name that no folder can have becomes a digest.

    >>> folder({"model.dropout": "0.1", "optimizer": "muon"})
    'dropout=0.1,optimizer=muon'
    """
    last = [name.rpartition(".")[2] for name in values]
    names = list(values) if len(set(last)) < len(last) else last
    shown = lambda text: text if re.fullmatch(r"[a-zA-Z0-9_.+-]{1,30}", text) else short_digest([text])
    name = ",".join(f"{name}={shown(value)}" for name, value in zip(names, values.values(), strict=True))
    return name if len(name) <= LONGEST_NAME else short_digest([name])


def trials(
    out: pathlib.Path,
    grid: Grid,
    seeds: Sequence[int],
    configure: Callable[[Mapping[str, str], pathlib.Path], TaskConfig],
) -> list[Trial]:
    """Returns the trainings of a grid in a folder, seed by seed, so that a sweep that is stopped compares all settings.

    Args:
      configure: function from the settings, with the seed among them, and the run directory to the configuration.

    Raises:
      ConfigError: `configure` refuses a setting, or two values of one mean the same.
    """
    found: dict[str, Trial] = {}
    for seed, values in itertools.product(seeds, cells(grid)):
        path = out / folder(values) / f"seed-{seed}"
        trial = Trial(path, values, configure({**values, "seed": str(seed)}, path))
        other = found.setdefault(fingerprint(trial.config), trial)
        if other is not trial:
            raise ConfigError(f"--set {other.cell} and {trial.cell} are the same training; leave one out")
    return list(found.values())


def state(trial: Trial) -> str:
    """Returns `DONE`, "new", or the step and state of a training that would resume.

    Raises:
      ConfigError: the folder holds a run of another configuration, or other files.
    """
    if not rundir.holds_run(trial.path):
        return "new"
    saved = registry.read_config(trial.path)
    rundir.check_config(trial.path, saved, trial.config)
    run = read_run(trial.path)
    if comparable(saved) == comparable(trial.config) and run.state in {ENDS.get(reason, reason) for reason in COMPLETE}:
        return DONE
    return f"at step {run.step:,}, {run.state}"


def results(trial: Trial) -> dict[str, float]:
    """Returns the last and the lowest losses of a training, its best validation metrics, and its saved scores."""
    found, log = dict(read_run(trial.path).results), read_log(trial.path / "log.jsonl")
    for metric, is_higher_better in registry.task_of(trial.config).metrics.items():
        values = [entry[name] for entry in log if entry.get(name := f"validation_{metric}") is not None]
        if values:
            found[f"validation_{metric}"] = float((max if is_higher_better else min)(values))
    return found


def train(
    todo: Sequence[Trial],
    *,
    say: Callable[[str], None],
    score: Callable[[pathlib.Path], object] | None = None,
    each: Callable[[], object] = lambda: None,
    began: float | None = None,
    **options: Any,
) -> tuple[str, dict[str, str]]:
    """Trains what is not complete; returns the reason of the end, as `training.Result` has it, and failures by name.

    A training whose loss is not finite, or that needs too much memory, is reported and left; the others go on. The
    limit `train.minutes` holds for all together.

    Args:
      score: called with each run that is complete and has no scores.
      each: called after each training.
      began: the `time.monotonic()` at which the work began; by default now.
      options: for `runner.train`.
    """
    began, failures = time.monotonic() if began is None else began, {}
    for number, trial in enumerate(todo, 1):
        name = f"{number} of {len(todo)}: {trial.name}"
        is_new = (found := state(trial)) != DONE
        say(f"{name}: {found}" if is_new else f"{name} is complete")
        if is_new:
            minutes = trial.config.train.minutes
            left = minutes - (time.monotonic() - began) / 60
            if minutes and left <= 0:
                return "time", failures
            config = changed(trial.config, {"train": {"minutes": left if minutes else 0.0}})
            try:
                reason = tasks.runner.train(config, trial.path, **options).reason
            except (training.NonFiniteError, training.OutOfMemoryError) as error:
                failures[trial.name] = str(error)
                say(f"{trial.name} failed: {error}")
                each()
                continue
            if reason not in COMPLETE:
                each()
                return reason, failures
        if score and (is_new or not any(trial.path.glob("scores-*.json"))):
            score(trial.path)
        each()
    return "done", failures


def report(all_trials: Sequence[Trial]) -> dict[str, Any]:
    """Returns the state and the results of each training, and the `summary` of those that are complete."""
    rows = []
    for trial in all_trials:
        is_done = (found := state(trial)) == DONE
        about = {"path": str(trial.path), "settings": dict(trial.values), "seed": trial.config.seed, "state": found}
        rows.append(about | {"results": results(trial) if is_done else {}})
    complete = [(row["settings"], row["results"]) for row in rows if row["state"] == DONE]
    return {"trainings": rows, "summary": summary(complete)}


def summary(found: Sequence[tuple[Mapping[str, str], Mapping[str, float]]]) -> list[dict[str, Any]]:
    """Returns a row for each combination of settings: for each result, its values, their mean and its interval.

    Args:
      found: the settings and the results of each training.
    """
    rows: dict[str, dict[str, Any]] = {}
    for values, scores in found:
        row = rows.setdefault(described(values), {"settings": dict(values), "results": {}})
        for name, value in scores.items():
            row["results"].setdefault(name, {"values": []})["values"].append(value)
    for part in [part for row in rows.values() for part in row["results"].values()]:
        part |= {"mean": sum(part["values"]) / len(part["values"]), "half_width": half_width(part["values"])}
    return list(rows.values())


def by_result(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Returns the values of a `summary` by result, then by settings."""
    names = dict.fromkeys(name for row in rows for name in row["results"])
    return {
        name: {described(row["settings"]): row["results"][name]["values"] for row in rows if name in row["results"]}
        for name in names
    }


def as_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns a `summary` as text: below each result, a line for each combination of settings.

    >>> found = [({"a": "1"}, {"loss": 2.0}), ({"a": "1"}, {"loss": 4.0}), ({"a": "20"}, {"loss": 5.0})]
    >>> print(as_text(summary(found)))
    loss
      a 1   3.0000 ± 12.7062  (2.0000, 4.0000)
      a 20  5.0000
    """
    lines = []
    for name, values_of in by_result(rows).items():
        width = max(map(len, values_of))
        lines.append(name)
        for cell, values in values_of.items():
            digits = 4 if max(map(abs, values)) < 10 else 2
            each = f"  ({', '.join(f'{value:.{digits}f}' for value in values)})" * (len(values) > 1)
            lines.append(f"  {f'{cell:{width}}  ' * bool(width)}{interval(values, digits=digits)}{each}")
    return "\n".join(lines)


def draw(rows: Sequence[Mapping[str, Any]], path: pathlib.Path) -> None:
    """Draws a `summary` except the training loss: each seed, the mean and its interval."""
    found = {name: values for name, values in by_result(rows).items() if name != "loss"}
    if found:
        means = {
            name: {cell: (values, half_width(values)) for cell, values in values_of.items()}
            for name, values_of in found.items()
        }
        inspection.plots.save(inspection.plots.intervals(means), path)


def interval(values: Sequence[float], *, digits: int = 1) -> str:
    """Returns the mean with the half width of its 95 % interval, by Student's t.

    >>> interval([80.0, 82.0, 84.0]), interval([80.0])
    ('82.0 ± 5.0', '80.0')
    """
    mean = f"{sum(values) / len(values):.{digits}f}"
    return f"{mean} ± {half_width(values):.{digits}f}" if len(values) > 1 else mean


def half_width(values: Sequence[float]) -> float:
    """Returns the half width of the 95 % interval of the mean, by Student's t; NaN for one value.

    >>> round(half_width([80.0, 82.0, 84.0]), 3)
    4.968
    """
    n = len(values)
    return float(stdtrit(n - 1, 0.975) * np.std(values, ddof=1) / n**0.5) if n > 1 else float("nan")
