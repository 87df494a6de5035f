"""Two real processes on this machine train as one, and stop, fail and restart together."""

import os
import pathlib
import signal
import socket

import pytest

from tests.launch import programs

pytestmark = pytest.mark.faults


def test_two_processes_train_like_one(trained):
    code, output, _ = programs.finish(programs.local(trained, "one", "--devices", "4"))
    assert code == 0, output
    two, one = (programs.losses(trained / out) for out in ("whole", "one"))
    assert [entry["step"] for entry in two] == list(range(1, 41))
    assert [entry["tokens"] for entry in two] == [entry["tokens"] for entry in one]
    assert two[0]["loss"] == pytest.approx(one[0]["loss"], rel=1e-6)
    assert [entry["loss"] for entry in two[:10]] == pytest.approx([entry["loss"] for entry in one[:10]], rel=1e-5)


def begin(folder, out):
    """Starts or resumes a run of two processes and returns it after some more steps, with the ids of both."""
    steps = len(programs.losses(folder / out))
    process = programs.local(folder, out, "--processes", "2", "--devices", "2")
    programs.until(lambda: len(programs.losses(folder / out)) > steps + 5 or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    return process, programs.children(process)[1:]  # the first child is the guard


def listeners(pid):
    """Returns the hexadecimal addresses on which this machine listens at the coordinator's port of a process."""
    environ = pathlib.Path(f"/proc/{pid}/environ").read_text()
    variables = dict(pair.split("=", 1) for pair in environ.split("\0") if "=" in pair)
    port = f":{int(variables['JAX_COORDINATOR_ADDRESS'].rpartition(':')[2]):04X}"
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in pathlib.Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return [local.removesuffix(port) for _, local, _, state, *_ in rows if local.endswith(port) and state == "0A"]


def test_a_killed_and_a_stopped_run_end_like_an_uninterrupted_one(trained):
    process, both = begin(trained, "disturbed")
    # It listens on 127.0.0.1 (as an IPv6 address) and nowhere else, because it has no password.
    assert [one.removeprefix("0000000000000000FFFF0000") for one in listeners(both[0])] == ["0100007F"]
    os.kill(both[1], signal.SIGKILL)
    code, output, seconds = programs.finish(process, timeout=60)
    assert (code, seconds < 10) == (137, True), output
    for pid in both:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    process, _ = begin(trained, "disturbed")
    process.send_signal(signal.SIGTERM)
    code, output, _ = programs.finish(process, timeout=60)
    assert code == 85, output
    stopped = len(programs.losses(trained / "disturbed"))
    assert stopped < 40

    code, output, _ = programs.finish(programs.local(trained, "disturbed", "--processes", "2", "--devices", "2"))
    assert code == 0, output
    assert f"resumed from step {stopped}" in output
    assert programs.losses(trained / "disturbed") == programs.losses(trained / "whole")


def pair(folder, *commands, **variables):
    """Starts one process per command, connected by environment variables."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    variables |= {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2"}
    return [programs.start(folder, c, JAX_PROCESS_ID=str(rank), **variables) for rank, c in commands]


def test_different_settings_on_another_host_are_refused(trained):
    first, second = programs.train("unlike"), programs.train("unlike", "--seed", "7", "--train.patience", "3")
    host = socket.gethostname()
    for process in pair(trained, (0, first), (1, second)):
        code, output, _ = programs.finish(process, timeout=60)
        assert code == 2, output
        assert output.splitlines()[-1] == (
            f"jaxformer train: not the same as in process 0 ({host}): seed of process 1 ({host}); "
            f"train.patience of process 1 ({host})"
        )
    assert not (trained / "unlike").exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_missing_processes_are_reported(trained, rank):
    (process,) = pair(trained, (rank, programs.train("alone")), JAXFORMER_INIT_TIMEOUT="3")
    code, output, seconds = programs.finish(process, timeout=60)
    assert (code, seconds < 30) == (1, True), output
    (line,) = [line for line in output.splitlines() if line.startswith("jaxformer train: ")]
    assert f"process {rank} of 2" in line
    assert "did not connect within 3 s" in line
    assert "Traceback" not in output


def test_a_process_that_fails_ends_at_once(trained):
    """JAX's own exit would wait for the other process and return 134."""
    first, second = programs.train("wrong"), programs.train("wrong", "--devices", "1")
    processes = pair(trained, (0, first), (1, second), JAXFORMER_HEARTBEAT_TIMEOUT="10")
    code, output, seconds = programs.finish(processes[1], timeout=60)
    assert (code, seconds < 30) == (2, True), output
    assert "jaxformer train: expected 1 devices in all, but there are 2: process 1 of 2" in output
    # The other is aborted, or its exchange with this one fails first; launchers retry after both.
    assert programs.finish(processes[0], timeout=60)[0] in (1, -signal.SIGABRT)
