"""Compares position schemes in one model: a training step and a cached decoding step, beside sinusoidal positions.

All models are compiled in one process and take turns, so that each ratio compares neighbors in time.

    python -m benchmarks.positions                                # D = 256, 3 + 3 layers
    python -m benchmarks.positions --schemes rotary alibi --rounds 15 --out benchmarks/results/positions.json
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import command
from experiments.command import count
from jaxformer import models, pure
from jaxformer.functional import Tokens
from jaxformer.hardware import processor_name
from jaxformer.models import choices

POSITIONS = {
    "sinusoidal": choices.Sinusoidal(),
    "none": None,
    "learned": choices.Learned(),
    "rotary": choices.Rotary(),
    "alibi": choices.Alibi(),
    "t5": choices.T5(),
    "relative_keys": choices.RelativeKeys(16),  # the paper's distance
    "transformer_xl": choices.TransformerXL(),
}
SCHEMES = tuple(name for name in POSITIONS if name != "sinusoidal")
VOCAB, ROWS, LENGTH, STEPS = 4000, 48, 30, 48


def programs(positions: str, width: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Returns one training step (without the optimizer) and a decoding of 16 sentences with 4 hypotheses each."""
    config = models.EncoderDecoderConfig(
        VOCAB,
        VOCAB,
        positions=POSITIONS[positions],
        norm_position="pre",
        d_model=width,
        num_heads=4,
        d_ff=4 * width,
        num_encoder_layers=3,
        num_decoder_layers=3,
    )
    net = pure(models.EncoderDecoder, config)
    params = jax.jit(net.init)(jax.random.key(0))
    draw = np.random.default_rng(0)
    source, target, labels = (jnp.asarray(draw.integers(4, VOCAB, (ROWS, LENGTH)), jnp.int32) for _ in range(3))
    source, target = (Tokens(ids, jnp.ones((ROWS, LENGTH), bool)) for ids in (source, target))

    def loss(params, key):
        return net.bind(params).loss(source, target, labels=labels, key=key)[0]

    def decode(params):
        bound = net.bind(params)
        context, state = bound.start(bound.encode(source.ids[:16]), beam_size=4, length=STEPS)

        def body(carry, _):
            logits, state = bound.step(carry[0], carry[1], context)
            return (logits.argmax(-1).astype(jnp.int32), state), None

        return jax.lax.scan(body, (jnp.ones((16, 4), jnp.int32), state), None, length=STEPS)[0][0]

    train, search = jax.jit(jax.value_and_grad(loss)), jax.jit(decode)
    return functools.partial(train, params, jax.random.key(1)), functools.partial(search, params)


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - began


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("positions", __doc__)
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=list(SCHEMES))
    parser.add_argument("--width", type=count, default=256, help="the dimension of the model")
    parser.add_argument("--rounds", type=count, default=9)
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Measures and prints everything that was asked for."""
    names = ["sinusoidal", *args.schemes]
    calls = {name: programs(name, args.width) for name in names}
    for pair in calls.values():
        for call in pair:
            seconds(call)
    results = {}
    print(f"{processor_name()}, jax {jax.__version__}, D = {args.width}: time relative to sinusoidal positions")
    print(f"{'':16s}{'training step':>28s}{'48 cached steps':>28s}")
    for name in args.schemes:
        row = {}
        for i, what in enumerate(("train", "decode")):
            base, ratios = calls["sinusoidal"][i], []
            for turn in command.rounds(args.rounds):
                first, second = (calls[name][i], base) if turn % 2 else (base, calls[name][i])
                times = seconds(first), seconds(second)
                ratios.append(times[0] / times[1] if turn % 2 else times[1] / times[0])
            row[what] = [float(x) for x in np.quantile(ratios, (0.25, 0.5, 0.75))]
        results[name] = row
        shown = (f"{low:12.3f} {middle:6.3f} {high:6.3f}  " for low, middle, high in row.values())
        print(f"{name:16s}{''.join(shown)}", flush=True)
        command.write(args.out, {"quartiles of ratios": results})


if __name__ == "__main__":
    command.script(main)
