"""Two hosts tokenize one corpus into a cache that they share; one of them dies or freezes in the middle."""

import signal
import sys
import time

import pytest

from tests.faults.hosts import HEARTBEAT, Run, report, same

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1500)]
STEPS, LIMIT = 24, 400
IN_UNITS = """
import sys, time
from jaxformer.cli import main
from jaxformer.data import pipeline, units

units.UNIT, pipeline.SMALL = 100, 200  # 40 units of the 4,000 pairs
write = units.write_unit

def slow(*job):
    time.sleep(0.5)
    write(*job)

units.write_unit = slow
sys.argv[0] = "jaxformer"
sys.exit(main.script())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("preparation")
    Run(folder, "whole", steps=STEPS).finish(LIMIT)
    return folder


def tokens(folder, cache):
    return {
        path.relative_to(folder / cache).as_posix(): path.read_bytes()
        for path in (folder / cache).rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_a_host_that_dies_ends_the_others(folder, fault):
    """With a code that schedulers retry, within the heartbeat's time; finished units stay, and the run is the same."""
    cache = fault.name
    start = lambda: Run(
        folder,
        cache,
        steps=STEPS,
        program=[sys.executable, "-c", IN_UNITS],
        settings=["--data.cache", cache],
    )
    run = start()
    made = lambda: sorted((folder / cache).glob("*.units/*.npz"))
    run.wait_until(lambda: len(made()) >= 6, LIMIT)
    run.hosts[1].send_signal(fault)
    began = time.monotonic()
    code = run.hosts[0].wait(8 * HEARTBEAT)
    seconds = time.monotonic() - began
    run.kill()
    assert code not in (0, 2, 85, 130), run.said(0)
    kept = {path: path.stat().st_mtime_ns for path in made()}
    assert 6 <= len(kept) < 40
    again = start()
    again.wait_until(lambda: len(made()) > len(kept), LIMIT)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    again.finish(LIMIT)
    assert not made()
    assert tokens(folder, cache) == tokens(folder, "tokens")
    assert same(folder, cache, "whole", STEPS)
    report(f"{fault.name} of a host that tokenizes", tried=1, survived=1, seconds_to_detect=seconds)
