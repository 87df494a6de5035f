"""``jaxformer evaluate``."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence

from jaxformer.cli.paths import local_path

EXAMPLES = """examples:
  jaxformer evaluate runs/demo
  jaxformer evaluate runs/en-de --checkpoint average --beam-size 5
  jaxformer evaluate runs/en-de --split validation --checkpoint last
"""


def main(arguments: Sequence[str]) -> int:
    """Prints the scores of a run and saves them in it."""
    parser = argparse.ArgumentParser(
        prog="jaxformer evaluate",
        description="Translates a run's test data and prints BLEU and chrF with their signatures.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run_options(parser)
    parser.add_argument("--split", choices=("test", "validation"), default="test", help="what to translate")
    known = parser.parse_args(arguments)
    from jaxformer.cli import runtime
    from jaxformer.multihost import cluster, processes
    from jaxformer.tasks.rundir import write_text

    cluster.initialize()
    task, config, translator = load(known)
    if known.data_dir:
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, directory=known.data_dir))
    scores = runtime.task(task).evaluate(known.run, config, translator, split=known.split, console=runtime.console())
    if not processes.first():
        return 0
    for name, found in scores.items():
        print(name)
        for score in found:
            print(f"  {score}")
    about = {name: [dataclasses.asdict(score) for score in found] for name, found in scores.items()}
    about["decode"] = dataclasses.asdict(translator.decode) | {"checkpoint": known.checkpoint}
    about["steps"] = list(translator.steps)
    write_text(known.run / f"scores-{known.split}-{known.checkpoint}.json", json.dumps(about, indent=2) + "\n")
    return 0


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Which run, which of its checkpoints, and how to search."""
    parser.add_argument("run", metavar="RUN", type=local_path, help="a run directory")
    parser.add_argument("--checkpoint", default="best", help="best (default), last, average, or a step")
    parser.add_argument("--beam-size", type=int, help="beam size; 1 is greedy search")
    parser.add_argument("--length-penalty", type=float, help="score = log-probability / length ** length_penalty")
    parser.add_argument("--batch-size", type=int, help="sentences searched together")
    parser.add_argument("--mesh", default="", metavar="MESH", help="device mesh; default: all share the sentences")
    parser.add_argument("--data-dir", metavar="DIR", help="where the corpora are, if not where they were in training")


def load(known: argparse.Namespace):
    """The task's name, the configuration and the translator that the options ask for."""
    from jaxformer.cli import runtime
    from jaxformer.tasks.rundir import read_config

    task, _ = read_config(known.run)
    runtime.start()
    config, translator = runtime.task(task).load(known.run, checkpoint=known.checkpoint, mesh=known.mesh)
    options = {name: getattr(known, name) for name in ("beam_size", "length_penalty", "batch_size")}
    given = {name: value for name, value in options.items() if value is not None}
    return task, config, dataclasses.replace(translator, decode=dataclasses.replace(translator.decode, **given))
