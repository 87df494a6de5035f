"""A training process that is killed at random times ends with the parameters of an uninterrupted one, bit for bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

import jaxformer
from jaxformer import demo, training
from jaxformer.tasks import registry
from tests.faults.hosts import PAIRS, PROGRAMS, write_pairs

pytestmark = pytest.mark.faults

COMMANDS = {
    "translation": (
        "demo --model.num-encoder-layers 1 --model.num-decoder-layers 1 --data.vocab-size 400 "
        "--data.tokens-per-batch 512 --data.num-shapes 2 --decode.validation-sentences 0 --optimizer.warmup-steps 20"
    ),
    "language_model": "language_model --data.text text.txt --model.num-layers 1 --data.length 32 --data.batch-size 8",
}
"""The configuration of each task, and the settings that are its own."""
SETTINGS = (
    "--model.d_model 16 --model.num-heads 2 --model.d_ff 32 --model.dropout 0.1 --train.steps 200 "
    "--train.validate-every 40 --train.checkpoint-every 20 --train.ema-decay 0.9"
).split()


@pytest.fixture(params=COMMANDS)
def task(request, tmp_path):
    """The name of a task, whose data is in the directory of the test."""
    write_pairs()
    if request.param == "language_model":
        (tmp_path / "text.txt").write_text("\n".join(pair.english for pair in demo.generate(500)))
    return request.param


def start(folder, out, task):
    environment = os.environ | PROGRAMS | {"XDG_CACHE_HOME": str(folder / "cache")}
    command = [sys.executable, "-m", "jaxformer.cli.main", "train", *COMMANDS[task].split(), *SETTINGS]
    command += PAIRS if task == "translation" else []
    command += ["--out", out, "--data.cache", f"tokens-{out}"]
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


def finish(folder, out, task):
    process = start(folder, out, task)
    _, said = process.communicate(timeout=280)
    assert process.returncode == 0, said
    return said


def parameters(folder, out):
    predictor = jaxformer.load(folder / out, checkpoint="last")
    assert registry.read_config(folder / out).train.steps == 200
    with training.Checkpoints(folder / out / "checkpoints") as checkpoints:
        assert checkpoints.steps()[-1] == 200
    return jax.tree.map(np.asarray, predictor.params)


def logged(folder, out):
    entries = [json.loads(line) for line in (folder / out / "log.jsonl").read_text().splitlines()]
    return [(entry["step"], entry["loss"]) for entry in entries if "loss" in entry], [
        e for e in entries if "validation_loss" in e
    ]


def wait_for_step(folder, out, step, process):
    """Returns when the log has this many steps; a machine's speed decides nothing."""
    log, deadline = folder / out / "log.jsonl", time.monotonic() + 200
    while not (log.exists() and log.read_text().count('"loss"') >= step):
        assert process.poll() is None, f"it ended before step {step}: {process.communicate()[1]}"
        assert time.monotonic() < deadline, f"no step {step} after 200 s"
        time.sleep(0.01)


def test_killed_three_times(tmp_path, task):
    """Once before the first step, then at random moments after two random steps."""
    finish(tmp_path, "whole", task)
    seed = int(time.time())
    pick = random.Random(seed)
    for step in (0, *sorted(pick.sample(range(1, 120), 2))):
        process = start(tmp_path, "killed", task)
        if step:
            wait_for_step(tmp_path, "killed", step, process)
        time.sleep(pick.uniform(0.0, 0.1 if step else 1.5))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, f"it ended before it was killed at step {step}, seed {seed}"
    finish(tmp_path, "killed", task)
    whole, resumed = parameters(tmp_path, "whole"), parameters(tmp_path, "killed")
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), whole, resumed))
    losses, validations = logged(tmp_path, "killed")
    assert [step for step, _ in losses] == list(range(1, 201))
    assert (losses, validations) == logged(tmp_path, "whole")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 85), (signal.SIGINT, 130)])
def test_asked_to_stop(tmp_path, task, number, code):
    process = start(tmp_path, "run", task)
    wait_for_step(tmp_path, "run", 10, process)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    with training.Checkpoints(tmp_path / "run" / "checkpoints") as checkpoints:
        stopped = checkpoints.steps()[-1]
    assert len(logged(tmp_path, "run")[0]) == stopped
    assert f"resumed from step {stopped}" in finish(tmp_path, "run", task)
