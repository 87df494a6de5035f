"""Starting the real program, as its users would."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]
LAUNCH = ROOT / "launch"
STARTED: list[subprocess.Popen] = []
JAXFORMER = [sys.executable, "-m", "jaxformer.cli.main"]
SETTINGS = (
    "--model.d_model 16 --model.num-heads 2 --model.d_ff 32 --model.num-encoder-layers 1 --model.num-decoder-layers 1 "
    "--model.dropout 0.1 --data.vocab-size 400 --data.tokens-per-batch 512 --data.num-shapes 1 --train.steps 40 "
    "--train.validate-every 20 --train.checkpoint-every 10 --decode.validation-sentences 0 --optimizer.warmup_steps 10"
).split()


def environment(folder, **more):
    """Of a process of this source tree, with its caches in a folder, that no launcher has touched."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("JAX", "SLURM", "XLA"))}
    ours = {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}
    return {**clean, **ours, **more}


def train(out, *more):
    return [*JAXFORMER, "train", "demo", "--out", str(out), *SETTINGS, *more]


def start(folder, command, **more):
    environment_ = environment(folder, **more)
    process = subprocess.Popen(command, cwd=folder, env=environment_, stdout=-1, stderr=subprocess.STDOUT, text=True)
    STARTED.append(process)
    return process


def kill_all():
    """What a test that failed has left, and what that has started."""
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            for pid in [*children(process), process.pid]:
                os.kill(pid, signal.SIGKILL)
            process.communicate()


def local(folder, out, *options, **more):
    """`launch/local.py` training into a run directory."""
    return start(folder, [sys.executable, LAUNCH / "local.py", *options, "--", *train(out)], **more)


def finish(process, timeout=200):
    """Exit code, output, and seconds from now."""
    began = time.monotonic()
    said, _ = process.communicate(timeout=timeout)
    return process.returncode, said, time.monotonic() - began


def until(condition, timeout=120):
    """Waits for something to become true, and fails if it does not."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def losses(run):
    """Every step's line of a log, as it was written."""
    path = run / "log.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [line for line in lines if line.endswith("}") and "loss" in json.loads(line)]


def children(process):
    """Process ids of what a process started."""
    return [int(pid) for pid in pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def python_with(module):
    """A Python that has a module: this one, or one of JAXFORMER_PYTHONS (paths, by colons); else skips."""
    for python in [sys.executable, *filter(None, os.environ.get("JAXFORMER_PYTHONS", "").split(":"))]:
        found = f"import importlib.util as u, sys; sys.exit(u.find_spec('{module}') is None)"
        if subprocess.run([python, "-c", found], check=False, timeout=60).returncode == 0:
            return python
    pytest.skip(f"no Python with {module}: name one in JAXFORMER_PYTHONS")
