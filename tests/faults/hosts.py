"""A run of several processes on this machine; each can be killed, frozen or asked to stop."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np

import jaxformer
from jaxformer import demo, files, training

HEARTBEAT, STEPS = 10, 60
ROOT = pathlib.Path(__file__).parents[2]
FILES = [str(ROOT / ".cache" / f"pairs.{language}") for language in ("en", "fr")]
PAIRS = ["--data.corpus", "files", "--data.source", FILES[0], "--data.target", FILES[1], "--data.held-out", "500"]
"""Settings of the demonstration for its corpus in files, which `write_pairs` makes."""
SETTINGS = (
    "--model.d_model 16 --model.num-heads 2 --model.d_ff 32 --model.num-encoder-layers 1 --model.num-decoder-layers 1 "
    "--model.dropout 0.1 --data.vocab-size 400 --data.tokens-per-batch 512 --data.num-shapes 1 --data.max-length 32 "
    "--optimizer.warmup_steps 20 --train.validate-every 1000 --train.checkpoint-every 10 "
    "--decode.validation-sentences 0 --train.no-tensorboard"
).split()
SETTINGS += PAIRS
PROGRAM = [sys.executable, "-m", "jaxformer.cli.main"]
PROGRAMS = {
    "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "tests"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    "MPLCONFIGDIR": str(ROOT / ".cache" / "matplotlib"),
}
"""Variables of processes that share their compiled programs with each other and with the tests, and their fonts."""


def write_pairs():
    """Draws 5,000 pairs once for all processes: each would take three seconds."""
    if not all(map(os.path.exists, FILES)):
        (ROOT / ".cache").mkdir(exist_ok=True)
        pairs = demo.generate(5_000)
        for name, side in zip(FILES, ("english", "french"), strict=True):
            files.write_text(pathlib.Path(name), "".join(f"{getattr(pair, side)}\n" for pair in pairs))


class Run:
    """Processes of one run, `devices` CPU devices each, and their output; `variables` holds those of one process."""

    def __init__(
        self, folder, out, *, hosts=2, devices=2, steps=STEPS, program=None, mesh="data=*", settings=(), variables=()
    ):
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        write_pairs()
        self.folder, self.out = folder, folder / out
        command = [*(program or PROGRAM), "train", "demo", "--out", out, "--data.cache", "tokens", "--mesh", mesh]
        command += [*SETTINGS, "--train.steps", str(steps), *settings]
        common = os.environ | PROGRAMS
        common |= {
            "XDG_CACHE_HOME": str(folder / "cache"),
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(devices),
            "JAX_NUM_PROCESSES": str(hosts),
            "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
            "JAXFORMER_HEARTBEAT_TIMEOUT": str(HEARTBEAT),
            "PYTHONPATH": str(ROOT),
        }
        self.hosts = []
        for rank in range(hosts):
            with (folder / f"{out}-{rank}.txt").open("a") as said:
                environment = common | {"JAX_PROCESS_ID": str(rank)} | dict(variables).get(rank, {})
                self.hosts.append(subprocess.Popen(command, cwd=folder, env=environment, stderr=said, stdout=said))

    def said(self, rank):
        return (self.folder / f"{self.out.name}-{rank}.txt").read_text(errors="replace")

    def steps(self):
        """Steps in the log so far."""
        log = self.out / "log.jsonl"
        return log.read_text().count('"loss"') if log.exists() else 0

    def wait_for_step(self, step, limit=150):
        self.wait_until(lambda: self.steps() >= step, limit)

    def wait_until(self, condition, limit=150):
        deadline = time.monotonic() + limit
        while not condition():
            assert time.monotonic() < deadline, self.said(0)
            assert all(host.poll() is None for host in self.hosts), self.said(0)
            time.sleep(0.01)

    def codes(self, limit=150):
        """Exit codes, once all have ended."""
        try:
            return [host.wait(limit) for host in self.hosts]
        finally:
            self.kill()

    def seconds_to_end(self, limit=150):
        began = time.monotonic()
        self.codes(limit)
        return time.monotonic() - began

    def kill(self):
        for host in self.hosts:
            if host.poll() is None:
                host.send_signal(signal.SIGKILL)
                host.wait()

    def finish(self, limit=150):
        """Waits until every process has ended without an error."""
        assert self.codes(limit) == [0] * len(self.hosts), self.said(0)
        return self


def parameters(folder, out, step):
    """The parameters after this step, the last of the run."""
    translator = jaxformer.load(folder / out, checkpoint="last")
    with training.Checkpoints(folder / out / "checkpoints") as checkpoints:
        assert checkpoints.steps()[-1] == step
    return [np.asarray(x) for x in jax.tree.leaves(translator.params)]


def losses(folder, out):
    """``(step, loss)`` of every line, in order."""
    rows = [json.loads(line) for line in (folder / out / "log.jsonl").read_text().splitlines()]
    return [(row["step"], row["loss"]) for row in rows if "loss" in row]


def same(folder, out, whole, step):
    """Whether two runs have the same log, every step once, and the same parameters, bit for bit."""
    assert [n for n, _ in losses(folder, out)] == list(range(1, step + 1))
    pairs = zip(parameters(folder, out, step), parameters(folder, whole, step), strict=True)
    return losses(folder, out) == losses(folder, whole) and all((a == b).all() for a, b in pairs)


def lost(run):
    """Steps that were logged, and are not in a checkpoint."""
    saved = [int(path.name) for path in (run.out / "checkpoints").iterdir() if path.name.isdigit()]
    return run.steps() - max(saved, default=0)


def report(fault, **figures):
    """Adds a row of the table in launch/FAULTS.md if the environment names a file for it."""
    if path := os.environ.get("JAXFORMER_FAULTS_TABLE"):
        with open(path, "a") as table:
            table.write(json.dumps({"fault": fault, **figures}) + "\n")
