"""Starts the real program as its users would."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from jaxformer.training.recorder import MEASURED
from tests.faults.hosts import PAIRS, PROGRAMS, ROOT, write_pairs

LAUNCH = ROOT / "launch"
STARTED: list[subprocess.Popen] = []
JAXFORMER = [sys.executable, "-m", "jaxformer.cli.main"]
SETTINGS = (
    "--model.d_model 16 --model.num-heads 2 --model.d_ff 32 --model.num-encoder-layers 1 --model.num-decoder-layers 1 "
    "--model.dropout 0.1 --data.vocab-size 400 --data.tokens-per-batch 512 --data.num-shapes 1 --train.steps 40 "
    "--train.validate-every 20 --train.checkpoint-every 10 --decode.validation-sentences 0 --optimizer.warmup_steps 10"
).split()
SETTINGS += PAIRS


def environment(folder, **variables):
    """Returns the environment of a process of this source tree, with caches in a folder and no launcher's variables.

    Compiled programs are in the cache of all tests.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("JAX", "SLURM", "XLA"))}
    ours = {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}
    return {**clean, **PROGRAMS, **ours, **variables}


def train(out, *options):
    """Returns the command of a small training."""
    write_pairs()
    return [*JAXFORMER, "train", "demo", "--out", str(out), *SETTINGS, *options]


def start(folder, command, **variables):
    """Starts a command in a folder; `kill_all` ends it after the test."""
    env = environment(folder, **variables)
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=-1, stderr=subprocess.STDOUT, text=True)
    STARTED.append(process)
    return process


def kill_all():
    """Kills the processes that a failed test left behind, and their children."""
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            for pid in [*children(process), process.pid]:
                os.kill(pid, signal.SIGKILL)
            process.communicate()


def local(folder, out, *options, **variables):
    """Starts a training under `launch/local.py`."""
    return start(folder, [sys.executable, LAUNCH / "local.py", *options, "--", *train(out)], **variables)


def finish(process, timeout=200):
    """Waits for a process and returns its exit code, its output, and the seconds it still took."""
    began = time.monotonic()
    output, _ = process.communicate(timeout=timeout)
    return process.returncode, output, time.monotonic() - began


def until(condition, timeout=120):
    """Waits until a condition holds, and fails after the timeout."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not hold within {timeout} s"
        time.sleep(0.05)


def losses(run):
    """Returns the entries of a log that hold a step, without what differs each time: how long it took."""
    path = run / "log.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    entries = [json.loads(line) for line in lines if line.endswith("}")]
    return [{name: x for name, x in entry.items() if name not in MEASURED} for entry in entries if "loss" in entry]


def children(process):
    """Returns the ids of the children of a process."""
    return [int(pid) for pid in pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def python_with(module):
    """Returns a Python that has a module: this one or one of JAXFORMER_PYTHONS (paths, by colons). Else skips."""
    for python in [sys.executable, *filter(None, os.environ.get("JAXFORMER_PYTHONS", "").split(":"))]:
        program = f"import importlib.util as u, sys; sys.exit(u.find_spec('{module}') is None)"
        if subprocess.run([python, "-c", program], check=False, timeout=60).returncode == 0:
            return python
    pytest.skip(f"no Python with {module}: name one in JAXFORMER_PYTHONS")
