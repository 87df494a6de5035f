"""Runs a command again until it is done.

    python launch/supervise.py --checkpoints run/checkpoints -- jaxformer train demo --out run

Exit code 0 is the end, 2 (a wrong setting, wrong data) and 130 (Ctrl-C) too, for again it would end so; after 85
(stopped and saved) the command starts anew at once; after anything else it waits, twice as long each time.  It gives
up after so many restarts in a row without progress: a new checkpoint or, without --checkpoints, some minutes.

SIGTERM goes on to the command and everything it started, which are killed if they are still there after the grace
period: a process stuck in a collective ignores SIGTERM.  The command's code is then the answer, 85 if it saved.
They are killed with the supervisor, too, so that the next one does not start beside them.
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
    parser.add_argument("--checkpoints", type=pathlib.Path, help="where a new one, named by its step, is progress")
    parser.add_argument(
        "--minutes", type=at_least(0, float), default=10, help="that are progress where there is no --checkpoints; 10"
    )
    parser.add_argument(
        "--restarts", type=at_least(0), default=5, help="in a row without progress, before giving up; 5"
    )
    parser.add_argument(
        "--wait", type=at_least(0, float), default=10, help="seconds before the first restart after a crash; 10"
    )
    parser.add_argument("--grace", type=at_least(0, float), default=120, help="seconds from SIGTERM to SIGKILL; 120")
    parser.add_argument("command", nargs="+")
    known = parser.parse_args()
    child, in_vain = Child(known.grace), 0
    while True:
        before, began = newest(known.checkpoints), time.monotonic()
        try:
            code = child.run(known.command)
        except (FileNotFoundError, PermissionError) as error:
            parser.error(str(error))
        if code in FINAL or child.told_to_stop:
            return code
        after, took = newest(known.checkpoints), time.monotonic() - began
        progress = after > before if known.checkpoints else took > known.minutes * 60
        in_vain = 0 if progress else in_vain + 1
        at = f" at checkpoint {after}" if known.checkpoints else ""
        if in_vain > known.restarts:
            say(f"exit code {code}{at}; {known.restarts} restarts brought no progress: giving up")
            return code
        delay = 0 if code == SAVED else min(600, known.wait * 2 ** max(0, in_vain - 1))
        say(f"exit code {code}{at}; starting again in {delay:.0f} s")
        if not child.sleep(delay):
            return code


class Child:
    """A command and what it starts, one process group."""

    def __init__(self, grace: float):
        self._grace, self._pid, self._guard = grace, 0, Guard()
        self.told_to_stop, self._kill_at = False, float("inf")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def run(self, command: list[str]) -> int:
        """Its exit code, 128 + n after signal n."""
        process = self._guard.start(command)
        self._pid = process.pid
        if self.told_to_stop:  # meanwhile
            self._send(signal.SIGTERM)
        while process.poll() is None:
            if time.monotonic() > self._kill_at:
                self._send(signal.SIGKILL)
            time.sleep(0.05)
        self._send(signal.SIGKILL)  # whatever it left behind
        self._pid = 0
        self._guard.forget()
        return process.returncode if process.returncode >= 0 else 128 - process.returncode

    def sleep(self, seconds: float) -> bool:
        """False if told to stop while sleeping."""
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
            return  # nothing is left of it


def newest(checkpoints: pathlib.Path | None) -> int:
    """The last step there is a checkpoint of; -1 where there is none."""
    names = os.listdir(checkpoints) if checkpoints and checkpoints.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)


def say(text: str) -> None:
    print(f"supervise: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
