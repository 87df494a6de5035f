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

from jaxformer import tasks, training
from jaxformer.config import changed, comparable, difference, fingerprint
from jaxformer.digests import short_digest
from jaxformer.errors import ConfigError
from jaxformer.tasks import registry, rundir
from jaxformer.tasks.comparison import COMPLETED, described, results, summary
from jaxformer.tasks.config import TaskConfig
from jaxformer.tasks.runs import read_run
from jaxformer.training.hooks import Hook
from jaxformer.training.phase_timer import COMPLETE

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
    if comparable(saved) == comparable(trial.config) and run.state in COMPLETED:
        return DONE
    return f"at step {run.step:,}, {run.state}"


def check_data(found: Sequence[Trial]) -> None:
    """Checks that runs with the same settings of data have the same data, because a mean of others says nothing.

    Raises:
      ConfigError: two have not.
    """
    first: dict[str, tuple[pathlib.Path, Any]] = {}
    for trial in found:
        if (data := rundir.read_optional_json(trial.path / "provenance.json").get("data")) is not None:
            path, known = first.setdefault(_data_settings(trial), (trial.path, data))
            if data != known:
                what = difference(known, data, "data")
                raise ConfigError(
                    f"{path} and {trial.path} have the same settings of data, but other data, by its hash: {what}"
                )


def check_test_data(todo: Sequence[Trial]) -> None:
    """Checks, before anything is trained, that there are data to score those trainings on that have no scores.

    Raises:
      ConfigError, DataError: the data cannot be read, or have no part for scores.
    """
    unscored = [trial for trial in todo if not any(trial.path.glob("scores-*.json"))]
    for trial in {_data_settings(trial): trial for trial in unscored}.values():
        task = registry.task_of(trial.config)
        if part := getattr(task.read(trial.config), "part", None):
            part(task.default_split)


def _data_settings(trial: Trial) -> str:
    return repr(comparable(getattr(trial.config, "data", None)))


class _SameData(Hook):
    """Ends a training before its first step if its data are not those of the others."""

    def __init__(self, found: Sequence[Trial]):
        self._found = found

    def started(self, start: object) -> None:
        check_data(self._found)


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
      each: called after each training, and after `score`.
      began: the `time.monotonic()` at which the work began; by default now.
      options: for `runner.train`.

    Raises:
      ConfigError: two runs have the same settings of data, but other data.
    """
    check_data(todo)
    options["hooks"] = [_SameData(todo), *options.get("hooks", ())]
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
        each()
        if score and (is_new or not any(trial.path.glob("scores-*.json"))):
            score(trial.path)
            each()
    return "done", failures


def report(all_trials: Sequence[Trial]) -> dict[str, Any]:
    """Returns the state and the results of each training, and the `summary` of those that are complete.

    Raises:
      ConfigError: see `check_data`.
    """
    check_data(all_trials)
    rows = []
    for trial in all_trials:
        about = {"path": str(trial.path), "settings": dict(trial.values), "seed": trial.config.seed}
        rows.append(about | {"state": state(trial), "results": {}})
        if rows[-1]["state"] == DONE:
            rows[-1]["results"] = results(read_run(trial.path))
    complete = [(row["settings"], row["seed"], row["results"]) for row in rows if row["state"] == DONE]
    return {"trainings": rows, "summary": summary(complete)}
