"""Metrics that the library does not have: BLEU by length, time to equal quality, gradients by distance."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import sacrebleu
from flax import nnx
from sacrebleu.significance import PairedTest, Result

from jaxformer import functional as F
from jaxformer import modules, training
from jaxformer.files import write_text
from jaxformer.functional.recurrent import Cell
from jaxformer.modules.recurrent import CELLS
from jaxformer.tasks.translation import Translator

Row = Mapping[str, str]
"""One translated sentence with its source, reference and hypothesis."""


def bins(rows: Sequence[Row], edges: Sequence[int]) -> dict[str, list[int]]:
    """Returns the indices of the rows by the number of source words: below ``edges[0]``, from there to the next, ...

    >>> bins([{"source": "a b"}, {"source": "a"}, {"source": "a b c d"}], [2, 4])
    {'1-1': [1], '2-3': [0], '4+': [2]}
    """
    lengths = np.array([len(row["source"].split()) for row in rows])
    lower, upper = (1, *edges), (*edges, np.inf)
    names = [*(f"{a}-{b - 1}" for a, b in zip(lower[:-1], edges, strict=True)), f"{edges[-1]}+"]
    found = {
        name: np.flatnonzero((a <= lengths) & (lengths < b)).tolist()
        for name, a, b in zip(names, lower, upper, strict=True)
    }
    return {name: indices for name, indices in found.items() if indices}


def compare(systems: Mapping[str, Sequence[Row]], indices: Sequence[int], *, samples: int = 1000) -> dict[str, dict]:
    """Computes each system's BLEU on these rows, with the half width of its 95% bootstrap interval.

    Also returns the length of the translations relative to the references, and p of the difference to the first
    system, by a paired bootstrap (Koehn 2004).

    Raises:
      ValueError: the systems translated other sentences.
    """
    (first, rows), *_ = systems.items()
    references = [rows[i]["reference"] for i in indices]
    if any([some[i]["reference"] for i in indices] != references for some in systems.values()):
        raise ValueError(f"all systems must have translated the sentences of {first!r}")
    said = {name: [some[i]["hypothesis"] for i in indices] for name, some in systems.items()}
    metric = sacrebleu.BLEU()
    if len(said) == 1:  # nothing to compare with
        return {first: {"bleu": metric.corpus_score(said[first], [references]).score}}
    test = PairedTest(list(said.items()), {"BLEU": metric}, [references], test_type="bs", n_samples=samples)
    results = [result for result in test()[1]["BLEU"] if isinstance(result, Result)]
    return {
        name: {
            "bleu": result.score,
            "half width": result.ci,
            "p": result.p_value,
            "length ratio": num_words(texts) / num_words(references),
        }
        for (name, texts), result in zip(said.items(), results, strict=True)
    }


def num_words(texts: Sequence[str]) -> int:
    """Returns the number of words between spaces."""
    return sum(len(text.split()) for text in texts)


def steps_to(curve: Sequence[tuple[int, float]], level: float) -> float | None:
    """Returns the step at which a falling curve first reaches the level, between points by a line; None if never.

    >>> steps_to([(100, 5.0), (200, 3.0), (300, 2.0)], 4.0)
    150.0
    """
    before: tuple[int, float] | None = None
    for step, value in curve:
        if value <= level:
            if before is None or value == before[1]:
                return float(step)
            return before[0] + (step - before[0]) * (before[1] - level) / (before[1] - value)
        before = step, value
    return None


class StepClock(training.Hook):
    """The processor time of each step, kept in a file over restarts.

    On a shared machine, it is more informative than wall-clock time. Validations and checkpoints do not count.
    """

    def __init__(self, path: pathlib.Path):
        self._path = path
        self.seconds: list[float] = json.loads(path.read_text()) if path.exists() else []
        self._since: float | None = None

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        now = time.process_time()
        if self._since is not None:
            self.seconds.append(now - self._since)
        self._since = now

    def validated(self, step: int, metrics: Mapping[str, float], better: bool) -> None:
        self._since = None

    def saved(self, step: int, directory: os.PathLike[str]) -> None:
        self._since = None
        write_text(self._path, json.dumps(self.seconds))

    def ended(self, step: int, reason: str) -> None:
        write_text(self._path, json.dumps(self.seconds))

    @property
    def median(self) -> float:
        """The median of all steps, which compilations do not reach."""
        return float(np.median(self.seconds))


def gradient_norms(cell: Cell, weights: F.RecurrentWeights, x: jax.Array, key: jax.Array) -> np.ndarray:
    """Computes how far a gradient reaches: the norm of the last state's gradient at each input, by distance.

    The gradient is that of ``u . h_T`` for a random unit vector u of each row; norms are means over the rows of
    ``x [B, T, D]``. Element d of the result ``[T]`` belongs to the input d steps before the last one.
    """
    return np.asarray(_gradient_norms(cell, weights, x, key))


@functools.partial(jax.jit, static_argnums=0)
def _gradient_norms(cell: Cell, weights: F.RecurrentWeights, x: jax.Array, key: jax.Array) -> jax.Array:
    u = jax.random.normal(key, (len(x), weights.hidden.shape[0]))
    u = u / jnp.linalg.norm(u, axis=-1, keepdims=True)
    gradient = jax.grad(lambda x: (F.recurrent(cell, x, weights)[1].hidden * u).sum())(x)
    return jnp.linalg.norm(gradient, axis=-1).mean(0)[::-1]


def initial_gradient_norms(
    size: int, length: int, *, seeds: Sequence[int], batch: int = 16
) -> dict[str, list[list[float]]]:
    """Returns `gradient_norms` of each kind of cell as the library initializes it, for each seed, on normal inputs."""
    found: dict[str, list[list[float]]] = {}
    for name in CELLS:
        for seed in seeds:
            layer = modules.Recurrent(size, size, cell=name, rngs=nnx.Rngs(seed))
            keys = jax.random.split(jax.random.key(seed))
            x = jax.random.normal(keys[0], (batch, length, size))
            norms = gradient_norms(layer.cell, layer.weights, x, keys[1])
            found.setdefault(name, []).append(norms.tolist())
    return found


def trained_gradient_norms(translator: Translator, sentences: Sequence[str], length: int) -> list[float]:
    """Returns `gradient_norms` of a recurrent encoder's forward direction, on the beginnings of long sentences.

    Args:
      length: tokens of each beginning, at most as many as the longest sentence has.
    """
    tokens = translator.tokenizer.encode(list(sentences))
    length = min(length, max(map(len, tokens)))
    rows = np.stack([ids[:length] for ids in tokens if len(ids) >= length][:32])
    net: Any = translator.net.bind(translator.params)
    layer = net.encoder.layers["0"]["forward"]
    return gradient_norms(
        layer.cell, layer.weights, net.embeddings(F.Tokens(jnp.asarray(rows))), jax.random.key(0)
    ).tolist()
