"""A run that is killed ten times at random moments ends like an uninterrupted one."""

import random
import signal
import time

import pytest

from tests.faults.hosts import Run, report, same

KILLS, STEPS = 10, 2000
MESH = "fsdp=2,tensor=2"
SETTINGS = ["--train.checkpoint-every", "25"]


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_random_kills(tmp_path):
    """On one mesh of four devices; the next kill comes later if the last start saved nothing, earlier otherwise."""
    options = {"hosts": 1, "devices": 4, "steps": STEPS, "mesh": MESH, "settings": SETTINGS}
    Run(tmp_path, "whole", **options).finish(600)
    seed, longest, kills, began = int(time.time()), 8.0, 0, time.monotonic()
    pick, saved, worst = random.Random(seed), 0, 0
    while kills < KILLS:
        run = Run(tmp_path, "killed", **options)
        deadline = time.monotonic() + pick.uniform(0.5, longest)
        while time.monotonic() < deadline and run.hosts[0].poll() is None:
            time.sleep(0.01)
        assert run.hosts[0].poll() is None, f"ended before it was killed {KILLS} times: {kills} (seed {seed})"
        run.hosts[0].send_signal(signal.SIGKILL)
        assert run.codes() == [-signal.SIGKILL]
        kills += 1
        steps = [int(path.name) for path in (run.out / "checkpoints").glob("*") if path.name.isdigit()]
        worst = max(worst, run.steps() - max(steps, default=0))
        longest = min(longest + 2, 25.0) if max(steps, default=0) == saved else max(longest - 2, 4.0)
        saved = max(steps, default=0)
    Run(tmp_path, "killed", **options).finish(600)
    assert same(tmp_path, "killed", "whole", STEPS), f"seed {seed}"
    report("chaos: kill -9", tried=kills, survived=kills, steps_lost=worst, seconds=time.monotonic() - began)
