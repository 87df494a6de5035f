"""Trains attention, and an average of word vectors, to use two words far apart: negation, and the words of spam.

    python -m experiments.cues --out runs/cues             # a minute
    python -m experiments.cues --smoke --out runs/smoke    # tiny sizes; the results mean nothing

Every model learns the same random texts with three seeds. The same command resumes.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax

from experiments import command
from experiments.tables import interval, table
from jaxformer import models, pure
from jaxformer.functional import Tokens
from jaxformer.models import choices

START, NOT, GOOD, BAD, FREE, CLICK, WIN, CALL, NOISE, WORDS = 1, 2, 3, 4, 5, 6, 7, 8, 9, 24
LENGTH = 17
"""The first token, which is classified, and 16 words."""

Texts = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Tokens ``[B, T]``, labels, and the places of the word that asks and of the one that decides ``[B]``."""


@dataclasses.dataclass(frozen=True)
class Scale:
    """The amount of work."""

    seeds: int
    steps: int
    rows: int
    examined: int


FULL, SMOKE = Scale(3, 600, 32, 1000), Scale(1, 2, 8, 16)


def _noise(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns texts of words without a meaning, and three different places in each."""
    texts = rng.integers(NOISE, WORDS, (rows, LENGTH))
    texts[:, 0] = START
    places = 1 + rng.permuted(np.tile(np.arange(LENGTH - 1), (rows, 1)), axis=1)[:, :2]
    return texts, places


def negation(rng: np.random.Generator, rows: int) -> Texts:
    """Draws texts with "good" or "bad", which a "not" turns if it stands before it and not behind it."""
    texts, places = _noise(rng, rows)
    verdict = rng.integers(0, 2, rows)
    at = np.arange(rows)
    texts[at, places[:, 0]], texts[at, places[:, 1]] = np.where(verdict, GOOD, BAD), NOT
    return texts, verdict ^ (places[:, 1] < places[:, 0]), places[:, 0], places[:, 1]


def _pair(rng: np.random.Generator, rows: int, first: Sequence[int], second: Sequence[int]) -> tuple[Any, ...]:
    texts, places = _noise(rng, rows)
    chosen, at = rng.integers(0, 2, (rows, 2)), np.arange(rows)
    texts[at, places[:, 0]], texts[at, places[:, 1]] = np.take(second, chosen[:, 0]), np.take(first, chosen[:, 1])
    return texts, chosen, places[:, 0], places[:, 1]


def both_words(rng: np.random.Generator, rows: int) -> Texts:
    """Draws texts that are spam if they have both "free" and "click"."""
    texts, chosen, *places = _pair(rng, rows, (NOISE, FREE), (NOISE, CLICK))
    return texts, chosen.all(1).astype(int), *places


def right_pair(rng: np.random.Generator, rows: int) -> Texts:
    """Draws texts that are spam if "free" comes with "click", or "win" with "call"."""
    texts, chosen, *places = _pair(rng, rows, (FREE, WIN), (CLICK, CALL))
    return texts, (chosen[:, 0] == chosen[:, 1]).astype(int), *places


TASKS: dict[str, Callable[[np.random.Generator, int], Texts]] = {
    "a negation before the verdict": negation,
    "spam by both words": both_words,
    "spam by the right pair": right_pair,
}
_ATTENTION = {"num_layers": 1, "positions": choices.Learned(), "max_positions": LENGTH}
MODELS: dict[str, dict[str, Any]] = {
    "average": {"num_layers": 0, "positions": None, "final_norm": False},
    "attention": _ATTENTION,
    "attention without positions": _ATTENTION | {"positions": None},
}


@functools.cache  # so that the tasks share the compiled programs
def network(name: str) -> Any:
    """Returns a classifier of the mean state as pure functions; the average has a table of words and nothing else."""
    size = {"d_model": 16, "num_heads": 2, "d_ff": 32, "dropout": 0.0, "norm_position": "pre"}
    return pure(models.Classifier, models.ClassifierConfig(WORDS, num_classes=2, pooling="mean", **size | MODELS[name]))


def train(net: Any, draw: Callable[[np.random.Generator, int], Texts], scale: Scale) -> Any:
    """Returns the parameters of all seeds side by side; each seed has texts of its own."""
    batches = [[draw(rng, scale.rows)[:2] for _ in range(scale.steps)] for rng in map(_rng, range(scale.seeds))]
    tokens, labels = (np.array([[batch[i] for batch in seed] for seed in batches], np.int32) for i in (0, 1))
    return _fit(net, jax.random.split(jax.random.key(0), scale.seeds), tokens, labels)


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng((7, seed))


@functools.partial(jax.jit, static_argnums=0)
def _fit(net: Any, keys: jax.Array, tokens: jax.Array, labels: jax.Array) -> Any:
    optimizer = optax.adam(optax.cosine_decay_schedule(1e-2, tokens.shape[1]))

    def loss(params: Any, tokens: Any, labels: Any) -> jax.Array:
        logits = net.apply(params, Tokens(tokens))
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def fit(key: jax.Array, tokens: Any, labels: Any) -> Any:
        def one(carry: Any, batch: Any):
            params, state = carry
            updates, state = optimizer.update(jax.grad(loss)(params, *batch), state, params)
            return (optax.apply_updates(params, updates), state), None

        params = net.init(key)
        return jax.lax.scan(one, (params, optimizer.init(params)), (tokens, labels))[0][0]

    return jax.vmap(fit)(keys, tokens, labels)


@functools.partial(jax.jit, static_argnums=0)
def _read(net: Any, params: Any, tokens: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    """Returns the logits ``[seeds, B, 2]`` and the weights of the layer, if any, ``[seeds, B, heads, T, S]``."""

    def one(params: Any) -> Any:
        bound = net.bind(params)
        capture = () if net.config.num_layers == 0 else ("encoder.self",)
        logits, found = bound.run(Tokens(tokens), capture=capture)
        return logits, found["encoder.self"].weights()[0] if capture else None

    return jax.vmap(one)(params)


def measure(task: str, name: str, scale: Scale) -> dict[str, Any]:
    """Trains a model with all seeds and returns its accuracies on new texts, in percent.

    With attention, also the largest share among the heads of the weights from one of the two words on the other, in
    percent, where both are in a text.
    """
    net, began = network(name), time.time()
    params = train(net, TASKS[task], scale)
    tokens, labels, asks, decides = TASKS[task](np.random.default_rng(1), scale.examined)
    tokens = np.asarray(tokens, np.int32)
    logits, weights = _read(net, params, tokens)
    found = {"accuracy": (100 * (np.asarray(logits).argmax(-1) == labels).mean(1)).tolist()}
    if weights is not None:
        weights, at = np.asarray(weights), np.arange(len(tokens))
        both = (tokens[at, asks] < NOISE) & (tokens[at, decides] < NOISE)
        shares = [weights[:, at, :, a, b][both] for a, b in ((asks, decides), (decides, asks))]
        found["share"] = (100 * np.max([x.mean(0).max(-1) for x in shares], 0)).tolist()
    return {"task": task, "model": name, "parameters": net.num_parameters, **found, "seconds": time.time() - began}


def tables(results: Mapping[str, Any]) -> str:
    """Returns the table of accuracies and shares."""
    rows = [("task", "model", "parameters", "accuracy, %", "weight on the other word, %")]
    for record in results["records"]:
        share = interval(record["share"]) if "share" in record else ""
        rows.append((record["task"], record["model"], record["parameters"], interval(record["accuracy"]), share))
    return table(*rows)


def run(options: argparse.Namespace) -> None:
    """Trains what has no record, and writes ``results.json``.

    Raises:
      ConfigError: `--out` has records of another amount of work.
    """
    scale, records = SMOKE if options.smoke else FULL, []
    for number, (task, name) in enumerate(itertools.product(TASKS, MODELS)):
        path = options.out / "records" / f"{number}.json"
        records.append(command.record(path, scale, functools.partial(measure, task, name, scale)))
    results = {"facts": command.facts(), "scale": dataclasses.asdict(scale), "records": records}
    command.write_results(options.out / "results.json", results)
    command.publish(options.out, tables(results))


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("cues", __doc__, out="the folder of records, results.json and report.md")
    return command.exit_code(run, parser.parse_args(arguments))


if __name__ == "__main__":
    command.script(main)
