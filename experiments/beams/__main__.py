"""Trains small translators on Multi30k, and compares greedy search with beams of 1 to 32: BLEU, length and time.

    python -m experiments.beams --data-dir data --out runs/beams      # fifteen minutes on two free cores; resumes
    python -m experiments.beams --smoke --out runs/smoke              # a tiny model of the grammar; means nothing

The data are those of `jaxformer data fetch multi30k`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jaxformer
from experiments import command
from experiments.exposure.__main__ import TINY
from experiments.pictures import plt, save, tidy
from experiments.tables import interval, table
from experiments.translation import multi30k
from jaxformer.config import changed
from jaxformer.evaluation.scores import bleu
from jaxformer.tasks import registry, sweep
from jaxformer.tasks.config import TaskConfig
from jaxformer.tasks.translation import Beam, TranslationConfig, Translator
from jaxformer.tasks.translation.corpora import load_corpora

MODEL = {"d_model": 64, "d_ff": 128, "num_encoder_layers": 2, "num_decoder_layers": 2, "dropout": 0.1}


@dataclasses.dataclass(frozen=True)
class Scale:
    """The amount of work."""

    seeds: int
    steps: int
    beams: tuple[int, ...]
    penalties: tuple[float, ...]
    """The exponents of length normalization; 0 for sums of log-probabilities."""
    sentences: int


FULL, SMOKE = Scale(3, 3000, (1, 2, 4, 8, 16, 32), (1.0, 0.0), 1000), Scale(1, 3, (1, 2), (1.0, 0.0), 4)


def configuration(seed: int, scale: Scale, data: pathlib.Path | None) -> TaskConfig:
    """Returns a small model of Multi30k, English to German; without data, a tiny one of the grammar."""
    if data is None:
        return changed(registry.resolve("demo"), TINY | {"seed": seed})
    settings = {
        "seed": seed,
        "model": MODEL,
        "data": {"directory": str(data.resolve()), "vocab_size": 3000, "tokens_per_batch": 1024, "num_shapes": 3},
        "optimizer": {"learning_rate": 4e-3, "warmup_steps": 400, "cooldown": 0.5},
        "train": {"steps": scale.steps, "validate_every": 1000, "checkpoint_every": 500, "keep_last": 1, "patience": 0},
        "decode": {"validation_sentences": 0},
    }
    return changed(multi30k.en_de(), settings)


def measure(path: pathlib.Path, scale: Scale) -> dict[str, Any]:
    """Returns BLEU, length and time of each search on the test sentences."""
    config, translator = registry.read_config(path), jaxformer.load(path)
    assert isinstance(config, TranslationConfig)
    assert isinstance(translator, Translator)
    pairs = next(iter(load_corpora(config.data).tests.values())).load()
    source, target = pairs.source[: scale.sentences], pairs.target[: scale.sentences]
    rows = []
    for penalty in scale.penalties:
        for beam in scale.beams:
            search = Beam(beam_size=beam, length_penalty=penalty, normalization="tokens")
            decode = dataclasses.replace(translator.decode, search=search)
            rows.append({"penalty": penalty, "beam": beam, **_searched(translator, decode, source, target)})
    return {"sentences": len(source), "steps": list(translator.steps), "rows": rows}


def _searched(translator: Translator, decode: Any, source: Sequence[str], target: Sequence[str]) -> dict[str, float]:
    """Returns BLEU, the words of the translations relative to the references, and the processor's seconds."""
    searcher = dataclasses.replace(translator, decode=decode)
    searcher.translate(source)  # compiles
    began = time.process_time()
    found = searcher.translate(source)
    seconds = time.process_time() - began
    count = lambda texts: sum(len(text.split()) for text in texts)
    return {"bleu": bleu(found, target).value, "length": 100 * count(found) / count(target), "seconds": seconds}


def tables(results: Mapping[str, Any]) -> str:
    """Returns the table of searches."""
    heading = ("length normalization", "beam", "BLEU", "length, % of the references", "processor, s")
    rows: list[tuple[object, ...]] = [heading]
    for cells in zip(*(record["rows"] for record in results["records"]), strict=True):
        shown = [interval([cell[name] for cell in cells]) for name in ("bleu", "length", "seconds")]
        rows.append(("no" if not cells[0]["penalty"] else "yes", cells[0]["beam"], *shown))
    return table(*rows)


def draw(results: Mapping[str, Any], path: pathlib.Path) -> None:
    """Draws BLEU and time by the width of the beam, for each seed."""
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), constrained_layout=True)
    for record in results["records"]:
        for penalty, color in zip(results["scale"]["penalties"], ("tab:blue", "tab:orange"), strict=True):
            rows = [row for row in record["rows"] if row["penalty"] == penalty]
            label = ("by length" if penalty else "sums") if record is results["records"][0] else None
            for axes, name in zip(panels, ("bleu", "seconds"), strict=True):
                axes.plot([x["beam"] for x in rows], [x[name] for x in rows], ".-", color=color, label=label, alpha=0.8)
    for axes, name in zip(panels, ("BLEU", "seconds of the processor, 1,000 sentences"), strict=True):
        axes.set_xscale("log", base=2)
        tidy(axes, xlabel="beam", ylabel=name)
    panels[1].set_yscale("log", base=2)
    panels[0].legend(frameon=False, title="scores")
    save(figure, path)


def run(options: argparse.Namespace) -> None:
    """Trains and measures what has no record, and writes ``results.json``, ``beams.png`` and ``report.md``.

    Raises:
      ConfigError: `--out` has records or runs of another amount of work, or no folder of data is named.
      Stopped: the time was up.
    """
    command.end_of_call(options.minutes)  # refuses a negative number
    scale, data = SMOKE, None
    if not options.smoke:
        scale, data = FULL, command.data_directory(options.data_dir, "multi30k/train.en")

    def configure(values: Mapping[str, str], path: pathlib.Path) -> TaskConfig:
        del path
        config = configuration(int(values["seed"]), scale, data)
        return changed(config, {"train": {"minutes": options.minutes}})

    trials = sweep.trials(options.out / "runs", {}, range(scale.seeds), configure)
    command.train_all(trials)
    records = []
    for trial in trials:
        path = options.out / "records" / f"{trial.config.seed}.json"
        records.append(command.record(path, scale, functools.partial(measure, trial.path, scale)))
    results = {"facts": command.facts(), "scale": dataclasses.asdict(scale), "records": records}
    command.write_results(options.out / "results.json", results)
    draw(results, options.out / "beams.png")
    command.publish(options.out, tables(results))


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("beams", __doc__, out="the folder of runs, records and results", data="Multi30k")
    return command.exit_code(run, parser.parse_args(arguments))


if __name__ == "__main__":
    command.script(main)
