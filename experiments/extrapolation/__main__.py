"""Trains language models on windows of 32 tokens with every position scheme, and tests them on windows of 32 to 512.

    python -m experiments.extrapolation --data-dir data --out runs/extrapolation   # ten minutes on two free cores
    python -m experiments.extrapolation --smoke --out runs/smoke             # tiny sizes; the results mean nothing

The texts are the words of the built-in grammar, whose sentences do not depend on each other, and the characters of
tinyshakespeare (`data/tinyshakespeare/input.txt`). Each scheme learns both with three seeds. The same command resumes.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax

from experiments import command
from experiments.pictures import plt, save, tidy
from experiments.tables import interval, table
from jaxformer import demo, models, pure
from jaxformer.data.lines import read_utf8
from jaxformer.models import choices

TRAINED, TESTED = 32, (32, 64, 128, 256, 512)
BIN = 16
"""The positions whose losses are averaged in the picture."""


@dataclasses.dataclass(frozen=True)
class Scale:
    """The amount of work."""

    seeds: int
    steps: int
    rows: int
    held_out: int
    """Tokens at the end of a text, a multiple of the longest window."""
    lengths: tuple[int, ...] = TESTED
    """The tokens of the windows of the test."""


FULL, SMOKE = Scale(3, 1200, 16, 16384), Scale(1, 2, 4, 256, (32, 64))

SCHEMES: dict[str, Any] = {
    "none": None,
    "sinusoidal": choices.Sinusoidal(),
    "learned": choices.Learned(),
    "raw": choices.Raw(),
    "rotary": choices.Rotary(),
    "alibi": choices.Alibi(),
    "t5, to distance 32": choices.T5(max_distance=32),
    "relative keys, to distance 16": choices.RelativeKeys(max_distance=16),
    "transformer_xl": choices.TransformerXL(),
}
SMOKED = "none", "rotary"
SCALED = "rotary, then YaRN"
"""The rotary models with frequencies scaled to the length of the test, without further training."""
TEXTS = "words of the grammar", "characters"


@functools.cache
def tokens(text: str, data: pathlib.Path | None) -> np.ndarray:
    """Returns a text as numbers; without data, the characters are those of the grammar."""
    if text == TEXTS[0]:
        pairs = demo.generate(20_000)
        parts = [word for pair in pairs for word in (*demo.words(pair.english), "\n")]
    else:
        parts = list(read_utf8(data / "tinyshakespeare/input.txt")) if data else list(demo.text(2000))
    numbers = {part: number for number, part in enumerate(sorted(set(parts)))}
    return np.array([numbers[part] for part in parts], np.int32)


def network(scheme: Any, vocab_size: int, **changes: Any) -> Any:
    """Returns a language model as pure functions."""
    size = {"num_layers": 2, "d_model": 32, "num_heads": 2, "d_ff": 64, "dropout": 0.0, "max_positions": TESTED[-1]}
    scale = None if isinstance(scheme, choices.Sinusoidal) else 1.0
    config = models.LanguageModelConfig(vocab_size, positions=scheme, embedding_scale=scale, **size, **changes)
    return pure(models.LanguageModel, config)


@functools.partial(jax.jit, static_argnums=(0, 4))
def fit(net: Any, keys: jax.Array, ids: jax.Array, starts: jax.Array, steps: int) -> Any:
    """Returns the parameters of all seeds side by side, from the starts of windows ``[seeds, steps, rows]``."""
    optimizer = optax.adam(optax.warmup_cosine_decay_schedule(0.0, 5e-3, min(50, steps), steps + 1))

    def loss(params: Any, windows: jax.Array) -> jax.Array:
        logits = net.apply(params, windows[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, windows[:, 1:]).mean()

    def one(key: jax.Array, starts: jax.Array) -> Any:
        def step(carry: Any, begin: jax.Array):
            params, state = carry
            windows = ids[begin[:, None] + np.arange(TRAINED + 1)[None]]
            updates, state = optimizer.update(jax.grad(loss)(params, windows), state, params)
            return (optax.apply_updates(params, updates), state), None

        params = net.init(key)
        return jax.lax.scan(step, (params, optimizer.init(params)), starts)[0][0]

    return jax.vmap(one)(keys, starts)


@functools.partial(jax.jit, static_argnums=(0, 3))
def losses(net: Any, params: Any, ids: jax.Array, length: int) -> jax.Array:
    """Returns the mean loss at each position of all windows of a text, ``[seeds, length]``."""
    windows, labels = ids[:-1].reshape(-1, length), ids[1:].reshape(-1, length)

    def one(params: Any) -> jax.Array:
        def rows(both: tuple[jax.Array, jax.Array]) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(net.apply(params, both[0][None]), both[1][None])[0]

        return jax.lax.map(rows, (windows, labels), batch_size=max(1, 2048 // length)).mean(0)

    return jax.lax.map(one, params)


def measure(text: str, name: str, data: pathlib.Path | None, scale: Scale) -> dict[str, Any]:
    """Trains a scheme on a text with all seeds, and returns its losses in nats per token by length."""
    began, ids = time.time(), tokens(text, data)
    size, held_out = int(ids.max()) + 1, ids[-scale.held_out - 1 :]
    rest, net = ids[: -scale.held_out], network(SCHEMES[name], size)
    starts = np.random.default_rng(7).integers(0, len(rest) - TRAINED, (scale.seeds, scale.steps, scale.rows))
    params = fit(net, jax.random.split(jax.random.key(0), scale.seeds), rest, starts, scale.steps)
    found = {
        "text": text,
        "scheme": name,
        "parameters": net.num_parameters,
        **_tested(net, params, held_out, scale.lengths),
    }
    if name == "rotary":
        for length in scale.lengths[1:]:
            scaling = choices.YaRNScaling(factor=length / TRAINED, trained_length=TRAINED)
            other = _tested(network(choices.Rotary(scaling=scaling), size), params, held_out, (length,))
            found.setdefault(SCALED, {}).update(other["loss"])
    return found | {"seconds": time.time() - began}


def _tested(net: Any, params: Any, held_out: np.ndarray, lengths: Sequence[int]) -> dict[str, Any]:
    """Returns the mean loss of each seed by length and, for the longest, the mean over seeds by position."""
    by_length = {length: np.asarray(losses(net, params, held_out, length)) for length in lengths}
    longest = by_length[max(by_length)].mean(0)
    return {
        "loss": {str(length): found.mean(1).tolist() for length, found in by_length.items()},
        "by position": longest.reshape(-1, BIN).mean(1).tolist(),
    }


def tables(results: Mapping[str, Any]) -> str:
    """Returns a table of losses for each text, a row for each scheme."""
    parts = []
    for text in TEXTS:
        lengths = results["scale"]["lengths"]
        rows = [("positions", "parameters", *map(str, lengths))]
        for record in (record for record in results["records"] if record["text"] == text):
            every = [(record["scheme"], record["loss"])]
            if SCALED in record:
                every.append((SCALED, {str(TRAINED): record["loss"][str(TRAINED)], **record[SCALED]}))
            for name, loss in every:
                shown = [interval(loss[str(length)], digits=2) for length in lengths]
                rows.append((name, record["parameters"], *shown))
        parts.append(f"Nats for each of the {text}:\n\n{table(*rows)}")
    return "\n\n".join(parts)


def draw(results: Mapping[str, Any], path: pathlib.Path) -> None:
    """Draws the loss by the position in windows of 512 tokens."""
    figure, panels = plt.subplots(1, 2, figsize=(11.5, 4), constrained_layout=True)
    for axes, text in zip(panels, TEXTS, strict=True):
        records = [record for record in results["records"] if record["text"] == text]
        for number, record in enumerate(records):
            values = record["by position"]
            style = ("-", "--")[number % 2]
            axes.plot(BIN * (0.5 + np.arange(len(values))), values, style, label=record["scheme"])
        axes.axvline(TRAINED, color="gray", lw=0.8, ls=":")
        lowest = min(min(record["by position"]) for record in records)
        axes.set_ylim(lowest - 0.1, 1.8 * lowest)
        axes.set_xscale("log", base=2)
        tidy(axes, title=text, xlabel="position (dotted: trained to here)", ylabel="nats")
    panels[1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    save(figure, path)


def run(options: argparse.Namespace) -> None:
    """Trains what has no record, and writes ``results.json``, ``positions.png`` and ``report.md``.

    Raises:
      ConfigError: `--out` has records of another amount of work, or no folder of data is named.
      Stopped: the time was up.
    """
    end = command.end_of_call(options.minutes)
    scale, data = SMOKE, None
    if not options.smoke:
        scale, data = FULL, command.data_directory(options.data_dir, "tinyshakespeare/input.txt")
    records = []
    for number, (name, text) in enumerate(itertools.product(SMOKED if options.smoke else SCHEMES, TEXTS)):
        path = options.out / "records" / f"{number}.json"
        if not path.exists() and time.monotonic() > end:
            raise command.Stopped(f"the time is up before {name}; the same command resumes there")
        records.append(command.record(path, scale, functools.partial(measure, text, name, data, scale)))
    results = {"facts": command.facts(), "scale": dataclasses.asdict(scale), "records": records}
    command.write_results(options.out / "results.json", results)
    draw(results, options.out / "positions.png")
    command.publish(options.out, tables(results))


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("extrapolation", __doc__, out="the folder of records and results", data="the texts")
    return command.exit_code(run, parser.parse_args(arguments))


if __name__ == "__main__":
    command.script(main)
