"""The systems of the experiment: trainings by a method, ensembles of their seeds, and students of an ensemble."""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import jaxformer
from experiments import command
from experiments.translation import verify
from jaxformer.config import changed, comparable, difference
from jaxformer.data.lines import read_lines
from jaxformer.data.sources import locate
from jaxformer.errors import ConfigError
from jaxformer.evaluation.resampling import interval
from jaxformer.files import write_text
from jaxformer.tasks import registry
from jaxformer.tasks.translation import TranslationConfig, Translator
from jaxformer.training.phase_timer import total_seconds

Record = Mapping[str, Any]

SAMPLING = {"data": {"num_segmentations": 0}}
R_DROP = {"loss": {"r_drop": 5.0}}
SIMCUT = {"loss": {"simcut": {"weight": 3.0, "cut": 0.05}}}
TRAINED: dict[str, Mapping[str, Any]] = {
    "plain": {},
    "sampling": SAMPLING,
    "r-drop": R_DROP,
    "sampling-r-drop": SAMPLING | R_DROP,
    "simcut": SIMCUT,
    "bidirectional": {},
    "bidirectional-simcut": SIMCUT,
}
"""The changes of a configuration by a method of training."""
STARTED = ("bidirectional", "bidirectional-simcut")
"""The methods whose trainings start from a model of both directions."""
SEARCHES: dict[str, Mapping[str, Any]] = {
    "ensemble": {},
    "ensemble-mbr": {
        "search": {
            "kind": "minimum_risk",
            "num_candidates": 16,
            "utility": "bleu",
            "candidates": {"kind": "beam", "beam_size": 16},
        }
    },
}
"""The search of an ensemble of seeds."""
STUDENT = "distilled"
METHODS = (*TRAINED, *SEARCHES, STUDENT)
PORTION = 1000
"""The sentences that a teacher translates at a time."""


def check(methods: Sequence[str], seeds: int) -> None:
    """Checks that methods can be run together.

    Raises:
      ConfigError: an ensemble or a student has nothing to be made of.
    """
    if later := [method for method in methods if method not in TRAINED]:
        if not set(methods) & set(TRAINED):
            raise ConfigError(f"{later[0]} needs a method of training among --methods: {', '.join(TRAINED)}")
        if seeds < 2:
            raise ConfigError(f"{later[0]} needs --seeds 2 or more, because an ensemble is made of seeds")


def configured(config: TranslationConfig, method: str) -> TranslationConfig:
    """Returns the configuration of a method of training.

    >>> from experiments.translation.multi30k import en_de, published
    >>> [configured(c, "sampling").data.segmentation_alpha for c in (en_de(), published())]   # unigram; bpe
    [0.2, 0.1]
    """
    config = changed(config, TRAINED[method])
    if config.data.num_segmentations == 0 and config.data.tokenizer == "bpe":
        config = changed(config, {"data": {"segmentation_alpha": 0.1}})  # the dropout of merges in the paper
    return config


def folder(out: pathlib.Path, method: str) -> pathlib.Path:
    """Returns the folder of a method's runs and records."""
    return out if method == "plain" else out / method


def trained(
    config: TranslationConfig, out: pathlib.Path, last: int, end: float, *, method: str = "plain"
) -> dict[str, Any]:
    """Trains a seed, averages its last checkpoints and scores the average; returns the record, made if it is missing.

    Raises:
      ConfigError: the record is of other settings.
      Stopped: the time was up.
    """
    run, path = out / f"seed-{config.seed}", out / "records" / f"seed-{config.seed}.json"
    start = out / "start" / run.name
    alone, updates = config, config.train.steps
    if method in STARTED:
        config, updates = changed(config, {"init_from": f"{start.resolve()}:average"}), 2 * updates

    def make() -> Record:
        if method in STARTED:
            _train_both_directions(alone, start, last, end)
        command.train(config, run, end)
        about = {"method": method, "updates": updates, "last": last, **_averaged(run, last)}
        return {**about, **verify.evidence(run), "facts": command.facts()}

    found = command.record(path, config, make)
    if found["last"] != last:
        raise ConfigError(f"{path} is an average of {found['last']} checkpoints, not of {last}; choose another --out")
    return found


def _train_both_directions(config: TranslationConfig, run: pathlib.Path, last: int, end: float) -> None:
    """Trains a model on all pairs in both directions, and averages its last checkpoints (Ding et al. 2021, "BiT").

    The language of the source tells the direction, so there are no tags. Both sides are split by the rules for words of
    the source language, which differ little; the training that starts here has those of each language.

    Raises:
      ConfigError: the folder holds a start of other settings.
      Stopped: the time was up.
    """
    files = {side: run.parent / f"both.{side}" for side in ("source", "target")}
    both = changed(config, {"data": {side: str(path.resolve()) for side, path in files.items()}})
    if (run / "average").exists():
        if (saved := comparable(registry.read_config(run))) != comparable(both):
            found = difference(saved, comparable(both))
            raise ConfigError(f"{run} is a start of other settings: {found}; choose another --out")
        return
    lines = [read_lines(locate(getattr(config.data, side), config.data.directory)) for side in files]
    for path, texts in zip(files.values(), (lines[0] + lines[1], lines[1] + lines[0]), strict=True):
        write_text(path, "".join(f"{text}\n" for text in texts))
    command.train(both, run, end)
    jaxformer.average(run, last=last)


def _averaged(run: pathlib.Path, last: int) -> dict[str, Any]:
    """Returns the checkpoints of a run's average, its scores, and the seconds of each part of the work."""
    began = time.monotonic()
    steps = jaxformer.average(run, last=last)
    parts = total_seconds(json.loads((run / "time.json").read_text()))
    parts = {**parts, "averaging": time.monotonic() - began}
    return {"averaged": steps, "seconds": parts, "scores": _scores(run, ensemble([run]))}


def best(records: Mapping[str, Sequence[Record]]) -> str:
    """Returns the method of training with the highest mean of the last score on the validation set."""
    means = {
        method: float(np.mean([record["scores"]["validation"][-1]["value"] for record in found]))
        for method, found in records.items()
        if method in TRAINED
    }
    return max(means, key=means.__getitem__)


def ensemble(runs: Sequence[pathlib.Path], decode: Mapping[str, Any] | None = None) -> Translator:
    """Returns the averages of runs as one translator."""
    first, *others = (jaxformer.load(run, checkpoint="average", decode=decode) for run in runs)
    assert isinstance(first, Translator)
    return first.ensemble_with(others)


def ensemble_record(
    config: TranslationConfig, runs: Sequence[pathlib.Path], path: pathlib.Path, method: str
) -> dict[str, Any]:
    """Returns the record of an ensemble of runs, made if it is missing.

    Args:
      config: that of the first run.
      method: of `SEARCHES`.

    Raises:
      ConfigError: the record is of other settings or other runs.
    """
    names = [f"{run.parent.name}/{run.name}" for run in runs]

    def make() -> Record:
        began = time.monotonic()
        scores = _scores(runs[0], ensemble(runs, SEARCHES[method]))
        seconds = {"translating": time.monotonic() - began}
        return {"runs": names, "seconds": seconds, "scores": scores, "facts": command.facts()}

    found = command.record(path, config, make)
    if found["runs"] != names:
        raise ConfigError(f"{path} is an ensemble of {', '.join(found['runs'])}, not of {', '.join(names)}")
    return found


def distill(config: TranslationConfig, runs: Sequence[pathlib.Path], out: pathlib.Path, end: float) -> pathlib.Path:
    """Writes an ensemble's translations of the training sentences, and returns their file.

    The parts that are there are kept, so a stopped call resumes.

    Raises:
      Stopped: the time was up.
    """
    whole = out / "train.target"
    if whole.exists():
        return whole
    sources = read_lines(locate(config.data.source, config.data.directory))
    teacher = ensemble(runs)
    parts = [out / f"{start:06d}" for start in range(0, len(sources), PORTION)]
    for number, part in enumerate(parts):
        if part.exists():
            continue
        if time.monotonic() > end - command.SAVING:
            raise command.Stopped(f"the teacher was stopped after {number * PORTION:,} sentences")
        began = time.monotonic()
        found = teacher.translate(sources[number * PORTION : (number + 1) * PORTION], first=number * PORTION + 1)
        write_text(part, "".join(f"{text}\n" for text in found))
        left = (time.monotonic() - began) * (len(parts) - number - 1) / 60
        print(f"teacher: part {number + 1} of {len(parts)}, {left:.0f} minutes left", flush=True)
    write_text(whole, "".join(part.read_text(encoding="utf-8") for part in parts))
    return whole


def _scores(run: pathlib.Path, translator: Translator) -> dict[str, list[dict[str, Any]]]:
    """Returns the scores of a translator on the validation set and the test set of a run."""
    return {
        split: [
            {
                "name": score.name,
                "value": score.value,
                "signature": score.signature,
                "interval": score.sample and interval(score.sample),
            }
            for found in jaxformer.evaluate(run, translator, split=split).values()
            for score in found
        ]
        for split in ("validation", "test")
    }
