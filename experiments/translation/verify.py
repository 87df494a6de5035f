"""The check of a record: its commit, its configuration, its first losses, trained again, and its scores."""

from __future__ import annotations

import json
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

import jaxformer
from experiments import command
from experiments.translation import multi30k
from jaxformer.config import changed, comparable, fingerprint, from_data, to_data
from jaxformer.errors import DataError
from jaxformer.files import write_text
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
    the record.

    Args:
      directory: the folder of multi30k, in place of the one that the run had.

    Raises:
      DataError: the file is not a record, or something in it does not hold; the message has the expected and the found.
    """
    record = json.loads(path.read_text(encoding="utf-8"))
    if missing := {"settings", "config", "data", "losses", "scores", "facts"} - set(record):
        raise DataError(f"{path} must be a record with {', '.join(sorted(missing))}")
    if not len(record["losses"]) >= min(STEPS, record["config"]["train"]["steps"]):
        raise DataError(f"{path} must have the losses of the first {STEPS} steps, got {len(record['losses'])}")
    here, facts = command.facts(), record["facts"]
    if facts["commit"].rstrip("+") != facts["commit"] or facts["commit"] != here["commit"]:
        raise DataError(f"the record is of commit {facts['commit'] or 'unknown'}, this checkout is {here['commit']}")
    config = from_data(TranslationConfig, record["config"])
    if fingerprint(config) != record["settings"]:
        raise DataError(
            f"settings must be the hash of the configuration, {fingerprint(config)}, got {record['settings']}"
        )
    exact = all(facts[name] == here[name] for name in SAME)
    how = "bit for bit" if exact else f"to {TOLERANCE:g}, because {_others(facts, here)}"
    _check_losses(record, changed(config, {"data": {"directory": str(directory.resolve())}}), exact)
    run = path.parent.parent / path.stem
    scored = "not checked, because the parameters are not here"
    if (run / "average").exists():
        _check_scores(record["scores"]["validation"], run, directory, exact)
        scored = "of the validation set computed again" + (", equal" if exact else f", within {BLEU}")
    published = multi30k.published()
    same = (config.model, config.data.vocab_size) == (published.model, published.data.vocab_size)
    size = "the published" if same else "another"
    lines = [f"{path.name}: {record['updates']:,} updates at {size} size, commit {facts['commit']}"]
    lines += [f"- configuration: {record['settings']}", f"- the first {len(record['losses'])} losses: equal {how}"]
    return "\n".join([*lines, f"- scores: {scored}", ""])


def _others(facts: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    return "; ".join(f"{name} was {facts[name]}, is {here[name]}" for name in SAME if facts[name] != here[name])


def _check_losses(record: Mapping[str, Any], config: TranslationConfig, exact: bool) -> None:
    """Trains the first steps again, from the record alone."""
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder)
        entries = [{"step": step, "loss": loss} for step, loss in enumerate(record["losses"], 1)]
        saved = {"task": config.task, "config": to_data(config)}
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
    for old, new in zip(expected, found, strict=True):
        if old["name"] != new.name or not abs(old["value"] - new.value) <= (0 if exact else BLEU):
            raise DataError(f"{new.name} of the validation set must be {new.value}, got {old['value']}")
