"""Runs a command again until it is done.

    python launch/supervise.py --checkpoints run/checkpoints -- jaxformer train demo --out run

Exit codes 0 (done), 2 (trying again cannot help) and 130 (Ctrl-C) are final. After 85 (stopped and saved) the command
restarts at once; after any other code it waits, twice as long each time. It gives up after too many restarts in a row
without progress: a new checkpoint or, without --checkpoints, a run of some minutes.

SIGTERM is passed on to the command and everything it started. Those that remain after the grace period are killed: a
process stuck in a collective ignores SIGTERM. The supervisor returns the command's code, 85 if it saved. If the
supervisor itself is killed, they are killed too, so that they cannot run beside their successors.
"""

import argparse
import os
import pathlib
import signal
import sys
import time

from guard import Guard
from names import at_least

SAVED, FINAL = 85, (0, 2, 130)


def main() -> int:
    parser = argparse.ArgumentParser(usage="supervise.py [options] -- COMMAND ...", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--checkpoints", type=pathlib.Path, help="folder of checkpoints; a new step is progress")
    parser.add_argument(
        "--minutes", type=at_least(0, float), default=10, help="a run this long is progress, without --checkpoints; 10"
    )
    parser.add_argument("--restarts", type=at_least(0), default=5, help="restarts in a row without progress; 5")
    parser.add_argument("--wait", type=at_least(0, float), default=10, help="seconds to wait after a first crash; 10")
    parser.add_argument("--grace", type=at_least(0, float), default=120, help="seconds from SIGTERM to SIGKILL; 120")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    child, fruitless, step, ran = Child(args.grace), 0, -1, False
    while True:
        code, step_before, began = 1, newest(args.checkpoints, step), time.monotonic()
        try:
            code, ran = child.run(args.command), True
        except OSError as error:
            if error.filename is not None and not ran:  # otherwise, it may be found or started a moment later
                parser.error(str(error))
            say(str(error))
        if code in FINAL or child.told_to_stop:
            return code
        step, seconds = newest(args.checkpoints, step_before), time.monotonic() - began
        progress = step > step_before if args.checkpoints else seconds > args.minutes * 60
        fruitless = 0 if progress else fruitless + 1
        at = f" at checkpoint {step}" if args.checkpoints else ""
        if fruitless > args.restarts:
            say(f"exit code {code}{at}; {args.restarts} restarts brought no progress: giving up")
            return code
        delay = 0 if code == SAVED else min(600, args.wait * 2.0 ** min(max(0, fruitless - 1), 99))
        say(f"exit code {code}{at}; starting again in {delay:.0f} s")
        if not child.sleep(delay):
            return code


class Child:
    """A command and the processes it starts, in one process group."""

    def __init__(self, grace: float):
        self._grace, self._pid, self._guard = grace, 0, Guard()
        self.told_to_stop, self._kill_at = False, float("inf")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def run(self, command: list[str]) -> int:
        """Returns the exit code of the command, 128 + n after signal n."""
        process = self._guard.start(command)
        self._pid = process.pid
        if self.told_to_stop:  # while it was being started
            self._send(signal.SIGTERM)
        while process.poll() is None:
            if time.monotonic() > self._kill_at:
                self._send(signal.SIGKILL)
            time.sleep(0.05)
        self._send(signal.SIGKILL)  # processes that it left behind
        self._pid = 0
        self._guard.forget()
        return process.returncode if process.returncode >= 0 else 128 - process.returncode

    def sleep(self, seconds: float) -> bool:
        """Sleeps, and returns False if a signal said to stop meanwhile."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.told_to_stop:
            time.sleep(0.05)
        return not self.told_to_stop

    def _stop(self, number: int, _: object) -> None:
        self.told_to_stop, self._kill_at = True, min(self._kill_at, time.monotonic() + self._grace)
        if self._pid:
            self._send(number)

    def _send(self, number: int) -> None:
        try:
            os.killpg(self._pid, number)
        except ProcessLookupError:
            return  # the group has already ended


def newest(checkpoints: pathlib.Path | None, known: int) -> int:
    """Returns the last step that has a checkpoint, -1 if none has; `known` while the folder cannot be listed."""
    try:
        names = os.listdir(checkpoints) if checkpoints else []
    except OSError:  # missing, or the storage does not answer
        return known
    return max((int(name) for name in names if name.isdecimal()), default=-1)  # not ², which is a digit


def say(text: str) -> None:
    print(f"supervise: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
