"""Two hosts of one run, over gloo: whatever happens to one of them, the run goes on as if nothing had."""

import re
import signal
import sys
import time

import numpy as np
import pytest

from tests.faults.hosts import HEARTBEAT, Run, losses, parameters, report, same

pytestmark = pytest.mark.faults
STEPS = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the undisturbed run of two hosts with two devices is, and its compiled programs for the others."""
    folder = tmp_path_factory.mktemp("hosts")
    Run(folder, "whole").finish()
    return folder


def lost(run):
    """Steps that were logged, and are not in a checkpoint."""
    saved = [int(path.name) for path in (run.out / "checkpoints").iterdir() if path.name.isdigit()]
    return run.steps() - max(saved, default=0)


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_in_a_step(folder, victim):
    run = Run(folder, f"killed{victim}")
    run.wait_for_step(25)
    run.hosts[victim].send_signal(signal.SIGKILL)
    seconds = run.seconds_to_end()
    assert seconds < 6 * HEARTBEAT
    assert 0 not in run.codes()
    steps = lost(run)
    Run(folder, run.out.name).finish()
    assert same(folder, run.out.name, "whole", STEPS)
    report(f"kill -9 of host {victim} in a step", tried=1, survived=1, steps_lost=steps, seconds_to_detect=seconds)


def test_killed_while_saving(folder):
    """As soon as the unfinished directory of a step is seen, three times over."""
    out, most = "saving", 0
    for step in (10, 20, 40):
        run = Run(folder, out)
        at = run.out / "checkpoints"
        run.wait_until(lambda: any(path.name.startswith(f"{step}.") for path in at.glob("*tmp*")))  # noqa: B023
        run.hosts[step // 10 % 2].send_signal(signal.SIGKILL)
        run.codes()
        most = max(most, lost(run))
    Run(folder, out).finish()
    assert same(folder, out, "whole", STEPS)
    report("kill -9 while saving", tried=3, survived=3, steps_lost=most)


@pytest.mark.parametrize("told", [0, 1])
def test_one_host_is_asked_to_stop(folder, told):
    """All save the same step and end with 85; the same command goes on."""
    run = Run(folder, f"stopped{told}")
    run.wait_for_step(15)
    run.hosts[told].send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert run.codes() == [85, 85], run.said(told)
    seconds = time.monotonic() - began
    assert lost(run) == 0
    Run(folder, run.out.name).finish()
    assert same(folder, run.out.name, "whole", STEPS)
    report(f"SIGTERM to host {told}", tried=1, survived=1, steps_lost=0, seconds_to_detect=seconds)


@pytest.mark.parametrize("victim", [0, 1])
def test_frozen(folder, victim):
    """A host that does not answer: the other ends when its heartbeat is missed."""
    run = Run(folder, f"frozen{victim}")
    run.wait_for_step(15)
    run.hosts[victim].send_signal(signal.SIGSTOP)
    began = time.monotonic()
    assert run.hosts[1 - victim].wait(6 * HEARTBEAT) != 0
    seconds = time.monotonic() - began
    run.kill()
    steps = lost(run)
    Run(folder, run.out.name).finish()
    assert same(folder, run.out.name, "whole", STEPS)
    report(f"SIGSTOP of host {victim}", tried=1, survived=1, steps_lost=steps, seconds_to_detect=seconds)


STUCK = """
import sys, time, jax
from jaxformer.cli import main
from jaxformer.data import pipeline

make = pipeline.make_batch

def slow_disk(tokens, plan, step, **options):
    if step == 40 and jax.process_index() == 1:
        time.sleep(600)
    return make(tokens, plan, step, **options)

pipeline.make_batch = slow_disk
sys.argv[0] = "jaxformer"
sys.exit(main.main())
"""


def test_stuck_in_the_loader(folder):
    """Its heartbeat goes on, and the others wait for it: the watchdogs end all, and say who waited for a batch."""
    limit = 30
    run = Run(
        folder, "stuck", program=[sys.executable, "-c", STUCK], settings=["--train.stall-minutes", str(limit / 60)]
    )
    run.wait_for_step(39)
    began = time.monotonic()
    codes = run.codes()
    seconds = time.monotonic() - began
    assert codes[1] == 70, run.said(1)
    assert "process 1 of 2 on host" in run.said(1)
    assert re.search("is stuck: waiting for the batch of step 4[01]", run.said(1))  # one batch is made ahead
    assert "slow_disk" in run.said(1)
    assert "is stuck: waiting for the batch" not in run.said(0)
    steps = lost(run)
    Run(folder, "stuck", settings=["--train.stall-minutes", str(limit / 60)]).finish()
    assert same(folder, "stuck", "whole", STEPS)
    report(f"stuck in the loader, limit {limit} s", tried=1, survived=1, steps_lost=steps, seconds_to_detect=seconds)


@pytest.mark.parametrize(("devices", "mesh"), [(4, "data=4"), (2, "fsdp=2")])
def test_other_numbers_of_hosts_and_devices(folder, devices, mesh):
    """Half on two hosts, half on one: the same batches in the same order; sums over hosts round otherwise."""
    run = Run(folder, f"moved{devices}")
    run.wait_for_step(15)
    run.hosts[0].send_signal(signal.SIGTERM)
    assert run.codes() == [85, 85]
    Run(folder, run.out.name, hosts=1, devices=devices, mesh=mesh).finish()
    moved, whole = losses(folder, run.out.name), losses(folder, "whole")
    assert [n for n, _ in moved] == [n for n, _ in whole]
    worst = max(abs(a / b - 1) for (_, a), (_, b) in zip(moved, whole, strict=True))
    assert worst < 1e-5
    for a, b in zip(parameters(folder, run.out.name, STEPS), parameters(folder, "whole", STEPS), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3)
    fault = f"restart on 1 host of {devices} devices instead of 2 hosts of 2"
    report(fault, tried=1, survived=1, steps_lost=0, worst_relative_loss=worst)


def test_different_settings_are_found_at_the_start(folder):
    """Before anything is written; exit code 2, for trying again would not help."""
    odd = Run(folder, "odd", program=[sys.executable, "-c", DIFFERENT])
    assert odd.codes() == [2, 2]
    assert "seed" in odd.said(0)
    assert "process 1" in odd.said(0)
    assert not odd.out.exists()


DIFFERENT = """
import os, sys
from jaxformer.cli import main
sys.argv[0] = "jaxformer"
if os.environ["JAX_PROCESS_ID"] == "1":
    sys.argv += ["--seed", "7"]
sys.exit(main.main())
"""
