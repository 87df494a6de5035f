"""Summarizes the docstrings of Python's own library, and compares ROUGE with that of the text's first words.

    python -m experiments.docstrings --out runs/docstrings
    python -m experiments.docstrings --smoke --out runs/smoke       # a tiny model and four steps

A pair is the text of a docstring below its first line, and this line. Whole modules are held out. The data are those of
the Python that runs the command. The same command resumes.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import pathlib
import platform
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from typing import Any

from experiments import command
from experiments.tables import interval, table
from jaxformer.cli.evaluate import evaluate
from jaxformer.config import changed
from jaxformer.evaluation.scores import rouge
from jaxformer.tasks import registry, sweep
from jaxformer.tasks.config import TaskConfig

LEFT_OUT = {"site-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "pydoc_data"}
"""Folders of the library that are not its modules, or not in every installation."""
BODY, LINE = range(8, 121), range(3, 21)
"""The numbers of words of a text and of its first line."""
MEASURES = ("ROUGE-1", "ROUGE-2", "ROUGE-L")

Pair = tuple[str, str]


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("docstrings", __doc__, out="the folder of the data, the runs and the report")
    parser.add_argument("--minutes", type=float, default=0.0, help="the time limit of this call in minutes; 0: none")
    parser.add_argument("--seeds", type=command.count, default=3, help="trainings (default 3)")
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Writes the data, trains and scores each seed, and reports.

    Raises:
      ConfigError: `--out` has a run of other settings, or the data of another Python or of the smoke version.
      Stopped: the time was up.
    """
    command.end_of_call(args.minutes)  # refuses a negative number
    parts = split(pairs())
    if args.smoke:
        parts = {name: sorted(found, key=lambda pair: len(pair[0]))[:40] for name, found in parts.items()}
    for name, found in parts.items():
        text = "".join(f"{body}\t{line}\n" for body, line in found)
        command.write_once(args.out / "data" / f"{name}.tsv", text)

    def configure(values: Mapping[str, str], path: pathlib.Path) -> TaskConfig:
        del path
        return configuration(args.out / "data", int(values["seed"]), args.minutes, smoke=args.smoke)

    def score(path: pathlib.Path) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            evaluate([str(path)])

    trials = sweep.trials(args.out / "runs", {}, range(1 if args.smoke else args.seeds), configure)
    command.train_all(trials, score=score)
    results = {"python": platform.python_version(), "pairs": {name: len(found) for name, found in parts.items()}}
    results |= {"first words": first_words(parts), **sweep.report(trials), "facts": command.facts()}
    command.write_results(args.out / "results.json", results)
    command.publish(args.out, report(results))


def pairs() -> list[tuple[str, Pair]]:
    """Returns the module of each docstring of Python's library, and its text with its first line; each line once."""
    root, found = pathlib.Path(sysconfig.get_paths()["stdlib"]), {}
    for file in sorted(root.rglob("*.py")):
        place = file.relative_to(root)
        if LEFT_OUT.isdisjoint(place.parts):
            for text in docstrings(file.read_bytes()):
                if pair := pair_of(text):
                    found.setdefault(pair[1], (place.parts[0].removesuffix(".py"), pair))
    return list(found.values())


def docstrings(source: bytes) -> list[str]:
    """Returns the docstrings of a module, its classes and its functions."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]


def pair_of(text: str) -> Pair | None:
    r"""Returns the text of a docstring up to its first example, and its first line; None if one is too short or long.

    >>> pair_of("Return the sum.\n\nAdds all numbers, from the left to the right.\n\n>>> add(1)\n1")
    ('Adds all numbers, from the left to the right.', 'Return the sum.')
    """
    line, _, body = text.partition("\n\n")
    line, body = line.split(), body.partition(">>>")[0].split()
    return (" ".join(body), " ".join(line)) if len(line) in LINE and len(body) in BODY else None


def split(found: Sequence[tuple[str, Pair]]) -> dict[str, list[Pair]]:
    """Returns training, validation and test pairs; modules are divided by a hash of their names, so none is in two."""
    parts: dict[str, list[Pair]] = {"train": [], "validation": [], "test": []}
    for module, pair in found:
        number = hashlib.sha256(module.encode()).digest()[0] % 8
        parts[("test", "validation")[number] if number < 2 else "train"].append(pair)
    return parts


def configuration(data: pathlib.Path, seed: int, minutes: float, *, smoke: bool) -> TaskConfig:
    """Returns the settings of a training: a small encoder-decoder that stops at its best ROUGE-L."""
    files = {"source": "train.tsv", "validation_source": "validation.tsv", "test_source": "test.tsv"}
    changes: dict[str, Any] = {
        "name": "docstrings",
        "seed": seed,
        "model": {"d_model": 64, "num_heads": 4, "d_ff": 256, "dropout": 0.3},
        "data": files | {"directory": str(data.resolve()), "vocab_size": 2000, "num_shapes": 3, "max_length": 256},
        "optimizer": {"learning_rate": 3e-3, "warmup_steps": 200},
        "decode": {"validation_sentences": 100, "rouge": True, "no_repeat_ngram_size": 3},
        "train": {"steps": 2000, "validate_every": 200, "checkpoint_every": 200, "metric": "rouge_l", "keep_last": 1},
    }
    config = changed(registry.resolve("translation:tiny"), changes | {"train": changes["train"] | {"minutes": minutes}})
    if smoke:
        tiny = {"steps": 4, "validate_every": 2, "checkpoint_every": 2, "tensorboard": False}
        small = {"model": {"d_model": 8, "num_heads": 1, "d_ff": 8}, "data": {"vocab_size": 400, "num_shapes": 1}}
        decode = {"validation_sentences": 2, "search": {"beam_size": 1}, "max_length": 2}
        config = changed(config, {**small, "optimizer": {"warmup_steps": 2}, "train": tiny, "decode": decode})
    return config


def first_words(parts: Mapping[str, Sequence[Pair]]) -> dict[str, float]:
    """Returns the scores of the first words of each text, as many as a first line of the training data has."""
    lengths = sorted(len(line.split()) for _, line in parts["train"])
    number = lengths[len(lengths) // 2]
    said = [" ".join(body.split()[:number]) for body, _ in parts["test"]]
    return {score.name: score.value for score in rouge(said, [line for _, line in parts["test"]])}


def report(results: Mapping[str, Any]) -> str:
    """Returns the scores of the first words and of the models as Markdown."""
    (row,) = results["summary"]
    scores = {name.rpartition(" ")[2]: part["values"] for name, part in row["results"].items()}
    rows = [
        ("summary", *MEASURES),
        ("first words of the text", *(f"{results['first words'][name]:.2f}" for name in MEASURES)),
        (f"model, {len(scores['ROUGE-1'])} seeds", *(interval(scores[name], digits=2) for name in MEASURES)),
    ]
    counts = ", ".join(f"{number:,} {name}" for name, number in results["pairs"].items())
    return f"{table(*rows)}\n\nPython {results['python']}: {counts}; F1, {results['facts']['processor']}\n"


if __name__ == "__main__":
    command.script(main)
