"""Measures the time from process start to the end of the first training step, with an empty and a warm cache.

python -m benchmarks.startup                                        # the built-in corpus, a model of Multi30k's shape
python -m benchmarks.startup --config multi30k:en_de --data-dir /corpora --out benchmarks/results/startup.json
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

SIZE = (
    "--model.d_model 128 --model.d_ff 256 --model.num-heads 4 --model.num-encoder-layers 4 --model.num-decoder-layers 4"
)
SIZE += " --data.vocab-size 2000 --data.tokens-per-batch 4096 --data.num-shapes 6 --data.corpus grammar"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="translation")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, help="JSON file for the results")
    args = parser.parse_args()
    settings = SIZE.split() if args.config == "translation" else ["--data-dir", args.data_dir]
    seconds: dict[str, list[float]] = {"cold": [], "warm": [], "resumed": []}
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            # A new run with empty caches; another new run; the second run resumed.
            for name, run in (("cold", "a"), ("warm", "b"), ("resumed", "b")):
                elapsed = first_step(args.config, settings, root / run, root / "cache", resumed=name == "resumed")
                seconds[name].append(elapsed)
                print(f"{name}: {elapsed:.1f} s", flush=True)
    if args.out:
        header = {"date": datetime.date.today().isoformat(), "cores": os.cpu_count()}
        header["command"] = "python -m benchmarks.startup " + " ".join(sys.argv[1:])
        args.out.write_text(json.dumps(header | {"seconds": seconds}, indent=1) + "\n")


def first_step(config: str, settings: Sequence[str], run: pathlib.Path, cache: pathlib.Path, *, resumed: bool) -> float:
    """Returns the seconds until the progress line of the first step of this process."""
    command = [sys.executable, "-m", "jaxformer.cli.main", "train", config, "--out", str(run), *settings]
    command += "--train.steps 1000 --train.checkpoint-every 1 --train.log-every 1 --train.validate-every 0".split()
    command += ["--data.cache", str(cache / "data")]
    env = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    env["JAXFORMER_CACHE"] = str(cache)
    began = time.perf_counter()
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=env)
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("step ") and (not resumed or not line.startswith("step 1/")):
            seconds = time.perf_counter() - began
            process.terminate()
            process.communicate()
            return seconds
    raise RuntimeError(f"the process ended before its first step:\n{''.join(lines)}")


if __name__ == "__main__":
    main()
