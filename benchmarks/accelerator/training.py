"""Part 3: training steps of the base and the big model of "Attention Is All You Need", in bfloat16.

Batches are full: as many rows of 64 + 64 tokens as the number of target tokens needs. Every case also traces one step.
"""

from __future__ import annotations

import functools
import pathlib
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from benchmarks.accelerator.attention import seconds
from benchmarks.accelerator.record import Case, Refused, Settings, aligned, number
from experiments.translation import wmt14
from jaxformer import hardware, sharding
from jaxformer.config import changed
from jaxformer.errors import ConfigError
from jaxformer.planning.forecast import Workload, forecast
from jaxformer.tasks import planner
from jaxformer.tasks.config import TaskConfig
from jaxformer.tasks.training_setup import TrainingSetup

TITLE = "Part 3: training in bfloat16"
CONFIGS = {"base": wmt14.base_en_de, "big": wmt14.big_en_de}
LENGTH = 64
TOKENS = (16384, 32768, 65536, 8192, 4096)
"""Target tokens per step, in order of importance."""
TINY_TOKENS = 64
TINY = {
    "model": {"d_model": 16, "num_heads": 2, "d_ff": 32, "num_encoder_layers": 1, "num_decoder_layers": 1},
    "data": {"vocab_size": 320},
}


def cases(settings: Settings) -> list[Case]:
    """Returns a case for each model and batch, in a process of its own, and plans of some of them."""
    names = [(size, TINY_TOKENS if settings.tiny else tokens) for tokens in TOKENS for size in ("big", "base")]
    names = list(dict.fromkeys(names))
    measured = [(f"{size} {tokens}", functools.partial(_measure, size, tokens)) for size, tokens in names]
    planned = [(f"plan {size} {tokens}", functools.partial(_plan, size, tokens)) for size, tokens in names]
    found = [Case(name, run, seconds=75, process=name) for name, run in measured]
    return found + [Case(name, run, seconds=60, process=name) for name, run in planned]


def configuration(size: str, *, tiny: bool) -> TaskConfig:
    """Returns the configuration of a model; in tiny mode, one that compiles in seconds."""
    config = CONFIGS[size]()
    return changed(config, TINY) if tiny else config


def shape_of(tokens: int, *, tiny: bool) -> tuple[int, int]:
    """Returns rows and length of a batch."""
    length = 8 if tiny else LENGTH
    return tokens // length, length


class Compiled:
    """A lowered program that compiles once, and records how long it took."""

    def __init__(self, lowered: Any):
        began = time.perf_counter()
        self.program = lowered.compile()
        self.seconds = time.perf_counter() - began

    def compile(self) -> Any:
        """Returns the program."""
        return self.program


def random_batches(setup: TrainingSetup, shape: tuple[int, int], vocab_size: int) -> Iterator[Any]:
    """Yields full batches of random tokens, the same ones every time."""
    for seed in range(1 << 20):
        draw = np.random.default_rng(seed)

        def fill(leaf: Any, draw: np.random.Generator = draw) -> jax.Array:
            values = np.ones(leaf.shape, bool) if leaf.dtype == bool else draw.integers(4, vocab_size, leaf.shape)
            return jax.device_put(values.astype(leaf.dtype), leaf.sharding)

        yield jax.tree.map(fill, setup.abstract_batch(*shape))


def one_device() -> jax.sharding.Mesh:
    """Returns a mesh of the first device."""
    return sharding.mesh("data=1", jax.devices()[:1])


def _measure(size: str, tokens: int, settings: Settings) -> Mapping[str, Any]:
    config = configuration(size, tiny=settings.tiny)
    setup = planner.planned_setup(config, one_device())
    began = time.perf_counter()
    shape = shape_of(tokens, tiny=settings.tiny)
    lowered, abstract = setup.lower(*shape)
    traced = time.perf_counter() - began
    compiled = Compiled(lowered)
    costs = setup.costs(abstract)
    chip = chip_name()
    expected = forecast(Workload(compiled, setup.abstract_state(), costs), f"{chip or 'h100'}:1x1", one_device())  # type: ignore[arg-type]
    state = setup.new_state()
    batch = next(random_batches(setup, shape, config.data.vocab_size))  # type: ignore[attr-defined]

    def step() -> Any:
        nonlocal state
        state, metrics = compiled.program(state, batch)
        return metrics

    each = seconds(step, jax.block_until_ready, rounds=5, least=0.2 if settings.tiny else 1.0)
    memory = jax.devices()[0].memory_stats() or {}
    folder = settings.out / "trace" / f"{size}-{tokens}"
    loss = step()
    return {
        "seconds": each,
        "tokens per second": costs.tokens / each,
        "flops": costs.flops,
        "utilization": expected.utilization(each) if chip else None,
        "lowering": traced,
        "compile": compiled.seconds,
        "peak": memory.get("peak_bytes_in_use"),
        "peak of the program": expected.memory.peak,
        "estimate": expected.estimate.overlapped if expected.estimate and chip else None,
        "loss": float(loss["loss_sum"] / loss["count"]),
        "operations": operations(step, folder),
    }


def chip_name() -> str | None:
    """Returns the name of the device's data sheet, or None if it has none."""
    chip = hardware.by_device_kind(jax.devices()[0].device_kind)
    return next((name for name, other in hardware.CHIPS.items() if other is chip), None)


def operations(step: Any, folder: pathlib.Path, *, most: int = 12) -> list[dict[str, Any]]:
    """Traces one step into `folder` and returns the operations that took the most time, with their shares.

    Operations whose names differ in numbers only, such as ``fusion.12``, count together.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with jax.profiler.trace(str(folder)):
        jax.block_until_ready(step())
    (file,) = folder.rglob("*.xplane.pb")
    total: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    planes = list(jax.profiler.ProfileData.from_file(str(file)).planes)
    device = [plane for plane in planes if plane.name.startswith("/device:") and "CUSTOM" not in plane.name]
    for plane in device or planes:
        for line in _with_operations(list(plane.lines), on_device=bool(device)):
            for event in line.events:
                if "::" not in event.name:  # the runtime of a CPU, around its operations
                    name = re.sub(r"[._]?\d+", "", event.name)
                    total[name] += event.duration_ns
                    runs[name] += 1
    everything = sum(total.values())
    if not everything:
        raise RuntimeError(f"the trace {file} must hold operations, got the planes {[plane.name for plane in planes]}")
    return [
        {"name": name, "share": spent / everything, "runs": runs[name], "ms": spent / 1e6}
        for name, spent in total.most_common(most)
    ]


def _with_operations(lines: list[Any], *, on_device: bool) -> list[Any]:
    """Returns the lines of a trace with kernels: streams of a GPU, "XLA Ops" of a TPU, threads of a CPU."""
    if not on_device:
        return [line for line in lines if "XLA" in line.name]
    streams = [line for line in lines if line.name.startswith("Stream")]
    return streams or [line for line in lines if line.name == "XLA Ops"]


def _plan(size: str, tokens: int, settings: Settings) -> Mapping[str, Any]:
    """Plans the step for this device's data sheet ahead of time, as `jaxformer plan` does."""
    config = configuration(size, tiny=settings.tiny)
    name = f"{chip_name() or 'h100'}:1x1"
    try:
        found, _ = planner.plan(config, name, shape=shape_of(tokens, tiny=settings.tiny))
    except ConfigError as error:
        raise Refused(str(error)) from error
    estimate = found.estimate.overlapped if found.estimate else None
    return {"topology": name, "peak": found.memory.peak, "estimate": estimate}


def table(results: Mapping[str, Any]) -> str:
    """Returns the results of each model and batch, and the operations of the largest step measured."""
    heading = ("model, tokens", "ms", "target tokens/s", "utilization", "compile s", "peak GB", "program GB")
    rows: list[tuple[object, ...]] = [(*heading, "plan GB", "plan ms")]
    for name, result in results.items():
        if name.startswith("plan "):
            continue
        plan = results.get(f"plan {name}", {})
        gigabytes = functools.partial(number, form=".2f", factor=1e-9)
        rows.append(
            (
                name,
                number(result["seconds"], ".2f", factor=1e3),
                number(result["tokens per second"], ",.0f"),
                number(result["utilization"], ".0%"),
                number(result["compile"], ".1f"),
                gigabytes(result["peak"]),
                gigabytes(result["peak of the program"]),
                gigabytes(plan.get("peak")),
                number(plan.get("estimate"), ".2f", factor=1e3),
            )
        )
    traced = [name for name in results if results[name].get("operations")]
    parts = [aligned(rows)] if len(rows) > 1 else []
    if traced:
        name = max(traced, key=lambda name: results[name]["flops"])
        shown: list[tuple[object, ...]] = [(f"one step of {name}", "share", "runs", "ms")]
        for found in results[name]["operations"]:
            shown.append((found["name"][:60], f"{found['share']:.1%}", found["runs"], f"{found['ms']:.3f}"))
        parts.append(aligned(shown))
    return "\n\n".join(parts)
