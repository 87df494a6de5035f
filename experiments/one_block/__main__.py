"""Trains one block with three masks, and without them: the abilities of each family, and what it loses.

    python -m experiments.one_block --out results
    python -m experiments.one_block --smoke --out smoke     # some steps; its results mean nothing

The same command resumes: a family whose record is in OUT/records is not trained again.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.progress import Progress

from experiments import command
from experiments.one_block import measures, training
from experiments.one_block.families import FAMILIES, Family, ModelSizes
from experiments.tables import percent, table

CONSTRUCTIONS = ("state",)


@dataclasses.dataclass(frozen=True)
class Scale:
    """The amount of work."""

    pairs: int
    held_out: int
    steps: int
    d_model: int


FULL, SMOKE = Scale(4000, 300, 600, 32), Scale(200, 20, 10, 8)
SMOKE_FAMILIES = "encoder", "decoder", "encoder-decoder"


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("one_block", __doc__, out="folder of records and results.json")
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Trains the families that have no record, and writes the results.

    Raises:
      ConfigError: `--out` has records of another amount of work.
    """
    scale = SMOKE if args.smoke else FULL
    families = [family for family in FAMILIES if not args.smoke or family.name in SMOKE_FAMILIES]
    data = training.corpus(scale.pairs, scale.held_out, CONSTRUCTIONS)
    found = []
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("steps", total=scale.steps * len(families))
        for family in families:
            path = args.out / "records" / f"{family.name.replace(' ', '-')}.json"
            make = functools.partial(measure, family, data, scale, say=lambda done: progress.advance(bar, done))
            found.append(command.record(path, scale, make))
            progress.update(bar, completed=scale.steps * len(found))
    held_out, known = data.english[: data.num_held_out], data.english[data.num_held_out :]
    mixed = np.random.default_rng(0).permuted(held_out[:, 1:], axis=1)
    truth = {
        "held-out sentences": measures.known_trigrams(held_out, known),
        "their words in any order": measures.known_trigrams(np.concatenate([held_out[:, :1], mixed], 1), known),
    }
    results = {"facts": command.facts(), "words": len(data.words), "known trigrams": truth, "families": found}
    command.write_results(args.out / "results.json", results)
    print(tables(results))


def measure(family: Family, data: training.Corpus, scale: Scale, *, say: Any) -> dict[str, Any]:
    """Trains a family and returns everything that is measured of it."""
    began = time.time()
    shape = ModelSizes(len(data.words), scale.d_model)
    net, params, value = training.train(family, shape, data, steps=scale.steps, say=say)
    source, length = data.english[: data.num_held_out], data.english.shape[1]
    record: dict[str, Any] = dataclasses.asdict(family) | {
        "scale": dataclasses.asdict(scale),
        "parameters": net.num_parameters,
        "loss": value,
        "sees": measures.sees(net, family, params).astype(int).tolist(),
    }
    if family.goal == "translation":
        translations = measures.write(net, family, params, source, length)
        record["bleu"] = measures.translation_score(translations, data)
        record["examples"] = [data.text(source[0][1:].tolist()), *measures.examples(translations, data, 1)]
    else:
        if family.goal == "masked word":
            record["between"] = measures.between(net, params, data)
        record["next"] = measures.following(net, family, params, data)
        written = measures.write(net, family, params, source, length, jax.random.key(1))
        record["known trigrams"] = measures.known_trigrams(written, data.english[data.num_held_out :])
        record["examples"] = measures.examples(written, data, 2)
    return record | {"seconds": round(time.time() - began)}


def tables(results: Mapping[str, Any]) -> str:
    """Returns the table of the families, and examples of what each of them writes."""
    head = ("family", "mask", "cross-attention", "trained on", "parameters", "loss", "masked word", "next word")
    head = (*head, "known trigrams", "BLEU", "loses")
    rows = [
        (
            record["name"],
            "causal" if record["causal"] else "none",
            "yes" if record["cross"] else "",
            record["goal"],
            f"{record['parameters']:,}",
            f"{record['loss']:.3f}",
            percent(record.get("between")),
            percent(record.get("next")),
            percent(record.get("known trigrams")),
            f"{record['bleu']:.1f}" if "bleu" in record else "",
            record["loses"],
        )
        for record in results["families"]
    ]
    written = [f"{record['name']}: {' / '.join(map(repr, record['examples']))}" for record in results["families"]]
    truth = "; ".join(f"{name} {percent(share)}" for name, share in results["known trigrams"].items())
    return f"{table(head, *rows)}\n\nknown trigrams: {truth}\n\n```text\n" + "\n".join(written) + "\n```"


if __name__ == "__main__":
    command.script(main)
