"""Compares the scales of initial kernels on Multi30k, and PyTorch on the same batches; the same command resumes.

    python -m experiments.initialization --data-dir data --out runs/initialization
    python -m experiments.initialization --demo --cases "pre, xavier" "pre, scaled" --out runs/initialization-demo
    python -m experiments.initialization --smoke --out runs/smoke

--data-dir holds multi30k/. The trainings of a seed read the same batches. With --torch PyTorch trains on them, too; its
training begins again if it was stopped, the others resume. With --demo the built-in translator is trained instead, by
its own schedule; it needs no data. A training that has a record is not repeated, and --minutes ends the call in time.
The smoke version needs no data and its results mean nothing.
"""

from __future__ import annotations

import argparse
import importlib
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments import command
from experiments.pictures import plt, save, tidy
from experiments.tables import interval, table
from experiments.translation import multi30k, smoke
from jaxformer.config import changed
from jaxformer.errors import ConfigError
from jaxformer.files import remove_folder
from jaxformer.tasks.translation.config import TranslationConfig, demo
from jaxformer.training.logging import read_log

TORCH = "post, pytorch"
CASES = [f"{norm}, {scale}" for norm in ("post", "pre") for scale in ("xavier", "fairseq", "scaled")]
"""The position of the norm and `model.initialization`."""
EVERY = 250
"""Steps between two validations."""
COLORS = {"xavier": "#9aa5b1", "fairseq": "#c2410c", "scaled": "#0f766e", "pytorch": "#1f2933"}


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser(
        "initialization", __doc__, out="the folder of runs, records, the picture and the report", data="multi30k"
    )
    parser.add_argument("--demo", action="store_true", help="train the model of `jaxformer demo` instead of Multi30k's")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES, metavar="CASE", help=f"of {CASES}")
    parser.add_argument("--torch", action="store_true", help="also train post-norm by PyTorch, which must be installed")
    parser.add_argument("--steps", type=command.count, default=2000, help="updates of each training (default 2000)")
    parser.add_argument("--seeds", type=command.count, default=3, help="trainings of each case (default 3)")
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Trains the cases that have no record, then reports.

    Raises:
      ConfigError: the data are not named, `--out` has records of other settings, or torch is missing.
      Stopped: the time was up.
    """
    end = command.end_of_call(args.minutes)
    if args.demo and (args.torch or args.smoke or args.data_dir):
        raise ConfigError(
            "--demo has data of its own and no training by PyTorch; leave out --torch, --smoke, --data-dir"
        )
    if args.torch:
        importlib.import_module("experiments.initialization.pytorch")  # it trains last, but the error comes at once
    directory = None
    if args.smoke:
        directory = args.out / "data"
        smoke.prepare(directory)
    elif not args.demo:
        directory = command.data_directory(args.data_dir, "multi30k")
    found: dict[str, list[Mapping[str, Any]]] = {case: [] for case in [*args.cases, *[TORCH] * args.torch]}
    try:
        for seed in range(1 if args.smoke else args.seeds):
            for case in found:
                config = configuration(case, seed, directory, args.steps)
                config = changed(config, smoke.CHANGES) if args.smoke else config
                found[case].append(record(case, config, args.out, end))
    finally:
        found = {case: records for case, records in found.items() if records}
        command.publish(args.out, report(found))
        if found:
            draw(found, args.out / "loss.png")


def configuration(case: str, seed: int, directory: pathlib.Path | None, steps: int) -> TranslationConfig:
    """Returns the configuration of a case and a seed.

    Args:
      directory: the folder of Multi30k, which has the published schedule without cooldown; None for the demo.
    """
    norm, scale = case.split(", ")
    model = {"norm_position": norm, "initialization": "fairseq" if case == TORCH else scale}
    train = {"steps": steps, "validate_every": EVERY, "checkpoint_every": EVERY, "keep_last": 1, "patience": 0}
    changes = {"name": f"initialization: {case}", "seed": seed, "model": model, "train": train}
    changes |= {"decode": {"validation_sentences": 0}}
    if directory is None:
        return changed(demo(), changes)
    changes |= {"model": model | {"attention_bias": True}, "data": {"directory": str(directory.resolve())}}
    changes |= {"optimizer": {"learning_rate": 5e-3, "warmup_steps": 2000, "cooldown": 0.0}}
    return changed(multi30k.en_de(), changes)


def record(case: str, config: TranslationConfig, out: pathlib.Path, end: float) -> dict[str, Any]:
    """Returns the validation losses of a training by steps, which is run if it has no record.

    Raises:
      ConfigError: the record is of other settings, or torch is missing.
      Stopped: the time was up.
    """
    name = f"{case.replace(', ', '-')}-{config.seed}"

    def make() -> Mapping[str, Any]:
        print(f"\n{name}", flush=True)
        if case == TORCH:
            from experiments.initialization import pytorch

            losses, seconds = pytorch.train(config, out / name, end)
        else:
            seconds = command.train(config, out / name, end)
            log = read_log(out / name / "log.jsonl")
            losses = {str(entry["step"]): entry["validation_loss"] for entry in log if "validation_loss" in entry}
        return {"losses": losses, **command.facts(), "seconds": seconds}

    found = command.record(out / "records" / f"{name}.json", config, make)
    remove_folder(out / name / "checkpoints")  # the record has everything that is reported
    return found


def report(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Returns the validation losses as Markdown: means over seeds with intervals.

    >>> record = {"losses": {"250": 4.5}, "date": "2026-01-01", "processor": "X", "jax": "1", "commit": "a"}
    >>> print(report({"post, xavier": [record, record | {"losses": {"250": 4.7}}]}))
    | validation loss after | 250 | seeds |
    |---|---|---|
    | post, xavier | 4.600 ± 1.271 | 2 |
    <BLANKLINE>
    2026-01-01, X, jax 1, commit a
    <BLANKLINE>
    """
    steps = sorted({int(step) for records in found.values() for record in records for step in record["losses"]})
    rows = [
        (case, *(interval([x["losses"][str(step)] for x in records], digits=3) for step in steps), len(records))
        for case, records in found.items()
    ]
    lines = [table(("validation loss after", *(f"{step:,}" for step in steps), "seeds"), *rows)]
    facts = {record["date"]: record for records in found.values() for record in records}
    for date, last in sorted(facts.items())[-1:]:
        lines += ["", f"{date}, {last['processor']}, jax {last['jax']}, commit {last['commit'] or 'unknown'}"]
    return "\n".join(lines) + "\n"


def draw(found: Mapping[str, Sequence[Mapping[str, Any]]], path: pathlib.Path) -> None:
    """Draws the validation losses over steps, a line for each seed; post-norm and pre-norm, if found, side by side."""
    norms = list(dict.fromkeys(case.partition(",")[0] for case in found))
    size = {"figsize": (4.5 * len(norms), 4), "sharey": True, "squeeze": False}
    figure, ((*panels,),) = plt.subplots(1, len(norms), layout="constrained", **size)
    for axes, norm in zip(panels, norms, strict=True):
        for case, records in found.items():
            place, scale = case.split(", ")
            for number, one in enumerate(records if place == norm else ()):
                steps, losses = zip(*((int(step), loss) for step, loss in one["losses"].items()), strict=True)
                label = None if number else scale
                axes.plot(steps, losses, color=COLORS[scale], linewidth=1, marker="o", markersize=2, label=label)
        axes.set_title(f"{norm}-norm", size=11)
        tidy(axes, xlabel="step")
        axes.legend(frameon=False)
    panels[0].set_ylabel("validation loss, nats a token")
    save(figure, path)


if __name__ == "__main__":
    command.script(main)
