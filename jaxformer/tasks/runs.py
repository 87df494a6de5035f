"""Facts about runs, from their files: lists of runs, differences of two, and significance tests between translators.

Importing this imports no JAX.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxformer import evaluation
from jaxformer.config import flat
from jaxformer.errors import ConfigError
from jaxformer.files import JsonObject
from jaxformer.tasks.rundir import LOCK, is_pretrained, read_json, read_optional_json
from jaxformer.tokenizers.moses import two_letters
from jaxformer.training.logging import read_log
from jaxformer.training.phase_timer import ENDS, read_starts

if TYPE_CHECKING:
    from jaxformer.evaluation.scores import Comparison


@dataclasses.dataclass(frozen=True)
class Run:
    """The facts about a run in its files."""

    path: pathlib.Path
    task: str
    state: str
    """Either "running" or "killed", by the run's lock; else the end of its last start: "done", a value of `ENDS` or an
    error; or "not started", or "converted" from a pretrained model; or "unfinished" if the files do not tell."""
    step: int
    steps: int
    results: Mapping[str, float]
    """The last training loss, the lowest validation loss, and the scores that `evaluate` saved."""
    settings: JsonObject
    provenance: JsonObject


def read_run(path: pathlib.Path) -> Run:
    """Reads the files of a run.

    Raises:
      ConfigError: `path` is not a run, or one of its files cannot be read or is damaged.
    """
    try:
        return _read_run(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except ConfigError:
        raise
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:  # other contents
        raise ConfigError(f"{path} holds a damaged file: {type(error).__name__}: {error}") from error


def _read_run(path: pathlib.Path) -> Run:
    if not (path / "config.json").exists():
        raise ConfigError(f"{path} is not a run: it has no config.json")
    saved = read_json(path / "config.json")
    settings = flat(saved.get("config", {}))
    log = read_log(path / "log.jsonl") if (path / "log.jsonl").exists() else []
    starts = read_starts(path / "time.json")
    provenance = read_optional_json(path / "provenance.json")
    _versions(provenance)  # raises an error now if its content is wrong
    step = max((entry["step"] for entry in log), default=0)
    steps, last = int(settings.get("train.steps", 0)), (starts or [{}])[-1]
    reason = str(last.get("ended", "unfinished"))
    if reason == "done" and last.get("step", steps) < steps:  # a later start wants more steps, and has ended before any
        reason = "unfinished"
    ended = "not started"
    if log:
        ended = ENDS.get(reason, reason)
    elif is_pretrained(path):
        ended = "trimmed" if "trimmed" in provenance else "converted"
    return Run(
        path,
        str(saved.get("task")),
        _locked(path) or ended,
        step,
        steps,
        {**_results(log), **_scores(path)},
        settings,
        provenance,
    )


def find_runs(folder: pathlib.Path) -> list[Run]:
    """Returns the runs in a folder and all folders below it, including folders of runs, by path.

    Symbolic links are followed. A run that cannot be read has the reason as its state.
    """
    runs = []
    for file in sorted(_configs(folder)):
        try:
            if "task" in read_json(file):
                runs.append(read_run(file.parent))
        except ConfigError as error:
            runs.append(Run(file.parent, "unknown", str(error), 0, 0, {}, {}, {}))
    return runs


def _configs(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields each config.json below a folder; of several paths to a folder, one without links is preferred."""
    seen = set()
    for root, folders, files in os.walk(folder, followlinks=True):
        try:
            about = os.stat(root)
        except OSError:  # a training process has removed it
            continue
        if (about.st_dev, about.st_ino) in seen:  # links may form a cycle
            folders.clear()
            continue
        seen.add((about.st_dev, about.st_ino))
        folders.sort(key=lambda name: os.path.islink(os.path.join(root, name)))
        if "config.json" in files:
            yield pathlib.Path(root, "config.json")


def differences(a: Run, b: Run) -> dict[str, list[tuple[str, object, object]]]:
    """Returns the differences between two runs, (name, in a, in b), by section: settings, versions, data, results."""
    sections = {
        "settings": ({**a.settings, "task": a.task}, {**b.settings, "task": b.task}),
        "versions": (_versions(a.provenance), _versions(b.provenance)),
        "data": tuple(flat(run.provenance.get("data", {})) for run in (a, b)),
        "results": ({**a.results, "step": a.step, "state": a.state}, {**b.results, "step": b.step, "state": b.state}),
    }
    return {
        section: [
            (name, x.get(name), y.get(name)) for name in dict.fromkeys([*x, *y]) if _differ(x.get(name), y.get(name))
        ]
        for section, (x, y) in sections.items()
    }


def _differ(a: object, b: object) -> bool:
    """Returns True if two values differ; NaN is the same as NaN."""
    return a != b and not (a != a and b != b)


def _locked(path: pathlib.Path) -> str:
    """Returns "running" if a process holds the lock of a run, "killed" if one left it behind, or an empty string."""
    try:
        with (path / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "running"
    except OSError:  # there is no lock, it may not be read, or the filesystem has none
        return ""
    return "killed"


def _results(log: list[JsonObject]) -> dict[str, float]:
    losses = [entry["loss"] for entry in log if entry.get("loss") is not None]
    validated = [entry["validation_loss"] for entry in log if entry.get("validation_loss") is not None]
    results = {}
    if losses:
        results["loss"] = float(losses[-1])
    if validated:
        results["validation_loss"] = float(min(validated))
    return results


def _scores(path: pathlib.Path) -> dict[str, float]:
    """Returns the scores that `evaluate` saved, by split, checkpoint, corpus and name."""
    scores = {}
    for file in sorted(path.glob("scores-*.json")):
        for corpus, found in read_json(file).items():
            if corpus not in ("settings", "steps") and isinstance(found, list):
                where = file.stem.removeprefix("scores-")
                value = lambda score: float("nan" if score["value"] is None else score["value"])  # JSON has no NaN
                scores |= {f"{where} {corpus} {score['name']}": value(score) for score in found}
    return scores


def _versions(provenance: JsonObject) -> JsonObject:
    """Returns a run's package versions, and the commit and devices of its last start."""
    start = (provenance.get("starts") or [{}])[-1]
    facts = {name: json.dumps(start[name]) for name in ("commit", "dirty", "devices", "mesh", "flags") if name in start}
    return {"python": provenance.get("python"), **provenance.get("versions", {}), **facts}


def corpora_of(run: Run) -> list[str]:
    """Returns the names of a run's `data.corpora`."""
    parts = [name.split(".") for name in run.settings]
    return list(dict.fromkeys(name[2] for name in parts if name[:2] == ["data", "corpora"] and len(name) > 3))


def how_compared(run: Run, corpus: str = "", to: str = "") -> dict[str, Any]:
    """Returns the arguments of a comparison of a run's translations of a corpus.

    Args:
      to: the language into which they are, if it is known; by default that of the corpus, or of all corpora.
    """
    of = lambda part: str(run.settings.get(f"data.{part}target_language") or "")
    languages = {name: of(f"corpora.{name}.") or of("") for name in corpora_of(run)}
    alike = next(iter(languages.values())) if len({*languages.values()}) == 1 else of("")
    language = two_letters(to or languages.get(corpus, alike))
    return {"lowercase": bool(run.settings.get("data.lowercase")), "language": language}


def comparisons(a: Run, b: Run) -> dict[str, Comparison]:
    """Returns the comparison of two runs on each set of sentences that both translated, by the name of its file, and
    of the corpus if the first run has several.

    Sets with different sources or references, and runs with different comparison settings, are not compared.
    """
    return {
        name: evaluation.scores.paired_bootstrap(baseline, system, references, **how)
        for name, how, references, (baseline, system) in shared_translations([a, b])
    }


def shared_translations(runs: Sequence[Run]) -> Iterator[tuple[str, dict[str, Any], list[str], list[list[str]]]]:
    """Yields each set of sentences that all runs translated: its name, how it is compared, the references, each run's
    texts. Each corpus of the first run's `data.corpora` is a set of its own.

    Nothing if a run is no translator, and no set that the runs compare in different ways.
    """
    first = runs[0]
    if any(run.task != "translation" for run in runs):
        return
    for file in sorted(first.path.glob("examples-*.jsonl")):
        files = [run.path / file.name for run in runs]
        if not all(path.exists() for path in files):
            continue
        tables = [_read_examples(path) for path in files]
        pairs = [row[:2] for row in tables[0]]
        if any([row[:2] for row in table] != pairs for table in tables):
            continue
        name, known = file.stem.removeprefix("examples-"), corpora_of(first)
        into = [_language_of_scores(run, name) for run in runs]
        parts: dict[str, list[int]] = {}
        for place, (*_, corpus) in enumerate(tables[0]):
            parts.setdefault(corpus if corpus in known else "", []).append(place)
        for corpus, places in parts.items():
            its = [table[places[0]][-1] for table in tables]
            ways = [how_compared(*about) for about in zip(runs, its, into, strict=True)]
            if all(how == ways[0] for how in ways):
                texts = [[table[i][2] for i in places] for table in tables]
                yield f"{name} {corpus}".rstrip(), ways[0], [pairs[i][1] for i in places], texts


def _language_of_scores(run: Run, name: str) -> str:
    """Returns the language into which `evaluate` translated other files for the scores of this name, if it was told."""
    settings = read_optional_json(run.path / f"scores-{name}.json").get("settings")
    return str(settings.get("to", "")) if isinstance(settings, dict) else ""


def _read_examples(path: pathlib.Path) -> list[tuple[str, str, str, str]]:
    """Returns the source, the reference, the translation and the corpus of each example."""
    try:
        with path.open(encoding="utf-8", newline="\n") as lines:
            found = map(json.loads, lines)
            rows = [(x["source"], x["reference"], x["hypothesis"], x.get("corpus", "")) for x in found]
        if not all(isinstance(text, str) for row in rows for text in row):
            raise TypeError("it holds something other than texts")
        return rows
    except (OSError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
