"""Two hosts of one run, over gloo: after a fault of one of them, the run continues as if nothing had happened."""

import re
import signal
import sys
import time

import pytest

from tests.faults.hosts import HEARTBEAT, STEPS, Run, losses, lost, report, same

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of the uninterrupted run of two hosts with two devices, and its compiled programs for the others."""
    folder = tmp_path_factory.mktemp("hosts")
    Run(folder, "whole").finish()
    return folder


def survives(run, fault, *, like="whole", settings=(), tried=1, **figures):
    """Started again with the same command, the run ends like the uninterrupted one; adds a row of the table."""
    Run(run.folder, run.out.name, settings=settings).finish()
    assert same(run.folder, run.out.name, like, STEPS)
    report(fault, tried=tried, survived=tried, **figures)


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_in_a_step(folder, victim):
    run = Run(folder, f"killed{victim}")
    run.wait_for_step(25)
    run.hosts[victim].send_signal(signal.SIGKILL)
    seconds = run.seconds_to_end()
    assert seconds < 6 * HEARTBEAT
    assert 0 not in run.codes()
    survives(run, f"kill -9 of host {victim} in a step", steps_lost=lost(run), seconds_to_detect=seconds)


def test_killed_while_saving(folder):
    """When the unfinished directory of a step appears, three times."""
    most = 0
    for step in (10, 20, 40):
        run = Run(folder, "saving")
        at = run.out / "checkpoints"
        run.wait_until(lambda: any(path.name.startswith(f"{step}.") for path in at.glob("*tmp*")))  # noqa: B023
        run.hosts[step // 10 % 2].send_signal(signal.SIGKILL)
        run.codes()
        most = max(most, lost(run))
    survives(run, "kill -9 while saving", tried=3, steps_lost=most)


@pytest.mark.parametrize("told", [0, 1])
def test_one_host_is_asked_to_stop(folder, told):
    """All save the same step and end with 85; the same command continues the run."""
    run = Run(folder, f"stopped{told}")
    run.wait_for_step(15)
    run.hosts[told].send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert run.codes() == [85, 85], run.said(told)
    seconds = time.monotonic() - began
    assert lost(run) == 0
    survives(run, f"SIGTERM to host {told}", steps_lost=0, seconds_to_detect=seconds)


@pytest.mark.parametrize("victim", [0, 1])
def test_frozen(folder, victim):
    """A host does not answer: the other ends after its heartbeat is missed."""
    run = Run(folder, f"frozen{victim}")
    run.wait_for_step(15)
    run.hosts[victim].send_signal(signal.SIGSTOP)
    began = time.monotonic()
    assert run.hosts[1 - victim].wait(6 * HEARTBEAT) != 0
    seconds = time.monotonic() - began
    run.kill()
    survives(run, f"SIGSTOP of host {victim}", steps_lost=lost(run), seconds_to_detect=seconds)


STUCK = """
import sys, time, jax
from jaxformer.cli import main
from jaxformer.data.pipeline import PlannedPairs

make = PlannedPairs.batch

def slow_disk(pairs, step, **options):
    if step == 40 and jax.process_index() == 1:
        time.sleep(600)
    return make(pairs, step, **options)

PlannedPairs.batch = slow_disk
sys.argv[0] = "jaxformer"
sys.exit(main.main())
"""


def test_stuck_in_the_loader(folder):
    """Its heartbeat continues, and the others wait for it: the watchdogs end all, and name the one that is stuck."""
    limit = 30
    settings = ["--train.stall-minutes", str(limit / 60)]
    run = Run(folder, "stuck", program=[sys.executable, "-c", STUCK], settings=settings)
    run.wait_for_step(39)
    began = time.monotonic()
    codes = run.codes()
    seconds = time.monotonic() - began
    assert codes[1] == 70, run.said(1)
    assert "process 1 of 2 on host" in run.said(1)
    assert re.search("is stuck: waiting for the batch of step 4[01]", run.said(1))  # one batch is made ahead
    assert "slow_disk" in run.said(1)
    assert "is stuck: waiting for the batch" not in run.said(0)
    fault = f"stuck in the loader, limit {limit} s"
    survives(run, fault, settings=settings, steps_lost=lost(run), seconds_to_detect=seconds)


LATE = """
import sys, jax, orbax.checkpoint
from jaxformer.cli import main

reload, calls = orbax.checkpoint.CheckpointManager.reload, []

def late(manager):
    calls.append(manager)
    if jax.process_index() == 0 or len(calls) > 3:
        reload(manager)

orbax.checkpoint.CheckpointManager.reload = late
sys.argv[0] = "jaxformer"
sys.exit(main.main())
"""


def test_a_damaged_part_of_one_host(folder):
    """Only host 1 reads it, and all fall back together; a host alone would wait forever, or abort.

    After it is renamed, host 1 still lists it for a moment, as on a network file system.
    """
    run = Run(folder, "shard", mesh="fsdp=*")
    run.wait_for_step(15)
    run.hosts[0].send_signal(signal.SIGTERM)
    assert run.codes() == [85, 85]
    *_, before, newest = sorted(int(path.name) for path in (run.out / "checkpoints").iterdir())
    for path in (run.out / "checkpoints" / str(newest) / "state" / "ocdbt.process_1" / "d").iterdir():
        path.write_bytes(path.read_bytes()[:100])
    again = Run(folder, "shard", mesh="fsdp=*", program=[sys.executable, "-c", LATE]).finish()
    assert f"resumed from step {before}" in again.said(0)
    assert [f"step {newest}" in line for line in again.said(1).splitlines() if "trying the step before" in line] == [
        True
    ]
    assert (run.out / "checkpoints" / f"damaged-{newest}").is_dir()
    ours, whole = losses(folder, "shard"), losses(folder, "whole")
    assert [n for n, _ in ours] == [n for n, _ in whole]
    assert max(abs(a / b - 1) for (_, a), (_, b) in zip(ours, whole, strict=True)) < 1e-5
    report("the part of one host of two cut short", tried=1, survived=1, steps_lost=newest - 10)


UNREACHABLE = """
import importlib.machinery, sys, types
from jaxformer.cli import main

def init(**options):
    raise ConnectionError("no network")

spec = importlib.machinery.ModuleSpec("wandb", None)
sys.modules["wandb"] = types.SimpleNamespace(init=init, __spec__=spec)
sys.exit(main.script())
"""


def test_a_tracker_that_cannot_begin(folder):
    """Only process 0 has one; the others aborted with 134, after which launchers try again."""
    settings = ["--train.log-to", "wandb"]
    run = Run(folder, "untracked", program=[sys.executable, "-c", UNREACHABLE], settings=settings)
    assert run.codes() == [2, 2], run.said(1)
    assert "train.log_to wandb: the tracker cannot begin: ConnectionError: no network; without" in run.said(0)
    assert "process 0 cannot begin its logs or the tracker: see its message" in run.said(1)


def test_a_second_run_into_the_same_directory(folder):
    """All its hosts are refused for now, the first names the holder, and the first run is not affected."""
    run = Run(folder, "shared")
    run.wait_for_step(5)
    second = Run(folder, "shared")
    assert second.codes() == [1, 1], second.said(0)
    assert f"shared is in use by process {run.hosts[0].pid} on " in second.said(0)
    assert "process 0 cannot use shared: see its message" in second.said(1)
    run.finish()
    assert same(folder, "shared", "whole", STEPS)
    assert not (run.out / ".lock").exists()
