"""Part 4: the scores and times of two recipes, trained from the beginning: Multi30k and a model of characters.

A training that does not end within a call is saved and resumed by the next one.
"""

from __future__ import annotations

import functools
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import jax

import jaxformer
from benchmarks.accelerator.record import Case, Settings, Unfinished, aligned, number
from experiments.language_model import tinyshakespeare
from experiments.translation import multi30k
from jaxformer import demo
from jaxformer.config import changed
from jaxformer.tasks.config import TaskConfig
from jaxformer.training.phase_timer import COMPLETE, read_starts, total_seconds

TITLE = "Part 4: scores of the recipes"
SAVING = 45.0
"""The seconds before the end of a call at which a training stops."""
TRANSLATION, CHARACTERS = "multi30k published", "tinyshakespeare characters_large"
CONFIGS = {TRANSLATION: multi30k.published_accelerator, CHARACTERS: tinyshakespeare.characters_large}
FILES = {
    TRANSLATION: [f"multi30k/{part}.{side}" for part in ("train", "val", "test_2016") for side in ("en", "de")],
    CHARACTERS: ["tinyshakespeare/input.txt"],
}
SMALL = {"d_model": 16, "num_heads": 2, "d_ff": 32}
SPLITS = "validation", "test"
FEW = {"steps": 6, "validate_every": 3, "checkpoint_every": 3, "tensorboard": False}
TINY: dict[str, dict[str, Any]] = {
    TRANSLATION: {
        "model": {**SMALL, "num_encoder_layers": 1, "num_decoder_layers": 1},
        "data": {"vocab_size": 400, "tokens_per_batch": 640, "num_shapes": 1},
        "train": FEW,
        "decode": {"validation_sentences": 0, "search": {"beam_size": 2}, "max_ratio": 0.1},
    },
    CHARACTERS: {
        "model": {**SMALL, "num_layers": 1, "max_positions": 16},
        "data": {"length": 16, "batch_size": 4},
        "optimizer": {"warmup_steps": 1},
        "train": FEW,
    },
}


def cases(settings: Settings) -> list[Case]:
    """Returns the trainings, each with its score."""
    least = 10 if settings.tiny else 2 * SAVING
    return [
        Case(f"train {TRANSLATION}", functools.partial(_train, TRANSLATION), least, TRANSLATION),
        Case(f"score {TRANSLATION}", _score, 10 if settings.tiny else 60, "score"),
        Case(f"train {CHARACTERS}", functools.partial(_train, CHARACTERS), least, CHARACTERS),
    ]


def run_of(name: str, settings: Settings) -> pathlib.Path:
    """Returns the run directory of a recipe."""
    return settings.out / "runs" / name.replace(" ", "-")


def is_trained(run: pathlib.Path) -> bool:
    """Returns True if the training of a run has reached its end."""
    starts = read_starts(run / "time.json")
    return bool(starts) and starts[-1].get("ended") in COMPLETE


def data_of(name: str, settings: Settings) -> pathlib.Path:
    """Returns the folder of the corpora; in tiny mode without one, the built-in grammar is written into one.

    Raises:
      Unfinished: there is no folder, or it lacks a file.
    """
    folder = settings.data
    if folder is None and settings.tiny:
        folder = settings.out / "data"
        _write_grammar(folder)
    if folder is None:
        raise Unfinished(f"--data must be a folder with {FILES[name][0]}, got none")
    for file in FILES[name]:
        if not (folder / file).is_file():
            raise Unfinished(f"--data must be a folder with {file}, got {folder}")
    return folder


def _write_grammar(folder: pathlib.Path) -> None:
    pairs = demo.generate(300)
    cuts = {"train": pairs[20:], "val": pairs[:10], "test_2016": pairs[10:20]}
    (folder / "multi30k").mkdir(parents=True, exist_ok=True)
    (folder / "tinyshakespeare").mkdir(exist_ok=True)
    for part, some in cuts.items():
        for side, sentences in (("en", [x.english for x in some]), ("de", [x.french for x in some])):
            (folder / f"multi30k/{part}.{side}").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    (folder / "tinyshakespeare/input.txt").write_text(demo.text(100), encoding="utf-8")


def configuration(name: str, settings: Settings) -> TaskConfig:
    """Returns the configuration of a recipe that stops before this call ends."""
    changes = {part: dict(values) for part, values in TINY[name].items()} if settings.tiny else {}
    changes["data"] = {**changes.get("data", {}), "directory": str(data_of(name, settings))}
    if name == TRANSLATION:
        changes["data"]["cache"] = str(settings.out / "tokens")
    minutes = max(settings.left - (0 if settings.tiny else SAVING), 1) / 60
    changes["train"] = {**changes.get("train", {}), "minutes": minutes}
    return changed(CONFIGS[name](), changes)


def _train(name: str, settings: Settings) -> Mapping[str, Any]:
    config = configuration(name, settings)
    result = jaxformer.train(config, run_of(name, settings))
    step = int(result.state.step)
    if result.reason not in COMPLETE:
        raise Unfinished(f"stopped by {result.reason} at step {step:,} of {config.train.steps:,}")
    progress, times = result.progress, total_seconds(read_starts(run_of(name, settings) / "time.json"))
    validated = progress.best_step > 0
    best = {"best step": progress.best_step, "best loss": progress.best_score} if validated else {}
    return {"steps": step, "end": result.reason, "seconds": times, **best}


def _score(settings: Settings) -> Mapping[str, Any]:
    run, config = run_of(TRANSLATION, settings), configuration(TRANSLATION, settings)
    if not is_trained(run):
        raise Unfinished("the training comes first")
    steps = jaxformer.average(run, last=10)
    results: dict[str, Any] = {"averaged": steps}
    predictor = jaxformer.load(run, checkpoint="average")
    for split in SPLITS:
        began = time.perf_counter()
        scores = jaxformer.evaluate(run, predictor, split=split, data_dir=config.data.directory)  # type: ignore[attr-defined]
        results[f"{split} seconds"] = time.perf_counter() - began
        (found,) = scores.values()
        results[split] = {score.name: score.value for score in found}
    return {**results, "device": jax.devices()[0].device_kind}


def table(results: Mapping[str, Any]) -> str:
    """Returns the steps, losses and scores."""
    rows: list[tuple[object, ...]] = [("recipe", "steps", "best step", "best loss", "end", "s", "compiling")]
    lines = []
    for name, result in results.items():
        if name.startswith("train "):
            best, loss = result.get("best step", "-"), number(result.get("best loss"), ".4f")
            times = f"{sum(result['seconds'].values()):.0f}", f"{result['seconds']['compiling']:.0f}"
            rows.append((name.removeprefix("train "), f"{result['steps']:,}", best, loss, result["end"], *times))
            continue
        for split in SPLITS:
            shown = ", ".join(f"{score} {number(value, '.2f')}" for score, value in result[split].items())
            lines.append(f"{split}, average of the last 10: {shown}; searched in {result[f'{split} seconds']:.1f} s")
    return "\n\n".join([aligned(rows)] * (len(rows) > 1) + ["\n".join(lines)] * bool(lines))
