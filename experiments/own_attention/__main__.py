"""Compares differential and sparsemax attention with softmax, over three seeds: retrieval, a text, translation.

python -m experiments.own_attention --out results
python -m experiments.own_attention --part retrieval language --out results
python -m experiments.own_attention --smoke --out smoke     # some steps of one attention; its results mean nothing

The same command resumes: what has a record in OUT/records is not trained again.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import pathlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.progress import Progress

import jaxformer
from examples import differential_attention, sparsemax
from experiments import command
from experiments.own_attention import measures, training
from experiments.own_attention.training import ATTENTIONS, Characters, Scale
from experiments.tables import table
from jaxformer.config import changed
from jaxformer.inspection import plots
from jaxformer.tasks.translation.config import demo

FULL = Scale(seeds=3, steps=400, d_model=64, rows=32, sentences=20_000, window=96)
SMOKE = Scale(seeds=1, steps=10, d_model=16, rows=4, sentences=300, window=32)
SMOKE_ATTENTIONS = ("differential",)
EXAMINED = 256
"""The number of texts, or of windows, that measure a trained model."""
LEARNED = 90
"""The percentage of right answers at which a model has learned the task."""
FILES = {"differential": differential_attention.__file__, "sparsemax": sparsemax.__file__}

COLUMNS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "retrieval": (
        ("accuracy", "right answers", ".1f"),
        ("learned", "steps to 90%", ".0f"),
        ("best", "attention to the answer, best map", ".1f"),
        ("mean", "mean of all maps", ".1f"),
    ),
    "language": (
        ("loss", "nats per character", ".4f"),
        ("keys", "keys in use", ".1f"),
        ("zeros", "weights of exactly 0", ".1f"),
    ),
    "translation": (("bleu", "BLEU", ".1f"), ("chrf", "chrF2", ".1f")),
}
"""The measures of each part: name, heading and format."""
PERCENT = "accuracy", "best", "mean", "zeros"


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("own_attention", __doc__, out="folder of records, maps and results.json")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), help="all of them by default")
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Trains what has no record, and writes the results of the parts that are complete.

    Raises:
      ConfigError: `--out` has records of another amount of work.
    """
    scale = SMOKE if args.smoke else FULL
    names = SMOKE_ATTENTIONS if args.smoke else tuple(ATTENTIONS)
    parts = [name for name in PARTS if name in args.part]
    models = list(itertools.product(parts, names, range(scale.seeds)))
    paths = [args.out / "records" / f"{part}-{name}-{seed}.json" for part, name, seed in models]
    for path in filter(pathlib.Path.exists, paths):  # refused before anything is trained
        command.record(path, scale, dict)
    found: dict[str, list[dict[str, Any]]] = {part: [] for part in parts}
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("models", total=len(models))
        for path, model in zip(paths, models, strict=True):
            found[model[0]].append(command.record(path, scale, functools.partial(measure, *model, scale, args)))
            progress.advance(bar)
    results = {"facts": command.facts(), "scale": dataclasses.asdict(scale), "parts": found}
    command.write_results(args.out / "results.json", results)
    print(tables(results))


def measure(part: str, name: str, seed: int, scale: Scale, args: argparse.Namespace) -> dict[str, Any]:
    """Trains one model and returns what is measured of it, with the seconds that this took."""
    began = time.time()
    measured = PARTS[part](name, seed, scale, args)
    return {"attention": name, "seed": seed, **measured, "seconds": round(time.time() - began)}


def retrieval(name: str, seed: int, scale: Scale, args: argparse.Namespace) -> dict[str, Any]:
    """Trains a model to find needles, and measures it on new texts."""
    del args
    net = training.network(name, training.NEEDLE + training.NEEDLES * training.VALUES, scale.d_model)
    batch, curve = training.needles(np.random.default_rng(1000), EXAMINED), {}

    def watch(step: int, params: Any) -> None:
        if step % (2 * training.CHUNK) == 0:
            curve[step] = measures.accuracy(net, params, batch)

    params = training.train(net, training.needles, scale, seed, watch=watch)
    learned = min((step for step, right in curve.items() if right >= LEARNED), default=scale.steps)
    return {"parameters": net.num_parameters, "learned": learned, **measures.retrieval(net, params, batch)}


def language(name: str, seed: int, scale: Scale, args: argparse.Namespace) -> dict[str, Any]:
    """Trains a model of characters, measures it on held-out ones, and draws the maps of the first seed."""
    text = Characters.of(scale)
    net = training.network(name, len(text.alphabet), scale.d_model)
    params = training.train(net, text, scale, seed)
    if seed == 0:
        plots.save(plots.head_grid(measures.picture(net, params, text)), args.out / f"{name}.png")
    return {"parameters": net.num_parameters, **measures.language(net, params, text.held_out(EXAMINED))}


def translation(name: str, seed: int, scale: Scale, args: argparse.Namespace) -> dict[str, Any]:
    """Trains the demo translator for a fifth of its steps, by the commands' own trainer, and scores its test."""
    steps = 400 if scale == FULL else 4
    settings = {"steps": steps, "validate_every": steps, "checkpoint_every": steps, "tensorboard": False}
    decode = {"search": {"beam_size": 1}, "validation_sentences": 20}
    change = {"train": settings, "optimizer": {"warmup_steps": steps // 4}, "decode": decode, "seed": seed}
    if scale != FULL:
        data = {"tokens_per_batch": 512, "grammar_pairs": 2000, "vocab_size": 400, "num_shapes": 1}
        change |= {"model": {"d_model": 16, "d_ff": 16}, "data": data}
        decode |= {"max_length": 4, "validation_sentences": 1}
    config = changed(demo(), change | ({"attention": f"{FILES[name]}:attention"} if name in FILES else {}))
    folder = args.out / "runs" / f"{name}-{seed}"
    command.train(config, folder, float("inf"))
    translator = jaxformer.load(folder)
    scores = {score.name: score.value for score in next(iter(jaxformer.evaluate(folder, translator).values()))}
    parameters = sum(x.size for x in jax.tree.leaves(translator.params))
    return {"parameters": parameters, "bleu": scores["BLEU"], "chrf": scores["chrF2"]}


PARTS: dict[str, Callable[[str, int, Scale, argparse.Namespace], dict[str, Any]]] = {
    "retrieval": retrieval,
    "language": language,
    "translation": translation,
}


def tables(results: Mapping[str, Any]) -> str:
    """Returns a table for each part: the mean over the seeds, then the lowest and the highest."""
    return "\n\n".join(_table(part, records) for part, records in results["parts"].items())


def _table(part: str, records: Sequence[Mapping[str, Any]]) -> str:
    columns = COLUMNS[part]
    rows = [[part, "parameters", *(heading for _, heading, _ in columns)]]
    for name in dict.fromkeys(record["attention"] for record in records):
        mine = [record for record in records if record["attention"] == name]
        cells = [_cell([record[key] for record in mine], form, key in PERCENT) for key, _, form in columns]
        rows.append([name, f"{mine[0]['parameters']:,}", *cells])
    return table(*rows)


def _cell(values: Sequence[float], form: str, percent: bool) -> str:
    unit = "%" if percent else ""
    mean, low, high = (f"{x:{form}}{unit}" for x in (statistics.fmean(values), min(values), max(values)))
    return f"{mean} ({low} to {high})"


if __name__ == "__main__":
    command.script(main)
