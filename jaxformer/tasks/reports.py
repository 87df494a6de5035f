"""The report of a run, from its scores and its examples: see `inspection.reports`."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxformer.errors import ConfigError
from jaxformer.evaluation.resampling import difference, interval
from jaxformer.evaluation.scores import Score
from jaxformer.inspection.pages import View
from jaxformer.inspection.reports import CorpusRows, Example, LengthRow, Report, ScoreRow
from jaxformer.tasks import registry
from jaxformer.tasks.base import Predictor
from jaxformer.tasks.config import TaskConfig
from jaxformer.tasks.runs import corpora_of, how_compared, read_run
from jaxformer.training.logging import read_log
from jaxformer.training.phase_timer import read_starts, total_seconds

NUM_BINS = 5
"""The largest number of ranges of lengths."""

NUM_POINTS = 300
"""The largest number of points of a curve: each is the mean of steps that follow one another."""

RANKS = {"chrf": ("chrF2", 1), "nats_per_token": ("nats per token", -1), "probability": ("probability of the label", 1)}
"""The name of the number by which examples are ordered, and 1 if a higher one is better, by its key in their rows."""

INPUTS = ("source", "text", "words", "image")
"""The keys of the inputs in rows of examples."""

GIVEN = (*INPUTS, "reference", "references", "label", "labels")
"""The keys of what does not depend on the run."""

Rows = Sequence[Mapping[str, object]]


@dataclasses.dataclass(frozen=True)
class Scored:
    """The result of `runner.evaluate`: the scores of each corpus, and its rows of examples."""

    scores: Mapping[str, Sequence[Score]]
    rows: Mapping[str, Rows]


def check_comparable(run: pathlib.Path, other: pathlib.Path) -> None:
    """Checks that the scores of two runs are of the same kind: texts may come from different vocabularies.

    Raises:
      ConfigError: they are runs of different tasks, of different classes, of languages or cases that are scored
        differently, or language models of different vocabularies.
    """
    if run.resolve() == other.resolve():
        raise ConfigError(f"--against {other} is the run itself; name another one")
    a, b = registry.read_config(run), registry.read_config(other)
    if a.task != b.task:
        raise ConfigError(f"{other} is a run of {b.task}, but {run} is one of {a.task}")
    if a.task == "translation":
        both = read_run(run), read_run(other)
        for corpus in corpora_of(both[0]) or [""]:
            ours, theirs = (how_compared(each, corpus) for each in both)
            for name, value in ours.items():
                if theirs[name] != value:
                    its = f"its {name} is {theirs[name]!r}, here it is {value!r}"
                    raise ConfigError(f"{other} is scored differently: {its}")
    ours, theirs = (registry.task_of(config).vocabulary(path) for config, path in ((a, run), (b, other)))
    classes = [getattr(x, "classes", getattr(x, "names", None)) for x in (ours, theirs)]
    if classes[0] != classes[1]:
        raise ConfigError(f"{other} has other classes than {run}")
    if a.task in ("language_model", "masked_language_model") and ours.fingerprint != theirs.fingerprint:
        raise ConfigError(f"{other} has another vocabulary than {run}, so their scores per token do not compare")


def report(
    run: pathlib.Path,
    config: TaskConfig,
    scored: Scored,
    *,
    facts: Mapping[str, str],
    commands: Callable[[str], str],
    other: Scored | None = None,
    other_name: str = "",
) -> Report:
    """Returns the report of a run.

    Args:
      commands: function from the name of a corpus to the command that shows the attention of its examples.
      other: the scores of the run to compare with.
    """
    corpora, examples, ranked_by = [], [], ""
    for number, (name, scores) in enumerate(scored.scores.items()):
        rows = scored.rows.get(name, ())
        theirs = _same(name, rows, other, other_name) if other else None
        others = {} if other is None else {score.name: score for score in other.scores.get(name, ())}
        unit, lengths = _lengths(rows)
        by_length = _by_length(scores, lengths)
        shown = [_score_row(score, others.get(score.name)) for score in scores]
        corpora.append(CorpusRows(name, shown, unit, by_length, commands(name) if rows else ""))
        for place, row in enumerate(rows):
            ranked_by, example = _example(number, place, row, theirs[place] if theirs else None, other_name)
            examples.append(example)
    log = run / "log.jsonl"
    seconds = total_seconds(read_starts(run / "time.json"))
    return Report(
        corpora,
        examples,
        ranked_by,
        facts,
        curves(read_log(log)) if log.is_file() else {},
        {part: value for part, value in seconds.items() if value},
        other_name,
    )


def look(config: TaskConfig, predictor: Predictor, report: Report) -> Callable[[Example], View | None]:
    """Returns the function from an example to its attention: None if the predictor has no view."""
    view = getattr(predictor, "view", None)

    def of_example(example: Example) -> View | None:
        if view is None:
            return None
        of, texts = view, example.texts
        name = report.corpora[example.corpus].name
        if config.task == "translation" and name in config.data.corpora:  # pyright: ignore[reportAttributeAccessIssue]
            source, target = config.data.languages(name)  # pyright: ignore[reportAttributeAccessIssue]
            directed: Any = dataclasses.replace(predictor, language=target, source_language=source)  # pyright: ignore[reportArgumentType]
            of = directed.view
        given = next(iter(texts.values()))
        return of(given, texts["hypothesis"], search=False) if "hypothesis" in texts else of(given)

    return of_example


def curves(log: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Returns the points of the curves of a training: its loss, thinned, and every measure of its validations."""
    smoothed = any("label_smoothing" in entry for entry in log)
    found: dict[str, list[tuple[int, float]]] = {"training loss" + ", smoothed" * smoothed: []}
    for entry in log:
        for key, value in entry.items():
            if isinstance(value, int | float) and math.isfinite(value):
                if key == "loss":
                    next(iter(found.values())).append((entry["step"], float(value)))
                elif key.startswith("validation_"):
                    found.setdefault(key.replace("_", " "), []).append((entry["step"], float(value)))
    return {name: _thinned(points) for name, points in found.items() if points}


def _thinned(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    parts = np.array_split(np.array(points), min(NUM_POINTS, len(points)))
    return [(round(float(part[-1, 0])), float(part[:, 1].mean())) for part in parts]


def _same(name: str, rows: Rows, other: Scored, other_name: str) -> Rows:
    theirs = other.rows.get(name, ())
    given = ([{key: row[key] for key in GIVEN if key in row} for row in side] for side in (rows, theirs))
    if name not in other.scores or next(given) != next(given):
        raise ConfigError(f"{other_name} was scored on another test set: {name} is not the same for both runs")
    return theirs


def _score_row(score: Score, other: Score | None) -> ScoreRow:
    found = difference(score.sample, other.sample) if score.sample and other and other.sample else None
    between = interval(score.sample) if score.sample else None
    value = None if other is None else other.value
    return ScoreRow(score.name, score.value, between, score.decimals, score.signature, value, found)


def _lengths(rows: Rows) -> tuple[str, np.ndarray | None]:
    """Returns the unit and the lengths of inputs, or of first references of images; none of windows of a text."""
    texts = []
    for row in rows:
        given = next((row[key] for key in ("source", "text", "words", "references") if key in row), None)
        if given is None or "tokens" in row:
            return "", None
        texts.append(given if isinstance(given, str) else given[0] if "references" in row else " ".join(given))  # pyright: ignore
    whole = " ".join(texts)
    if not whole.strip():
        return "", None
    if len(whole.split()) * 20 > len(whole):
        return "words", np.array([len(x.split()) for x in texts])
    return "characters", np.array([*map(len, texts)])


def _by_length(scores: Sequence[Score], lengths: np.ndarray | None) -> list[LengthRow]:
    """Returns the scores of ranges of lengths with about as many examples each."""
    if lengths is None:
        return []
    sampled = [(x, x.sample) for x in scores if x.sample and len(x.sample.statistics) == len(lengths)]
    if not sampled:
        return []
    lasts = np.unique(np.quantile(lengths, np.arange(1, NUM_BINS + 1) / NUM_BINS, method="inverted_cdf"))
    found, first = [], int(lengths.min())
    for last in map(int, lasts):
        chosen = np.flatnonzero((lengths >= first) & (lengths <= last))
        rows = [ScoreRow(x.name, own.score(chosen), interval(own, chosen), x.decimals) for x, own in sampled]
        found.append(LengthRow(first, last, len(chosen), rows))
        first = last + 1
    return found


def _example(
    corpus: int, place: int, row: Mapping[str, object], other: Mapping[str, object] | None, other_name: str
) -> tuple[str, Example]:
    """Returns the name of the number by which examples are ordered, and an example."""
    order = sorted(row, key=lambda key: key not in INPUTS)
    texts = {key: text for key in order if (text := _text(row[key])) is not None}
    numbers = {key: float(value) for key, value in row.items() if isinstance(value, int | float)}
    name, rank = _rank(row)
    gain = None
    if other is not None:
        gain = rank - _rank(other)[1]
        texts |= {
            f"{key} of {other_name}": text
            for key in other
            if key not in GIVEN and (text := _text(other[key])) is not None
        }
    return name, Example(corpus, place + 1, texts, numbers, rank, gain)


def _text(value: object) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return ("\n" if any(" " in str(item) for item in value) else " ").join(map(str, value))
    return None


def _rank(row: Mapping[str, object]) -> tuple[str, float]:
    for key, (name, sign) in RANKS.items():
        if isinstance(value := row.get(key), int | float):
            return name, sign * float(value)
    labels, guesses = row.get("labels"), row.get("guesses")
    if isinstance(labels, list) and isinstance(guesses, list) and labels:
        right = sum(a == b for a, b in zip(labels, guesses, strict=True))
        return "percent of words with the right label", 100 * right / len(labels)
    return "", 0.0
