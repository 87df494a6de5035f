"""A process that gets nowhere names its host and what it was at, prints its stacks, and ends."""

import platform
import subprocess
import sys
import textwrap
import time

import pytest

from jaxformer.training.watchdog import EXIT_CODE, Watchdog

PROGRAM = """
    import itertools, time
    from jaxformer import training
    from tests.training.small import STEP, batch, new_state

    def a_slow_disk():
        time.sleep(100)

    def stream(start):
        for number in itertools.count(start):
            if number == 3:
                a_slow_disk()
            yield batch(number)

    training.fit(STEP, new_state(), stream, config=training.TrainConfig(9, stall_minutes=0.1))
"""


@pytest.mark.faults
def test_a_loader_that_does_not_come_back():
    began = time.monotonic()
    found = subprocess.run([sys.executable, "-c", textwrap.dedent(PROGRAM)], capture_output=True, text=True, timeout=90)
    assert found.returncode == EXIT_CODE, found.stderr
    assert f"process 0 of 1 on host {platform.node()} is stuck: waiting for the batch of step 4 for" in found.stderr
    assert "in a_slow_disk" in found.stderr
    assert time.monotonic() - began < 60


def test_progress_keeps_it_quiet():
    with Watchdog(0.3) as watchdog:
        for i in range(10):
            watchdog.at(f"step {i}")
            time.sleep(0.06)
    time.sleep(0.5)  # and it is gone afterward
