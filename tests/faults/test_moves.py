"""Restarts on other hosts and devices, and starts that cannot succeed: on storage or with settings that differ."""

import signal
import socket
import sys

import chex
import pytest

from tests.faults.hosts import STEPS, Run, losses, lost, parameters, report, same

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of the uninterrupted run of two hosts with two devices."""
    folder = tmp_path_factory.mktemp("moves")
    Run(folder, "whole").finish()
    return folder


@pytest.mark.parametrize(("devices", "mesh"), [(4, "data=4"), (2, "fsdp=2")])
def test_other_numbers_of_hosts_and_devices(folder, devices, mesh):
    """A part on two hosts, the rest on one: the same batches in the same order; sums differ by rounding."""
    run = Run(folder, f"moved{devices}")
    run.wait_for_step(15)
    run.hosts[0].send_signal(signal.SIGTERM)
    assert run.codes() == [85, 85]
    Run(folder, run.out.name, hosts=1, devices=devices, mesh=mesh).finish()
    moved, whole = losses(folder, run.out.name), losses(folder, "whole")
    assert [n for n, _ in moved] == [n for n, _ in whole]
    worst = max(abs(a / b - 1) for (_, a), (_, b) in zip(moved, whole, strict=True))
    assert worst < 1e-5
    chex.assert_trees_all_close(
        parameters(folder, run.out.name, STEPS), parameters(folder, "whole", STEPS), rtol=0, atol=1e-3
    )
    fault = f"restart on 1 host of {devices} devices instead of 2 hosts of 2"
    report(fault, tried=1, survived=1, steps_lost=0, worst_relative_loss=worst)


@pytest.fixture(scope="module")
def pair(folder):
    """An uninterrupted run of two hosts with one device each."""
    return Run(folder, "pair", devices=1).finish().out.name


def moved(folder, before, after, like):
    """A run stopped on some hosts and continued on others, on one mesh: every bit is equal."""
    (hosts, devices), (hosts_after, devices_after) = before, after
    run = Run(folder, f"{like}-{hosts}", hosts=hosts, devices=devices)
    run.wait_for_step(15)
    run.hosts[0].send_signal(signal.SIGTERM)
    assert run.codes() == [85] * hosts
    assert lost(run) == 0
    Run(folder, run.out.name, hosts=hosts_after, devices=devices_after).finish()
    assert same(folder, run.out.name, like, STEPS)
    fault = f"restart on {hosts_after} x {devices_after} devices instead of {hosts} x {devices}"
    report(fault, tried=1, survived=1, steps_lost=0)


@pytest.mark.parametrize(("before", "after"), [((2, 1), (1, 2)), ((1, 2), (2, 1))])
def test_two_devices_are_the_same_on_one_host_or_two(folder, pair, before, after):
    """A sum of two has one order."""
    moved(folder, before, after, pair)


@pytest.mark.parametrize(("before", "after"), [((2, 2), (1, 4)), ((1, 4), (2, 2))])
def test_four_devices_are_the_same_over_gloo(folder, monkeypatch, before, after):
    """A sum of four is the same if one host sums as two do."""
    monkeypatch.setenv("JAX_CPU_COLLECTIVES_IMPLEMENTATION", "gloo")
    moved(folder, before, after, "whole")


def test_different_settings_are_found_at_the_start(folder):
    """Before anything is written; exit code 2, because another try cannot help."""
    odd = Run(folder, "odd", program=[sys.executable, "-c", DIFFERENT])
    assert odd.codes() == [2, 2]
    assert "seed" in odd.said(0)
    assert "process 1" in odd.said(0)
    assert not odd.out.exists()


@pytest.mark.parametrize(
    ("variable", "code", "message"),
    [
        ("JAX_NUM_CPU_DEVICES", 1, "the same number of devices: process 1 ({}) 1, the others 2; if a device is broken"),
        ("JAX_NUM_PROCESSES", 2, "given the same number of processes: process 0 ({}) 2, the others 3"),
    ],
)
def test_different_numbers_are_found_at_the_start(tmp_path, variable, code, message):
    """Of devices, with a code that launchers retry; of processes, with one that they do not retry."""
    value = {"JAX_NUM_CPU_DEVICES": "1", "JAX_NUM_PROCESSES": "3"}[variable]
    odd = Run(tmp_path, variable.lower(), variables={1: {variable: value}})
    assert odd.codes() == [code, code]
    for rank in (0, 1):
        line = odd.said(rank).splitlines()[-1]
        assert line.startswith("jaxformer train: the processes must ")
        assert message.format(socket.gethostname()) in line
        assert "Traceback" not in odd.said(rank)
    assert not odd.out.exists()


def test_a_port_that_another_program_uses(tmp_path):
    """One line and a code that launchers retry, from process 0."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        there = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{other.getsockname()[1]}", "JAX_NUM_PROCESSES": "2"}
        odd = Run(tmp_path, "port", hosts=1, variables={0: there})
        assert odd.codes() == [1]
    (line,) = odd.said(0).splitlines()
    assert line.startswith("jaxformer train: the coordinator cannot listen on port ")


FROZEN = """
import os, sys, time
from jaxformer.cli import main
sys.argv[0] = "jaxformer"
if os.environ["JAX_PROCESS_ID"] == "1":
    time.sleep(600)
sys.exit(main.script())
"""


def test_a_process_that_freezes_before_it_connects(tmp_path):
    """Process 0 counts those that are missing and names the addresses of the others, early and in its error."""
    limit = {"JAXFORMER_INIT_TIMEOUT": "30"}
    run = Run(tmp_path, "late", hosts=3, program=[sys.executable, "-c", FROZEN], variables=dict.fromkeys((0, 2), limit))
    assert [run.hosts[i].wait(150) for i in (0, 2)] == [1, 1], run.said(0)
    run.kill()
    this = f"process 0 of 3, on {socket.gethostname()}: 1 of the 2 others (all but 1 from 127.0.0.1) did not connect"
    assert f"{this} yet, after 2" in run.said(0)
    assert run.said(0).splitlines()[-1] == f"jaxformer train: {this} within 30 s; all must have the same number"
    assert not run.out.exists()


ELSEWHERE = """
import os, sys
from jaxformer.cli import main
from jaxformer.multihost import storage
storage.wait_for_run.__kwdefaults__["seconds"] = 12.0
sys.argv[0] = "jaxformer"
if os.environ["JAX_PROCESS_ID"] == "1":
    os.makedirs("disk1", exist_ok=True)
    os.chdir("disk1")
sys.exit(main.main())
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("begun", [False, True])
def test_storage_that_is_not_shared(tmp_path, begun):
    """All processes report it soon, with a code that launchers retry; a run that was begun does not change."""
    out = f"apart-{begun}"
    if begun:
        Run(tmp_path, out, hosts=1, steps=22).finish()
    files = {path: path.read_bytes() for path in (tmp_path / out).glob("*.json*")}
    run = Run(tmp_path, out, steps=22, program=[sys.executable, "-c", ELSEWHERE])
    assert run.codes(limit=240) == [1, 1]
    host = socket.gethostname()
    for rank in (0, 1):
        assert run.said(rank).splitlines()[-1] == (
            f"jaxformer train: {out} still looks different to process 1 ({host}) than to process 0 after 12 s; "
            "it must be on storage that all hosts share"
        )
        assert "Traceback" not in run.said(rank)
    assert {path: path.read_bytes() for path in (tmp_path / out).glob("*.json*")} == files
    assert (tmp_path / out).exists() == begun


LATE = """
import os, pathlib, sys
from jaxformer.cli import main
from jaxformer.multihost import storage
sys.argv[0] = "jaxformer"
digest, asked = storage._digest, []

def late(path):
    asked.append(path)
    return "" if asked.count(path) < 5 else digest(path)

if os.environ["JAX_PROCESS_ID"] == os.environ["LATE"]:
    storage._digest = late
sys.exit(main.main())
"""


@pytest.mark.parametrize("late", ["0", "1"])
def test_storage_that_shows_files_late_delays_the_start(tmp_path, late):
    """A host that sees a run's files later than the other waits for them, and resumes the same run."""
    Run(tmp_path, f"late{late}", steps=22).finish()
    program = [sys.executable, "-c", LATE]
    run = Run(
        tmp_path, f"late{late}", steps=22, program=program, variables={0: {"LATE": late}, 1: {"LATE": late}}
    ).finish()
    assert "resumed from step 22" in run.said(0)
    assert run.steps() == 22


DIFFERENT = """
import os, sys
from jaxformer.cli import main
sys.argv[0] = "jaxformer"
if os.environ["JAX_PROCESS_ID"] == "1":
    sys.argv += ["--seed", "7"]
sys.exit(main.main())
"""
