"""Pre-trains a small BERT on English sentences and reports it by steps; the same command resumes.

    python -m experiments.pretraining --data-dir data --out runs/pretraining
    python -m experiments.pretraining --smoke --out runs/smoke

--data-dir holds multi30k/, tatoeba/, tinyshakespeare/, agnews/, cola/, sst2/ and trec/. The run is in OUT/run, from
which `jaxformer train classification --init-from OUT/run` starts. The smoke version needs no data and its results mean
nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
from typing import Any

import jaxformer
from experiments import command
from experiments.pretraining import english
from experiments.tables import table
from jaxformer import demo
from jaxformer.config import changed
from jaxformer.files import write_text
from jaxformer.inspection import plots
from jaxformer.training.logging import read_log

SMOKE: dict[str, Any] = {
    "model": {"d_model": 32, "num_heads": 2, "d_ff": 64, "num_layers": 1},
    "data": {"vocab_size": 400, "length": 32, "batch_size": 8, "held_out": 0.1},
    "optimizer": {"warmup_steps": 2},
    "train": {"steps": 6, "validate_every": 3, "checkpoint_every": 3, "tensorboard": False},
}
"""The changes of the smoke version."""


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser(
        "pretraining", __doc__, out="the folder of the text, the run and the report", data="the corpora"
    )
    parser.add_argument("--steps", type=command.count, help="training steps; by default those of the configuration")
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Writes the text, trains, scores and reports.

    Raises:
      ConfigError: there is no folder of corpora.
      Stopped: the time was up.
      KeyboardInterrupt: Ctrl-C has stopped the training, after it was saved.
    """
    text, config = args.out / ("smoke.txt" if args.smoke else "english.txt"), english.small()
    if args.smoke:
        config = changed(config, SMOKE)
        write_text(text, "".join(f"{pair.english}\n" for pair in demo.generate(300)))
    elif not text.exists():
        directory = command.data_directory(args.data_dir, "the corpora")
        print(f"{english.write_corpus(directory, text):,} words in {text}", flush=True)
    steps = args.steps or config.train.steps
    train = dataclasses.replace(config.train, steps=steps, minutes=args.minutes)
    config = changed(dataclasses.replace(config, train=train), {"data": {"text": str(text.resolve())}})
    result = jaxformer.train(config, args.out / "run")
    report(args.out)
    if result.reason == "interrupted":
        raise KeyboardInterrupt
    if result.reason != "done":
        raise command.Stopped(f"the training ended early ({result.reason}); the same command resumes it")


def report(out: pathlib.Path) -> None:
    """Writes and prints the validation metrics by steps, and draws the losses."""
    log = list(read_log(out / "run" / "log.jsonl"))
    plots.save(plots.loss_curves(log, title="masked tokens of English sentences"), out / "curves.png")
    rows = [
        (f"{entry['step']:,}", *(f"{entry[f'validation_{name}']:.2f}" for name in ("loss", "perplexity", "accuracy")))
        for entry in log
        if "validation_loss" in entry
    ]
    command.publish(out, table(("step", "nats per masked token", "perplexity", "accuracy"), *rows) + "\n")


if __name__ == "__main__":
    command.script(main)
