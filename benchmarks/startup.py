"""Measures the time from process start to the end of the first training step, with an empty and a warm cache.

python -m benchmarks.startup                                        # the built-in corpus, a model of Multi30k's shape
python -m benchmarks.startup --config multi30k:en_de --data-dir /corpora --out benchmarks/results/startup.json
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from benchmarks import command
from experiments.command import count
from jaxformer.errors import JaxformerError

SIZE = (
    "--model.d_model 128 --model.d_ff 256 --model.num-heads 4 --model.num-encoder-layers 4 --model.num-decoder-layers 4"
)
SIZE += " --data.vocab-size 2000 --data.tokens-per-batch 4096 --data.num-shapes 6 --data.corpus grammar"


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("startup", __doc__)
    parser.add_argument("--config", default="translation")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--rounds", type=count, default=3)
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Measures and prints everything that was asked for."""
    settings = SIZE.split() if args.config == "translation" else ["--data-dir", args.data_dir]
    seconds: dict[str, list[float]] = {"cold": [], "warm": [], "resumed": []}
    for _ in command.rounds(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            # A new run with empty caches; another new run; the second run resumed.
            for name, run in (("cold", "a"), ("warm", "b"), ("resumed", "b")):
                elapsed = first_step(args.config, settings, root / run, root / "cache", resumed=name == "resumed")
                seconds[name].append(elapsed)
                print(f"{name}: {elapsed:.1f} s", flush=True)
                command.write(args.out, {"seconds": seconds})


def first_step(config: str, settings: Sequence[str], run: pathlib.Path, cache: pathlib.Path, *, resumed: bool) -> float:
    """Returns the seconds until the progress line of the first step of this process."""
    words = [sys.executable, "-m", "jaxformer.cli.main", "train", config, "--out", str(run), *settings]
    words += "--train.steps 1000 --train.checkpoint-every 1 --train.log-every 1".split()
    words += "--train.validate-every 0 --train.patience 0".split()
    words += ["--data.cache", str(cache / "data")]
    env = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    env["JAXFORMER_CACHE"] = str(cache)
    began = time.perf_counter()
    process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=env)
    assert process.stderr is not None
    line = ""
    try:
        for line in process.stderr:
            if line.startswith("step ") and (not resumed or not line.startswith("step 1/")):
                seconds = time.perf_counter() - began
                process.terminate()
                process.communicate()
                return seconds
    finally:
        process.kill()
    raise JaxformerError(f"the process ended before its first step: {line.strip()}")


if __name__ == "__main__":
    command.script(main)
