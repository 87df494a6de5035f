"""One machine's CPU as N processes of M devices each: what a cluster would do, at your desk.

    python launch/local.py --devices 8 -- jaxformer train demo --out run --mesh data=4,tensor=2
    python launch/local.py --processes 2 --devices 4 -- jaxformer train demo --out run

SIGTERM and Ctrl-C go to all processes.  When one fails the others are killed, and its exit code is the answer; they
have half a minute where it was stopped after saving (85), for so will they be.  If this one is killed, so are they.
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
    parser.add_argument("--devices", type=at_least(1), default=1, help="of each process")
    parser.add_argument("command", nargs="+")
    known = parser.parse_args()
    common = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(known.devices)}
    common |= {"JAX_NUM_PROCESSES": str(known.processes), "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}"}
    children: list[subprocess.Popen] = []
    guard = Guard()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: [send(child, number) for child in children])
    for index in range(known.processes):
        environment = {**os.environ, **common, "JAX_PROCESS_ID": str(index)}
        try:
            children.append(guard.start(known.command, env=environment))
        except OSError as error:
            parser.error(str(error))
    while None in codes(children) and not any(codes(children)):
        time.sleep(0.05)
    deadline = time.monotonic() + 30
    while failed(children) in (None, SAVED) and None in codes(children) and time.monotonic() < deadline:
        time.sleep(0.05)
    code = failed(children)
    for child in children:
        send(child, signal.SIGKILL)
        child.wait()
    guard.forget()
    if code not in (None, SAVED):
        ended = ", ".join(map(str, codes(children)))
        print(f"local: a process ended with {code}, so all were stopped; exit codes: {ended}", file=sys.stderr)
    return 0 if code is None else code


def codes(children: list[subprocess.Popen]) -> list[int | None]:
    """Exit codes so far."""
    return [child.poll() for child in children]


def failed(children: list[subprocess.Popen]) -> int | None:
    """The exit code to report, if any failed; an abort (134) is what JAX answers another's failure with."""
    bad = [128 - code if code < 0 else code for code in codes(children) if code]
    return min(bad, key=lambda code: (code == 128 + signal.SIGABRT, code == SAVED)) if bad else None


def send(child: subprocess.Popen, number: int) -> None:
    """A signal to a process and all it started."""
    if child.poll() is None or number == signal.SIGKILL:
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            return  # it has just ended, and nothing is left of it


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


if __name__ == "__main__":
    sys.exit(main())
