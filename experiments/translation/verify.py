"""The check of a record: its commit, its configuration, its first losses, trained again, and its scores."""

from __future__ import annotations

import json
import pathlib
import re
import tempfile
from collections.abc import Mapping
from typing import Any

import jaxformer
from experiments import command
from experiments.translation import multi30k
from jaxformer.config import changed, comparable, fingerprint, from_data, to_data
from jaxformer.errors import DataError
from jaxformer.files import write_text
from jaxformer.tasks import registry, rundir
from jaxformer.tasks.replay import replay
from jaxformer.tasks.translation import TranslationConfig
from jaxformer.training.logging import read_log

STEPS = 20
"""The steps that are trained again."""
TOLERANCE = 1e-4
"""The largest relative difference of a loss on another processor, or with other versions."""
BLEU = 0.3
"""The largest difference of a score there: rounding may change a few translations."""
SAME = ("processor", "version", "jax")
"""The facts under which results are equal bit for bit."""
PARTS = {"settings": str, "config": dict, "data": dict, "losses": list, "scores": dict, "facts": dict, "updates": int}
"""The parts of a record that are read, and their types."""


def evidence(run: pathlib.Path) -> dict[str, Any]:
    """Returns the facts of a run that `verify` reads: its configuration, hashes of its data and first losses."""
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))["config"]
    data = json.loads((run / "provenance.json").read_text(encoding="utf-8"))["data"]
    losses = [entry["loss"] for entry in read_log(run / "log.jsonl") if "loss" in entry]
    config = comparable(from_data(TranslationConfig, config))
    return {"config": config, "data": data, "losses": losses[:STEPS]}


def verify(path: pathlib.Path, directory: pathlib.Path) -> str:
    """Checks a record, and returns what was checked, as Markdown.

    The record alone is enough for all but the scores: they need the parameters, in the folder ``seed-N`` beside that of
    the record. A training that began in both directions also needs its start, in ``start/seed-N`` there.

    Args:
      directory: the folder of multi30k, in place of the one that the run had.

    Raises:
      DataError: the file is not a record, or something in it does not hold; the message has the expected and the found.
    """
    path = path.resolve()  # a bare name has its parameters in another folder, too
    record = _read(path)
    config, now, facts = from_data(TranslationConfig, record["config"]), command.facts(), record["facts"]
    if not len(record["losses"]) >= min(STEPS, config.train.steps):
        raise DataError(f"{path} must have the losses of the first {STEPS} steps, got {len(record['losses'])}")
    if facts["commit"] != now["commit"] or not re.fullmatch("[0-9a-f]+", facts["commit"]):
        names = [commit or "unknown" for commit in (facts["commit"], now["commit"])]
        raise DataError(f"the record is of commit {names[0]}, this checkout is {names[1]}")
    if fingerprint(config) != record["settings"]:
        raise DataError(
            f"settings must be the hash of the configuration, {fingerprint(config)}, got {record['settings']}"
        )
    started = registry.split_init(config.init_from)[0].parent.name == "start"  # in both directions, for as many updates
    updates = config.train.steps * (2 if started else 1)
    if record["updates"] != updates:
        raise DataError(f"updates must be those of the configuration, {updates:,}, got {record['updates']:,}")
    exact = all(facts[name] == now[name] for name in SAME)
    how = "bit for bit" if exact else f"to {TOLERANCE:g}, because {_others(facts, now)}"
    run = path.parent.parent / path.stem
    start, here = run.parent / "start" / run.name, changed(config, {"data": {"directory": str(directory.resolve())}})
    if config.init_from and start.exists():  # the folder may have been moved
        here = changed(here, {"init_from": f"{start}:average"})
    _check_losses(record, here, exact)
    scored = "not checked, because the parameters are not here"
    if (run / "average").exists():
        _check_scores(record["scores"].get("validation", []), run, directory, exact)
        scored = "of the validation set computed again" + (", equal" if exact else f", within {BLEU}")
    published = multi30k.published()
    same = (config.model, config.data.vocab_size) == (published.model, published.data.vocab_size)
    size = "the published" if same else "another"
    lines = [f"{path.name}: {record['updates']:,} updates at {size} size, commit {facts['commit']}"]
    lines += [f"- configuration: {record['settings']}", f"- the first {len(record['losses'])} losses: equal {how}"]
    lines.append(f"- scores: {scored}; those of the test set are as recorded, not checked")
    return "\n".join([*lines, ""])


def _read(path: pathlib.Path) -> dict[str, Any]:
    """Returns a record whose parts are of the right types."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} must be a record, got what is no JSON: {error}") from error
    given = record if isinstance(record, dict) else {}
    if missing := [name for name, kind in sorted(PARTS.items()) if not isinstance(given.get(name), kind)]:
        raise DataError(f"{path} must be a record with {', '.join(missing)}")
    if not {"commit", *SAME} <= given["facts"].keys() or not {float}.issuperset(map(type, given["losses"])):
        raise DataError(f"{path} must have numbers as losses, and facts with commit, {', '.join(SAME)}")
    if not _are_scores(given["scores"].get("validation", [])):
        raise DataError(f"{path} must have a list of scores of the validation set, each with a name and a value")
    return given


def _are_scores(found: object) -> bool:
    def is_score(score: Any) -> bool:
        return isinstance(score, dict) and isinstance(score.get("name"), str) and type(score.get("value")) is float

    return isinstance(found, list) and all(map(is_score, found))


def _others(facts: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    return "; ".join(f"{name} was {facts[name]}, is {here[name]}" for name in SAME if facts[name] != here[name])


def _check_losses(record: Mapping[str, Any], config: TranslationConfig, exact: bool) -> None:
    """Trains the first steps again, from the record and, if the training had one, its start."""
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder)
        entries = [{"step": step, "loss": loss} for step, loss in enumerate(record["losses"], 1)]
        saved = {"task": config.task, "config": to_data(config)}
        if config.init_from:
            start, _ = registry.split_init(config.init_from)
            rundir.copy_files(start, run, registry.task_of(config).vocabulary_files)  # as a training begins
        write_text(run / "config.json", json.dumps(saved))
        write_text(run / "provenance.json", json.dumps({"data": record["data"]}))
        write_text(run / "log.jsonl", "".join(f"{json.dumps(entry)}\n" for entry in entries))
        for step in replay(run, steps=len(entries)):
            close = step.logged is not None and abs(step.loss - step.logged) <= TOLERANCE * abs(step.logged)
            if not (step.same if exact else close):
                raise DataError(f"the loss of step {step.step} must be {step.logged}, got {step.loss}")


def _check_scores(expected: list[dict[str, Any]], run: pathlib.Path, directory: pathlib.Path, exact: bool) -> None:
    """Scores the average on the validation set again; the test set is scored once, for the record."""
    average = jaxformer.load(run, checkpoint="average")
    (found,) = jaxformer.evaluate(run, average, split="validation", data_dir=directory).values()
    if len(expected) != len(found):
        raise DataError(f"the validation set must have {len(found)} scores, got {len(expected)}")
    for old, new in zip(expected, found, strict=True):
        if old["name"] != new.name or not abs(old["value"] - new.value) <= (0 if exact else BLEU):
            raise DataError(f"{new.name} of the validation set must be {new.value}, got {old['value']}")
