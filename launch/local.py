"""Runs a command as N processes of M CPU devices each, to try a cluster on one machine.

    python launch/local.py --devices 8 -- jaxformer train demo --out run --mesh data=4,tensor=2
    python launch/local.py --processes 2 --devices 4 -- jaxformer train demo --out run

SIGTERM and Ctrl-C reach all processes. When one process fails, the others are killed, and its exit code is returned.
If it stopped after saving (85), the others get half a minute to save too. If this script is killed, the processes are
killed with it.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time

from guard import Guard
from names import at_least

SAVED = 85


def main() -> int:
    parser = argparse.ArgumentParser(usage="local.py [--processes N] [--devices M] -- COMMAND ...", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--processes", type=at_least(1), default=1)
    parser.add_argument("--devices", type=at_least(1), default=1, help="number of CPU devices of each process")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    common = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(args.devices)}
    common |= {"JAX_NUM_PROCESSES": str(args.processes), "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}"}
    children: list[subprocess.Popen] = []
    received: list[int] = []  # signals to pass on once all processes have started, or the later ones would miss them
    guard = Guard()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: received.append(number))
    for index in range(args.processes):
        environment = {**os.environ, **common, "JAX_PROCESS_ID": str(index)}
        try:
            children.append(guard.start(args.command, env=environment))
        except OSError as error:
            parser.error(str(error))
    while None in exit_codes(children) and not any(exit_codes(children)):
        wait(children, received)
    deadline = time.monotonic() + 30
    while failure(children) in (None, SAVED) and None in exit_codes(children) and time.monotonic() < deadline:
        wait(children, received)
    code = failure(children)
    for child in children:
        send(child, signal.SIGKILL)
        child.wait()
    guard.forget()
    if code not in (None, SAVED):
        codes = ", ".join(map(str, exit_codes(children)))
        print(f"local: a process ended with {code}, so all were stopped; exit codes: {codes}", file=sys.stderr)
    return 0 if code is None else code


def exit_codes(children: list[subprocess.Popen]) -> list[int | None]:
    """Returns the exit code of each process, or None while it runs."""
    return [child.poll() for child in children]


def failure(children: list[subprocess.Popen]) -> int | None:
    """Returns the exit code to report, or None. An abort (134) comes last: it is JAX's reaction to another failure."""
    failures = [128 - code if code < 0 else code for code in exit_codes(children) if code]
    return min(failures, key=lambda code: (code == 128 + signal.SIGABRT, code == SAVED)) if failures else None


def wait(children: list[subprocess.Popen], received: list[int]) -> None:
    """Waits a moment, then passes the received signals on, each once."""
    time.sleep(0.05)
    while received:
        number = received.pop(0)
        for child in children:
            send(child, number)


def send(child: subprocess.Popen, number: int) -> None:
    """Sends a signal to a process and to all processes that it started."""
    if child.poll() is None or number == signal.SIGKILL:
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            return  # the whole group has just ended


def free_port() -> int:
    """Returns a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    sys.exit(main())
