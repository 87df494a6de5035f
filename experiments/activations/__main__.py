"""Trains language models with ReLU and with GELU, and compares their losses on held-out text.

    python -m experiments.activations --data-dir data --out runs/activations    # some minutes; resumes
    python -m experiments.activations --smoke --out runs/smoke                  # tiny sizes; the results mean nothing

The models, texts and training are those of `experiments.extrapolation`, with learned positions.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from experiments import command
from experiments.extrapolation.__main__ import SMOKE, TEXTS, TRAINED, Scale, fit, losses, network, tokens
from jaxformer.models import choices
from jaxformer.tasks import comparison

FULL = Scale(3, 800, 16, 16384)
ACTIVATIONS = "relu", "gelu"


def measure(text: str, activation: str, data: pathlib.Path | None, scale: Scale) -> dict[str, Any]:
    """Trains an activation on a text with all seeds, and returns the loss of each in nats per token."""
    began, ids = time.time(), tokens(text, data)
    rest, held_out = ids[: -scale.held_out], ids[-scale.held_out - 1 :]
    net = network(choices.Learned(), int(ids.max()) + 1, activation=activation)
    starts = np.random.default_rng(7).integers(0, len(rest) - TRAINED, (scale.seeds, scale.steps, scale.rows))
    params = fit(net, jax.random.split(jax.random.key(0), scale.seeds), rest, starts, scale.steps)
    found = np.asarray(losses(net, params, held_out, TRAINED)).mean(1)
    about = {"text": text, "activation": activation, "parameters": net.num_parameters}
    return about | {"loss": found.tolist(), "seconds": time.time() - began}


def summary(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the losses as those of a sweep: for each activation, values, mean and interval by text."""
    return comparison.summary(
        [
            ({"activation": record["activation"]}, seed, {f"nats, {record['text']}": loss})
            for record in results["records"]
            for seed, loss in enumerate(record["loss"])
        ]
    )


def tables(results: Mapping[str, Any]) -> str:
    """Returns the losses as text, with the differences; a seed has the same first parameters and batches in both."""
    return f"```text\n{comparison.as_text(summary(results))}\n```"


def run(options: argparse.Namespace) -> None:
    """Trains what has no record, and writes ``results.json``, ``losses.png`` and ``report.md``.

    Raises:
      ConfigError: `--out` has records of another amount of work, or no folder of data is named.
    """
    command.end_of_call(options.minutes)  # refuses a negative number
    scale, data, records = SMOKE, None, []
    if not options.smoke:
        scale, data = FULL, command.data_directory(options.data_dir, "tinyshakespeare/input.txt")
    for number, (text, name) in enumerate(itertools.product(TEXTS, ACTIVATIONS)):
        path = options.out / "records" / f"{number}.json"
        records.append(command.record(path, scale, functools.partial(measure, text, name, data, scale)))
    results = {"facts": command.facts(), "scale": dataclasses.asdict(scale), "records": records}
    command.write_results(options.out / "results.json", results)
    comparison.draw(summary(results), options.out / "losses.png")
    command.publish(options.out, tables(results))


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("activations", __doc__, out="the folder of records and results", data="the texts")
    return command.exit_code(run, parser.parse_args(arguments))


if __name__ == "__main__":
    command.script(main)
