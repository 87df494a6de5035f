"""Part 6: fifty training steps of the base model in two processes, compared bit for bit, with and without flags."""

from __future__ import annotations

import functools
import hashlib
import os
import pathlib
import re
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from benchmarks.accelerator.record import Case, Settings, aligned, number
from benchmarks.accelerator.training import TINY_TOKENS, configuration, one_device, random_batches, shape_of
from jaxformer.tasks import planner
from jaxformer.training.integrity import checksums

TITLE = "Part 6: fifty steps twice"
FLAGS = pathlib.Path(__file__).resolve().parents[2] / "launch" / "flags" / "gpu-reproducible.txt"
TOKENS = 8192


def cases(settings: Settings) -> list[Case]:
    """Returns two runs with the reproducible flags and two without; each has a process of its own."""
    flags = " ".join(re.findall(r"^--\S+", FLAGS.read_text(), re.MULTILINE))
    return [
        Case(f"{kind} {turn}", functools.partial(_train, settings.tiny), 75, f"{kind} {turn}", added)
        for kind, added in (("default", ""), ("reproducible", flags))
        for turn in (1, 2)
    ]


def _train(tiny: bool, settings: Settings) -> Mapping[str, Any]:
    config = configuration("base", tiny=tiny)
    setup = planner.planned_setup(config, one_device())
    shape = shape_of(TINY_TOKENS if tiny else TOKENS, tiny=tiny)
    lowered, _ = setup.lower(*shape)
    program, state = lowered.compile(), setup.new_state()
    batches = random_batches(setup, shape, config.data.vocab_size)  # type: ignore[attr-defined]
    losses, began = [], 0.0
    for i in range(5 if tiny else 50):
        if i == 2:
            jax.block_until_ready(state)
            began = time.perf_counter()
        state, metrics = program(state, next(batches))
        losses.append(metrics["loss_sum"])
    jax.block_until_ready(state)
    each = (time.perf_counter() - began) / (len(losses) - 2)
    return {
        "losses": [np.asarray(loss, np.float32).tobytes().hex() for loss in losses],
        "state": digest(state),
        "seconds": each,
        "flags": os.environ.get("XLA_FLAGS", ""),
    }


def digest(state: Any) -> str:
    """Returns a digest of all bits of a training state."""
    sums = {name: np.asarray(value).tolist() for name, value in checksums(state).items()}
    return hashlib.sha256(repr(sorted(sums.items())).encode()).hexdigest()[:16]


def table(results: Mapping[str, Any]) -> str:
    """Returns, for each kind of flags, the comparison of its two runs, if they have the same commit and versions."""
    rows: list[tuple[object, ...]] = [("flags", "state 1", "state 2", "equal", "first step that differs", "ms a step")]
    for kind in ("default", "reproducible"):
        runs = [results.get(f"{kind} {i}") for i in (1, 2)]
        states = ["-" if run is None else run["state"] for run in runs]
        times = " / ".join("-" if run is None else number(run["seconds"], ".2f", factor=1e3) for run in runs)
        equal, where = "-", "-"
        first, second = runs
        if first and second and first.get("by") != second.get("by"):
            equal = "not compared: other commit or versions"
        elif first and second:
            pairs = zip(first["losses"], second["losses"], strict=True)
            differs = next((str(i) for i, (a, b) in enumerate(pairs, 1) if a != b), None)
            equal = "yes" if differs is None and states[0] == states[1] else "no"
            where = differs or ("-" if equal == "yes" else "none: the state only")
        rows.append((kind, *states, equal, where, times))
    return aligned(rows)
