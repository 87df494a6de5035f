"""Ranks the training pairs of Multi30k by a model's losses and gradients, without rules about text.

    python -m experiments.data_ranking --data-dir data --out runs/data-ranking
    python -m experiments.data_ranking --smoke --out runs/smoke       # half a minute, on the built-in corpus

A small translator is trained. Then each training pair gets its loss and its gradient, and the pairs are
ranked by four scores. The same command resumes either part.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.progress import track

import jaxformer
from experiments import command
from experiments.translation import multi30k
from jaxformer import demo, functional
from jaxformer.config import changed
from jaxformer.data.batch import Batch
from jaxformer.data.batch_plan import make_batch_plan
from jaxformer.data.pipeline import PlannedPairs
from jaxformer.errors import DataError
from jaxformer.files import replacing, write_text
from jaxformer.models.config import EncoderDecoderConfig
from jaxformer.tasks import registry
from jaxformer.tasks.translation import TranslationConfig
from jaxformer.training.config import AdamConfig

SCORES = {
    "loss": "nats per target token",
    "loss of the sentence": "nats",
    "self-influence": "squared norm of the gradient of the mean loss: how much a step on the pair lowers its loss",
    "influence": "minus its product with the gradient of the validation loss: how much a step on the pair raises that",
}
MULTI30K_PLACEHOLDERS = (16510, 16664)
"""The lines of the training part, counted from 1, whose German is a placeholder. No score knows them."""
ROWS_OF_A_PART = 1500
"""The pairs that are ranked between two saves."""


def training_config(directory: str) -> TranslationConfig:
    """Returns Multi30k's configuration with a smaller model and 500 steps."""
    config = dataclasses.replace(
        multi30k.en_de(),
        name="data ranking",
        model=EncoderDecoderConfig(
            d_model=64,
            num_heads=4,
            d_ff=128,
            num_encoder_layers=1,
            num_decoder_layers=1,
            dropout=0.1,
            norm_position="pre",
        ),
        optimizer=AdamConfig(learning_rate=1e-2, warmup_steps=100, cooldown=0.3),
    )
    train = {"steps": 500, "validate_every": 250, "checkpoint_every": 125, "keep_last": 1, "tensorboard": False}
    data = {"directory": directory, "tokens_per_batch": 2048, "vocab_size": 4000, "num_shapes": 3}
    return changed(config, {"train": train, "data": data, "decode": {"validation_sentences": 0}})


def smoke_config(folder: pathlib.Path) -> tuple[TranslationConfig, tuple[int, ...]]:
    """Writes a corpus of the built-in grammar with two placeholders; returns a tiny configuration and their lines."""
    pairs, lines = demo.generate(900), (211, 503)
    french = [pair.french for pair in pairs]
    for line in lines:
        french[line - 1] = "@@"
    files = {"train": (0, 800), "val": (800, 850), "test_2016": (850, 900)}
    for name, (start, stop) in files.items():
        for side, text in (("en", [pair.english for pair in pairs]), ("de", french)):
            write_text(folder / "multi30k" / f"{name}.{side}", "".join(f"{line}\n" for line in text[start:stop]))
    train = {"steps": 150, "validate_every": 150, "checkpoint_every": 150}
    sizes = {
        "data": {"vocab_size": 500, "num_shapes": 1, "max_length": 64},
        "train": train,
        "model": {"d_model": 32, "d_ff": 64},
        "optimizer": {"learning_rate": 1e-2, "warmup_steps": 20},
    }
    return changed(training_config(str(folder)), sizes), lines


@functools.partial(jax.jit, static_argnums=0)
def scores_of(loss: Any, params: Any, good: Any, batch: Batch) -> jax.Array:
    """Returns ``[B, 4]``, the `SCORES` of each pair; `good` is the mean gradient of pairs that are trusted."""
    gradients, (sums, counts) = functional.per_example_gradients(loss, params, batch)
    length = jnp.where(counts > 0, counts, 1.0)
    rows = jax.tree.map(lambda leaf: leaf.reshape(len(sums), -1), gradients)
    square = sum(jnp.square(leaf).sum(1) for leaf in jax.tree.leaves(rows)) / length**2
    product = sum(jax.tree.leaves(jax.tree.map(lambda leaf, mean: leaf @ mean.reshape(-1), rows, good))) / length
    return jnp.stack([sums / length, sums, square, -product], 1)


class Ranking:
    """A trained translator, and the scores of the pairs that it was trained on."""

    def __init__(self, config: TranslationConfig, run: pathlib.Path):
        """Reads the run and its corpus.

        Raises:
          DataError: a pair was left out, so that the lines of the others are not known.
        """
        translator: Any = jaxformer.load(run)
        self.params, self.steps = translator.params, translator.steps
        self.corpus = registry.task_of(config).read(config)
        train = self.corpus.train.load()
        if skipped := [*train.empty, *train.overlong]:
            raise DataError(f"lines are counted, so none may be left out, but these are: {skipped[:5]}")
        data: Any = registry.task_of(config).prepare(config, self.corpus, run)
        tokens = data.train.tokens
        network = registry.task_of(config).network(config, data.vocabulary.vocab_size, functional.attention)
        self.loss = lambda params, batch: network.validation_sums(params, batch)[:2]
        self.num_parameters = network.num_parameters
        self._batches = functools.partial(data.validation_batches, np.arange)
        # Few pairs at a time: each has a gradient as large as the model.
        budget = {"tokens_per_batch": 512, "multiple_of": 1}
        budget |= {"max_length": config.data.max_length, "num_shapes": config.data.num_shapes}
        self.pairs = PlannedPairs(tokens, make_batch_plan(*tokens.lengths(), **budget, shuffle=False))

    def validation(self) -> tuple[float, Any]:
        """Returns the mean loss of the validation pairs, and its gradient."""
        step = jax.jit(jax.value_and_grad(self.loss, has_aux=True))
        total, count, gradient = 0.0, 0.0, jax.tree.map(jnp.zeros_like, self.params)
        for batch in self._batches():
            (part, number), own = step(self.params, batch)
            total, count, gradient = total + part, count + number, jax.tree.map(jnp.add, gradient, own)
        return float(total / count), jax.tree.map(lambda leaf: leaf / count, gradient)

    def scores(self, folder: pathlib.Path, good: Any) -> tuple[np.ndarray, float]:
        """Returns ``[pairs, 4]``, NaN for pairs that are too long, and the seconds that it took in all calls.

        Each part is saved in `folder`.
        """
        seconds = 0.0
        result = np.full((len(self.pairs.tokens), len(SCORES)), np.nan)
        rows = max(rows for rows, _, _ in self.pairs.plan.shapes)
        starts = range(0, self.pairs.steps_per_epoch, size := max(1, ROWS_OF_A_PART // rows))
        folder.mkdir(parents=True, exist_ok=True)
        for start in track(starts, "pairs", total=len(starts)):
            path = folder / f"{start:06d}.npz"
            if not path.exists():
                began = time.perf_counter()
                steps = range(start, min(start + size, self.pairs.steps_per_epoch))
                scores = np.concatenate([self._scores(step, good) for step in steps])
                with replacing(path) as temporary, temporary.open("wb") as file:
                    np.savez(file, scores=scores, seconds=time.perf_counter() - began)
            with np.load(path) as part:
                scores, seconds = part["scores"], seconds + float(part["seconds"])
            result[scores[:, 0].astype(int)] = scores[:, 1:]
        return result, seconds

    def _scores(self, step: int, good: Any) -> np.ndarray:
        """Returns the index and the scores of each pair of a batch."""
        (_, pairs, _), batch = self.pairs.plan.batch(step), self.pairs.batch(step)
        return np.column_stack([pairs, scores_of(self.loss, self.params, good, batch)[: len(pairs)]])


def ranked(scores: np.ndarray) -> np.ndarray:
    """Returns the lines, counted from 1, with the largest score first; equal ones in their order, NaN last."""
    return np.argsort(-scores, kind="stable") + 1


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("data_ranking", __doc__, out="the folder of the run and its results")
    parser.add_argument("--data-dir", default="", help="the folder that holds multi30k; default: JAXFORMER_DATA")
    parser.add_argument("--first", type=command.count, default=100, help="the number of pairs to look at")
    return command.exit_code(run, parser.parse_args(arguments))


def run(options: argparse.Namespace) -> None:
    """Trains, ranks, and writes ``results.json`` and ``first.tsv``.

    Raises:
      Stopped: the training was stopped before its last step.
      KeyboardInterrupt: Ctrl-C has stopped it, after it was saved.
    """
    config, lines = training_config(options.data_dir), MULTI30K_PLACEHOLDERS
    if options.smoke:
        config, lines = smoke_config(options.out)
    training_seconds = command.train(config, options.out / "run", command.end_of_call(0))
    began = time.perf_counter()
    ranking = Ranking(config, options.out / "run")
    loss, good = ranking.validation()
    preparing = time.perf_counter() - began
    scores, seconds = ranking.scores(options.out / "run" / "parts", good)  # there, so that another training has others
    orders = {name: ranked(scores[:, i]) for i, name in enumerate(SCORES)}
    rank = lambda order, line: int(np.flatnonzero(order == line)[0]) + 1
    ranks = {name: {str(line): rank(order, line) for line in lines} for name, order in orders.items()}
    results = {
        "facts": command.facts(),
        "model": {"parameters": ranking.num_parameters, "steps": list(ranking.steps), "validation loss": loss},
        "seconds": {"training": training_seconds, "ranking": preparing + seconds},
        "pairs": len(scores),
        "left out": int(np.isnan(scores[:, 0]).sum()),
        "ranks of the placeholders": ranks,
        "first lines": {name: order[: options.first].tolist() for name, order in orders.items()},
    }
    command.write_results(options.out / "results.json", results)
    write_text(options.out / "first.tsv", _shown(ranking.corpus.train.load(), orders, scores, options.first))
    print(f"{len(scores):,} pairs, validation loss {loss:.3f}; lines of placeholders and their ranks:")
    for name in SCORES:
        print(f"  {name:22}" + ", ".join(f"{line}: {rank:,}" for line, rank in ranks[name].items()))
    print(f"the first {options.first} of each: {options.out / 'first.tsv'}")


def _shown(pairs: Any, orders: Mapping[str, np.ndarray], scores: np.ndarray, number: int) -> str:
    """Returns a table of the first pairs of each ranking, to be read by a person."""
    rows = ["ranking\trank\tline\tfigure\tsource\ttarget"]
    for i, (name, order) in enumerate(orders.items()):
        for rank, line in enumerate(order[:number], 1):
            text = f"{pairs.source[line - 1]}\t{pairs.target[line - 1]}"
            rows.append(f"{name}\t{rank}\t{line}\t{scores[line - 1, i]:.4f}\t{text}")
    return "".join(f"{row}\n" for row in rows)


if __name__ == "__main__":
    command.script(main)
