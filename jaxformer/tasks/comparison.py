"""Groups of runs that differ only in the seed: their means and intervals, and how far each is from the first.

Importing this imports no JAX.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxformer import inspection
from jaxformer.config import comparable, flat
from jaxformer.errors import ConfigError
from jaxformer.evaluation import seeds
from jaxformer.evaluation.seeds import Difference, Resampled, difference, half_width, interval
from jaxformer.tasks import registry
from jaxformer.tasks.runs import Run, find_runs, read_run, shared_translations
from jaxformer.training.logging import read_log
from jaxformer.training.phase_timer import COMPLETE, ENDS

COMPLETED = frozenset(ENDS.get(reason, reason) for reason in COMPLETE)
"""The states of a run that has nothing left to do."""

Settings = Mapping[str, str]
"""Settings by their dotted names, as they are written on the command line."""

Row = Mapping[str, Any]
"""A group: its `settings`, and for each of its `results` the values, their seeds and mean, and its half width."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Complete runs that differ only in the seed."""

    settings: Settings
    """Those in which it differs from other groups."""
    members: Mapping[int, Run]
    """The run of each seed, in order."""

    @property
    def runs(self) -> dict[int, pathlib.Path]:
        """The run directory of each seed."""
        return {seed: run.path for seed, run in self.members.items()}

    @property
    def row(self) -> Row:
        """The means of its results."""
        return summary([(self.settings, seed, results(run)) for seed, run in self.members.items()])[0]


def groups(paths: Iterable[pathlib.Path]) -> list[Group]:
    """Returns the groups of runs, or of all runs below folders, in the order of their first runs.

    Raises:
      ConfigError: there are no runs; or one is not complete, is of another task, or is the same training as another; or
        the data of a group differ.
    """
    found: dict[str, dict[int, Run]] = {}
    settings: dict[str, dict[str, Any]] = {}
    data: dict[str, object] = {}
    task = ""
    for run in {run.path: run for each in paths for run in _runs(each)}.values():
        path, config = run.path, registry.read_config(run.path)
        if run.state not in COMPLETED:
            raise ConfigError(f"{path} is at step {run.step:,}, {run.state}: complete it, or leave it out")
        if run.task != (task := task or run.task):
            raise ConfigError(f"{path} is of the task {run.task}, but the first run is of {task}")
        own = {name: value for name, value in flat(comparable(config)).items() if name != "seed"}
        settings.setdefault(key := repr(own), own)
        its, corpora = found.setdefault(key, {}), run.provenance.get("data", {})
        if config.seed in its:
            other = its[config.seed].path
            raise ConfigError(f"{other} and {path} are the same training, seed {config.seed}: leave one out")
        if data.setdefault(key, corpora) != corpora:
            other = next(iter(its.values())).path
            raise ConfigError(f"{other} and {path} have the same settings, but other data")
        its[config.seed] = run
    names = dict.fromkeys(name for own in settings.values() for name in own)
    differing = [name for name in names if len({repr(own.get(name)) for own in settings.values()}) > 1]
    return [
        Group({name: str(own[name]) for name in differing if name in own}, dict(sorted(found[key].items())))
        for key, own in settings.items()
    ]


def _runs(path: pathlib.Path) -> list[Run]:
    if (path / "config.json").exists():
        return [read_run(path)]
    if found := find_runs(path):
        return found
    raise ConfigError(f"{path} is neither a run nor a folder of runs")


def resampled(first: Group, second: Group) -> dict[str, Resampled]:
    """Returns the comparison over sentences and seeds on each set that all runs of two groups translated.

    Sets whose sources or references differ, and groups with other comparison settings, are not compared.
    """
    runs = [run for group in (first, second) for run in group.members.values()]
    paired, number = first.members.keys() == second.members.keys(), len(first.members)
    return {
        name: seeds.resampled(texts[:number], texts[number:], references, paired=paired, **how)
        for name, how, references, texts in shared_translations(runs)
    }


def described(values: Mapping[str, str]) -> str:
    """Returns settings as text, such as "model.dropout 0.1, optimizer adam"."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def results(run: Run) -> dict[str, float]:
    """Returns the last and the lowest losses of a run, its best validation metrics, and its saved scores."""
    found, log = dict(run.results), read_log(run.path / "log.jsonl")
    for metric, is_higher_better in registry.get(run.task).metrics.items():
        values = [entry[name] for entry in log if entry.get(name := f"validation_{metric}") is not None]
        if values:
            found[f"validation_{metric}"] = float((max if is_higher_better else min)(values))
    return found


def summary(found: Sequence[tuple[Settings, int, Mapping[str, float]]]) -> list[dict[str, Any]]:
    """Returns a row for each combination of settings: for each result, its values, their mean and its interval.

    Args:
      found: the settings, the seed and the results of each training.
    """
    rows: dict[str, dict[str, Any]] = {}
    for values, seed, scores in found:
        row = rows.setdefault(described(values), {"settings": dict(values), "results": {}})
        for name, value in scores.items():
            part = row["results"].setdefault(name, {"values": [], "seeds": []})
            part["values"].append(value)
            part["seeds"].append(seed)
    for part in [part for row in rows.values() for part in row["results"].values()]:
        part |= {"mean": sum(part["values"]) / len(part["values"]), "half_width": half_width(part["values"])}
    return list(rows.values())


def by_result(rows: Sequence[Row]) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Returns the results of a `summary` by name, then by settings."""
    names = dict.fromkeys(name for row in rows for name in row["results"])
    return {
        name: {described(row["settings"]): row["results"][name] for row in rows if name in row["results"]}
        for name in names
    }


def differences(rows: Sequence[Row]) -> dict[str, dict[str, Difference]]:
    """Returns the differences of a `summary` from its first row, by result, then by settings; none with one seed."""
    found = {}
    for name, parts in by_result(rows).items():
        by_seed = {cell: sorted(zip(x["seeds"], x["values"], strict=True)) for cell, x in parts.items()}
        (seeds, first), *others = (zip(*pairs, strict=True) for pairs in by_seed.values())
        compared = [difference(first, values, paired=seeds == its) for its, values in others]
        found[name] = {cell: x for cell, x in zip(list(parts)[1:], compared, strict=True) if x}
    return found


def as_text(rows: Sequence[Row]) -> str:
    """Returns a `summary` as text: below each result, a line for each combination of settings.

    If it has several seeds, another line says how far it is from the first.

    >>> found = [({"a": "1"}, 0, {"loss": 2.0}), ({"a": "1"}, 1, {"loss": 4.0}), ({"a": "20"}, 0, {"loss": 5.0})]
    >>> print(as_text(summary(found)))
    loss
      a 1   3.0000 ± 12.7062  (2.0000, 4.0000)
      a 20  5.0000
    """
    lines, compared = [], differences(rows)
    for name, parts in by_result(rows).items():
        width = max(map(len, parts))
        lines.append(name)
        for cell, part in parts.items():
            values = part["values"]
            digits = 4 if max(map(abs, values)) < 10 else 2
            each = f"  ({', '.join(f'{value:.{digits}f}' for value in values)})" * (len(values) > 1)
            lines.append(f"  {f'{cell:{width}}  ' * bool(width)}{interval(values, digits=digits)}{each}")
            if cell in compared[name]:
                lines.append(f"  {' ' * width}  {compared[name][cell]}")
    return "\n".join(lines)


def draw(rows: Sequence[Row], path: pathlib.Path) -> None:
    """Draws a `summary` except the training loss: each seed, the mean and its interval."""
    means = {
        name: {cell: (part["values"], part["half_width"]) for cell, part in parts.items()}
        for name, parts in by_result(rows).items()
        if name != "loss"
    }
    if means:
        inspection.plots.save(inspection.plots.intervals(means), path)
