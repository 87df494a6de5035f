"""Several seeds in one compiled program: a training step of K models by vmap and by a loop, beside K separate steps.

All seeds share each batch, which is a function of its number alone; parameters and dropout differ. The programs are
compiled in one process and take turns, so that each ratio compares neighbors in time.

    python -m benchmarks.seeds                                    # 3 seeds of six models
    python -m benchmarks.seeds --seeds 8 --models transformer-tiny recurrent-tiny --out benchmarks/results/seeds.json
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import command
from benchmarks.positions import seconds
from experiments.command import count
from jaxformer import models, pure, training
from jaxformer.hardware import processor_name
from jaxformer.training.config import AdamConfig
from jaxformer.training.optimizers import make_optimizer

SIZES = {"tiny": (32, 400, 32, 12), "demo": (128, 2000, 64, 24), "small": (256, 8000, 64, 32)}
"""D, vocabulary, rows and length of a batch; a Transformer has 2 + 2 layers and F = 4 D, a recurrent network 1 + 1."""
MODELS = [f"{kind}-{size}" for size in SIZES for kind in ("transformer", "recurrent")]
WAYS = ("vmap", "loop")


def programs(name: str, num_seeds: int) -> dict[str, Callable[[], tuple[Any, Any]]]:
    """Returns one training step of all seeds: in separate programs, by vmap, and by a loop in one program."""
    kind, _, size = name.partition("-")
    width, vocab, rows, length = SIZES[size]
    if kind == "recurrent":
        net = pure(models.Seq2Seq, models.Seq2SeqConfig(vocab, vocab, cell="gru", d_model=width))
    else:
        layers = {"num_encoder_layers": 2, "num_decoder_layers": 2, "norm_position": "pre"}
        config = models.EncoderDecoderConfig(vocab, vocab, d_model=width, num_heads=4, d_ff=4 * width, **layers)
        net = pure(models.EncoderDecoder, config)
    draw = np.random.default_rng(0)
    batch = tuple(jnp.asarray(draw.integers(4, vocab, (rows, length)), jnp.int32) for _ in range(3))

    def loss(params, batch, key):
        source, target, labels = batch
        return *net.bind(params).loss(source, target, labels=labels, key=key), {}

    optimizer = make_optimizer(AdamConfig(warmup_steps=100), steps=1000)
    step = training.make_step(loss, optimizer)
    create = lambda seed: training.create(net.init, optimizer, jax.random.key(seed))
    stack = lambda: jax.tree.map(lambda *leaves: jnp.stack(leaves), *(create(seed) for seed in range(num_seeds)))
    vmapped = jax.jit(jax.vmap(step, (0, None)), donate_argnums=0)
    looped = jax.jit(lambda states, batch: jax.lax.map(lambda state: step(state, batch), states), donate_argnums=0)

    def separate(states, batch):
        new = [step(state, batch) for state in states]
        return [state for state, _ in new], [metrics for _, metrics in new]

    return {
        "separate": _repeated(separate, [create(seed) for seed in range(num_seeds)], batch),
        "vmap": _repeated(vmapped, stack(), batch),
        "loop": _repeated(looped, stack(), batch),
    }


def _repeated(step: Callable[..., tuple[Any, Any]], states: Any, batch: tuple) -> Callable[[], tuple[Any, Any]]:
    """Returns a function that takes one more step and returns the new states and their metrics."""
    kept = [states]

    def once() -> tuple[Any, Any]:
        kept[0], metrics = step(kept[0], batch)
        return kept[0], metrics

    return once


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("seeds", __doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--seeds", type=count, default=3)
    parser.add_argument("--rounds", type=count, default=9)
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Measures and prints everything that was asked for."""
    results = {}
    print(f"{processor_name()}, jax {jax.__version__}: {args.seeds} seeds relative to separate steps, and to compile")
    print(f"{'':22s}{'separate ms':>12s}" + "".join(f"{way:>24s}{'s':>6s}" for way in WAYS))
    for name in args.models:
        calls, compile_seconds, losses = programs(name, args.seeds), {}, {}
        for way, call in calls.items():
            began = time.perf_counter()
            _, metrics = call()
            losses[way] = np.ravel(
                jax.tree.leaves([m["loss_sum"] for m in metrics] if way == "separate" else metrics["loss_sum"])
            )
            compile_seconds[way] = time.perf_counter() - began
            seconds(call)
        for way in WAYS:  # the same training
            np.testing.assert_allclose(losses[way], losses["separate"], rtol=1e-4)
        times = {way: [] for way in calls}
        for turn in command.rounds(args.rounds):
            for way in list(calls)[:: -1 if turn % 2 else 1]:
                times[way].append(seconds(calls[way]))
        quartiles = functools.partial(np.quantile, q=(0.25, 0.5, 0.75))
        row = {way: quartiles(np.divide(times[way], times["separate"])).tolist() for way in WAYS}
        results[name] = {
            "separate seconds": float(np.median(times["separate"])),
            "compile seconds": compile_seconds,
            **row,
        }
        shown = "".join("{:10.2f} {:6.2f} {:6.2f}".format(*row[way]) + f"{compile_seconds[way]:6.1f}" for way in WAYS)
        print(f"{name:22s}{results[name]['separate seconds'] * 1e3:12.1f}{shown}", flush=True)
        command.write(args.out, {"seeds": args.seeds, "quartiles of ratios": results})


if __name__ == "__main__":
    command.script(main)
