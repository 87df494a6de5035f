"""Two real processes on this machine: they train as one, and stop, fail and start again together."""

import json
import os
import pathlib
import signal
import socket

import pytest

from tests.launch import programs

pytestmark = pytest.mark.faults


def test_two_processes_train_like_one(trained):
    code, said, _ = programs.finish(programs.local(trained, "one", "--devices", "4"))
    assert code == 0, said
    two, one = ([json.loads(line) for line in programs.losses(trained / out)] for out in ("whole", "one"))
    assert [entry["step"] for entry in two] == list(range(1, 41))
    assert [entry["tokens"] for entry in two] == [entry["tokens"] for entry in one]
    assert two[0]["loss"] == pytest.approx(one[0]["loss"], rel=1e-6)
    assert [entry["loss"] for entry in two[:10]] == pytest.approx([entry["loss"] for entry in one[:10]], rel=1e-5)


def begin(folder, out):
    """A run of two processes, when it has trained for some more steps, and the ids of both."""
    there = len(programs.losses(folder / out))
    process = programs.local(folder, out, "--processes", "2", "--devices", "2")
    programs.until(lambda: len(programs.losses(folder / out)) > there + 5 or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    return process, programs.children(process)[1:]  # beside them, and before, its guard


def listeners(pid):
    """Hexadecimal addresses on which this machine listens at the port of a process's coordinator."""
    told = pathlib.Path(f"/proc/{pid}/environ").read_text()
    told = dict(one.split("=", 1) for one in told.split("\0") if "=" in one)
    port = f":{int(told['JAX_COORDINATOR_ADDRESS'].rpartition(':')[2]):04X}"
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in pathlib.Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return [local.removesuffix(port) for _, local, _, state, *_ in rows if local.endswith(port) and state == "0A"]


def test_killed_and_stopped_and_still_the_same(trained):
    process, both = begin(trained, "disturbed")
    # 127.0.0.1, in the clothes of version 6, and nowhere else, for it has no password.
    assert [one.removeprefix("0000000000000000FFFF0000") for one in listeners(both[0])] == ["0100007F"]
    os.kill(both[1], signal.SIGKILL)
    code, said, seconds = programs.finish(process, timeout=60)
    assert (code, seconds < 10) == (137, True), said
    for pid in both:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    process, _ = begin(trained, "disturbed")
    process.send_signal(signal.SIGTERM)
    code, said, _ = programs.finish(process, timeout=60)
    assert code == 85, said
    stopped = len(programs.losses(trained / "disturbed"))
    assert stopped < 40

    code, said, _ = programs.finish(programs.local(trained, "disturbed", "--processes", "2", "--devices", "2"))
    assert code == 0, said
    assert f"resumed from step {stopped}" in said
    assert programs.losses(trained / "disturbed") == programs.losses(trained / "whole")


def pair(folder, *commands, **more):
    """Processes that are told of each other by hand, one a command."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{one.getsockname()[1]}"
    known = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", **more}
    return [programs.start(folder, c, JAX_PROCESS_ID=str(rank), **known) for rank, c in commands]


def test_other_settings_on_another_host(trained):
    first, second = programs.train("unlike"), programs.train("unlike", "--seed", "7", "--train.patience", "3")
    host = socket.gethostname()
    for process in pair(trained, (0, first), (1, second)):
        code, said, _ = programs.finish(process, timeout=60)
        assert code == 2, said
        assert said.splitlines()[-1] == (
            f"jaxformer train: not the same as in process 0 ({host}): seed of process 1 ({host}); "
            f"train.patience of process 1 ({host})"
        )
    assert not (trained / "unlike").exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_the_others_do_not_come(trained, rank):
    (process,) = pair(trained, (rank, programs.train("alone")), JAXFORMER_INIT_TIMEOUT="3")
    code, said, seconds = programs.finish(process, timeout=60)
    assert (code, seconds < 30) == (1, True), said
    (line,) = [line for line in said.splitlines() if line.startswith("jaxformer train: ")]
    assert f"process {rank} of 2" in line
    assert "did not connect within 3 s" in line
    assert "Traceback" not in said


def test_an_error_of_one_ends_it_at_once(trained):
    """JAX's own exit would wait for the other process, and answer 134."""
    first, second = programs.train("wrong"), programs.train("wrong", "--devices", "3")
    processes = pair(trained, (0, first), (1, second), JAXFORMER_HEARTBEAT_TIMEOUT="10")
    code, said, seconds = programs.finish(processes[1], timeout=60)
    assert (code, seconds < 30) == (2, True), said
    assert "jaxformer train: expected 3 devices in all, but there are 2: process 1 of 2" in said
    assert programs.finish(processes[0], timeout=60)[0] == -signal.SIGABRT
