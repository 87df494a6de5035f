"""A process without progress prints its host, its action and its stacks, and ends."""

import contextlib
import platform
import subprocess
import sys
import textwrap
import time
import types

import pytest

from jaxformer.training import watchdog
from jaxformer.training.watchdog import EXIT_CODE, Watchdog
from tests.training.small import start

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
def test_a_stuck_loader_is_reported():
    began = time.monotonic()
    found = subprocess.run([sys.executable, "-c", textwrap.dedent(PROGRAM)], capture_output=True, text=True, timeout=90)
    assert found.returncode == EXIT_CODE, found.stderr
    assert f"process 0 of 1 on host {platform.node()} is stuck: waiting for the batch of step 4 for" in found.stderr
    assert "in a_slow_disk" in found.stderr
    assert time.monotonic() - began < 60


UNREAD = """
    import os
    from jaxformer.training import watchdog

    watchdog.GRACE = 1.0
    watchdog.Watchdog(1.0).started(None)
    os.write(2, b"x" * 2**21)  # more than a pipe holds
"""


@pytest.mark.full
def test_a_process_whose_output_is_not_read_ends_too():
    """As behind a connection that hangs; the report cannot be written either."""
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(UNREAD)], stderr=subprocess.PIPE) as process:
        try:
            assert process.wait(60) == EXIT_CODE
        finally:
            process.kill()


@pytest.mark.parametrize(("waits", "stuck"), [([1.0] * 62, True), ([1.0, 3600.0, *[1.0] * 50], False)])
def test_a_suspended_process_is_not_stuck(monkeypatch, capsys, waits, stuck):
    """After Ctrl-Z and fg, the suspended time does not count."""
    clock = types.SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    left = iter(waits)

    def wait(seconds):
        passed = next(left, None)
        clock.now += passed or 0.0
        return passed is None

    monkeypatch.setattr(watchdog, "time", clock)
    monkeypatch.setattr(watchdog.faulthandler, "dump_traceback", lambda **_: None)
    monkeypatch.setattr(watchdog.os, "_exit", sys.exit)
    dog = Watchdog(60)
    monkeypatch.setattr(dog, "_done", types.SimpleNamespace(wait=wait))
    with pytest.raises(SystemExit, match=str(EXIT_CODE)) if stuck else contextlib.nullcontext():
        dog._watch()
    assert ("is stuck: starting for 61 s" in capsys.readouterr().err) is stuck


def test_progress_resets_the_watchdog():
    watchdog = Watchdog(0.3)
    watchdog.started(start(steps=10))
    for i in range(10):
        watchdog.begins(i, "stepping")
        time.sleep(0.06)
    watchdog.ended(9, "done")
    time.sleep(0.5)  # and it is gone afterward
