"""Measures exposure bias, agreement over distance, and words that only the context translates, on the built-in grammar.

python -m experiments.exposure --run runs/demo --out results      # a run of `jaxformer demo`
python -m experiments.exposure --out results                      # trains one first, in OUT/run; resumes
python -m experiments.exposure --smoke --out results              # a tiny model; its results mean nothing
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import time
from typing import Any

import jaxformer
from experiments import command
from experiments.exposure import measures, probes, report
from jaxformer import demo
from jaxformer.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Scale:
    """The amount of work."""

    pairs: int
    """Sentences of each test part, for exposure."""
    fresh: int
    """New pairs of the grammar, in which contrasts are looked for."""


FULL, SMOKE = Scale(500, 8000), Scale(32, 300)
TINY = {
    "model": {"d_model": 16, "num_heads": 2, "d_ff": 32, "num_encoder_layers": 1, "num_decoder_layers": 1},
    "train": {"steps": 3, "validate_every": 3, "checkpoint_every": 3},
    "optimizer": {"warmup_steps": 1},
    "data": {"grammar_pairs": 2000, "vocab_size": 400, "max_length": 32, "num_shapes": 1},
    "decode": {"validation_sentences": 0, "max_ratio": 1.0, "max_extra": 8},
}


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("exposure", __doc__, out="folder of results.json and pictures")
    parser.add_argument("--run", type=pathlib.Path, help="a run of `jaxformer demo`; default: OUT/run, trained here")
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Trains where no run is given, measures, and writes results, tables and pictures."""
    trained = args.run or train(args.out / "run", TINY if args.smoke else {})
    results = measure(trained, SMOKE if args.smoke else FULL)
    command.write_results(args.out / "results.json", results)
    report.draw(results, args.out)
    print(report.tables(results))


def train(out: pathlib.Path, settings: dict[str, Any]) -> pathlib.Path:
    """Trains the demonstration's model with these settings; a finished training is not repeated.

    Raises:
      Stopped: the training did not reach its end.
    """
    command.train(jaxformer.configure("demo", **settings), out, command.end_of_call(0))
    return out


def measure(run: pathlib.Path, scale: Scale) -> dict[str, Any]:
    """Returns all results of a run.

    Raises:
      ConfigError: the run was not trained on the built-in grammar.
    """
    from rich.console import Console
    from rich.progress import Progress

    import jaxformer
    from jaxformer.tasks import registry
    from jaxformer.tasks.translation import TranslationConfig, Translator

    config = registry.read_config(run)
    if not isinstance(config, TranslationConfig) or config.data.corpus != "grammar":
        raise ConfigError(f"{run} was not trained on the built-in grammar: train one with `jaxformer demo`")
    began = time.time()
    translator: Translator = jaxformer.load(run)
    splits = demo.splits(num_train=config.data.grammar_pairs)
    test = [*splits.seen[: scale.pairs], *splits.unseen[: scale.pairs]]
    known = {pair.english for pair in splits.train}
    fresh = [pair for pair in demo.generate(scale.fresh, seed=1) if pair.english not in known]
    agreeing = probes.contrasts(fresh, probes.agreement)
    ambiguous = probes.contrasts(fresh, *probes.AMBIGUITIES)
    total = 5 * len(test) + sum(1 + len(one.wrong) for one in (*agreeing, *ambiguous))
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("sentences", total=total)
        say = lambda done: progress.advance(bar, done)
        exposure, reach = measures.exposure(translator, test, say), measures.reach(translator, test, say=say)
        agrees, knows = (measures.margins(translator, found, say) for found in (agreeing, ambiguous))
    return {
        "facts": command.facts() | {"seconds": round(time.time() - began), "steps": list(translator.steps)},
        "exposure": exposure,
        "reach": reach,
        "agreement": _agreement(agreeing, agrees),
        "ambiguities": _ambiguities(ambiguous, knows),
    }


def _agreement(found: list[probes.Contrast], margins: list[float]) -> list[dict[str, Any]]:
    """Returns the share by distance, with another noun in between or not, where there are enough sentences."""
    rows = measures.shares([(one.distance, one.attracted) for one in found], margins)
    return [
        {"distance": distance, "attracted": attracted, **row}
        for (distance, attracted), row in rows
        if row["count"] >= report.FEWEST
    ]


def _ambiguities(found: list[probes.Contrast], margins: list[float]) -> list[dict[str, Any]]:
    return [
        {"probe": name, **row, "majority": measures.majority([one for one in found if one.probe == name])}
        for name, row in measures.shares([one.probe for one in found], margins)
    ]


if __name__ == "__main__":
    command.script(main)
