"""Significance tests between two translators, from the examples that `jaxformer evaluate` saved."""

from __future__ import annotations

import json
import pathlib
from typing import TYPE_CHECKING

from jaxformer import evaluation
from jaxformer.errors import ConfigError
from jaxformer.tasks.runs import Run

if TYPE_CHECKING:
    from jaxformer.evaluation.scores import Comparison

PREFIX = "examples-"
HOW = ("data.lowercase", "data.target_language")
"""The settings that determine how translations are compared."""


def comparisons(a: Run, b: Run) -> dict[str, Comparison]:
    """Returns the comparison of two runs on each set of sentences that both translated, by the name of its file.

    Sets with different sources or references, and runs with different comparison settings, are not compared.

    Raises:
      ConfigError: a file of examples is damaged.
    """
    if a.task != "translation" or b.task != "translation" or any(a.settings.get(x) != b.settings.get(x) for x in HOW):
        return {}
    lowercase, language = (a.settings.get(name) for name in HOW)
    found = {}
    for file in sorted(a.path.glob(f"{PREFIX}*.jsonl")):
        if not (b.path / file.name).exists():
            continue
        ours, theirs = _examples(file), _examples(b.path / file.name)
        if not ours or [x[:2] for x in ours] != [x[:2] for x in theirs]:
            continue
        (_, references, baseline), (_, _, system) = (list(zip(*x, strict=True)) for x in (ours, theirs))
        how = {"lowercase": bool(lowercase), "language": str(language or "")}
        name = file.stem.removeprefix(PREFIX)
        found[name] = evaluation.scores.paired_bootstrap(baseline, system, references, **how)
    return found


def _examples(path: pathlib.Path) -> list[tuple[str, str, str]]:
    """Returns the source, the reference and the translation of each example."""
    try:
        with path.open(encoding="utf-8", newline="\n") as lines:
            found = map(json.loads, lines)
            rows = [(x["source"], x["reference"], x["hypothesis"]) for x in found]
        if not all(isinstance(text, str) for row in rows for text in row):
            raise TypeError("it holds something other than texts")
        return rows
    except (OSError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
