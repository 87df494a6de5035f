"""A watchdog that ends a process that makes no progress, and reports where it was stuck.

The heartbeats of a cluster do not notice such a process.
"""

from __future__ import annotations

import faulthandler
import os
import platform
import sys
import threading
import time
from typing import Self

import jax

EXIT_CODE = 70
"""The exit code of a stuck process; a scheduler should restart the process as after a crash."""

GRACE = 15.0
"""Extra seconds for actions in which all processes take part, and the time allowed for a report."""


class Watchdog:
    """A context in which `at` must be called again within `seconds`; 0 sets no limit.

    After that time, the watchdog prints the host, the process, its action and the stacks of all threads, and ends the
    process with `EXIT_CODE`. In a job of many processes, look at one that waits for a batch: the other processes wait
    for it in the step.

    >>> with Watchdog(60) as watchdog:
    ...     watchdog.at("in step 1")
    """

    def __init__(self, seconds: float):
        self._seconds, self._done = seconds, threading.Event()
        self._where, self._since, self._limit = "starting", time.monotonic(), seconds

    def at(self, where: str, *, together: bool = False) -> None:
        """Records progress and the next action, `where`.

        Args:
          together: True if all processes take part; a process that is stuck elsewhere then has time to report first.
        """
        grace = GRACE if together and jax.process_count() > 1 else 0.0
        self._where, self._since, self._limit = where, time.monotonic(), self._seconds + grace

    def __enter__(self) -> Self:
        if self._seconds > 0:
            self.at("starting")
            threading.Thread(target=self._watch, daemon=True, name="watchdog").start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()

    def _watch(self) -> None:
        process = f"process {jax.process_index()} of {jax.process_count()} on host {platform.node()}"
        interval, woke = min(1.0, self._seconds / 10), time.monotonic()
        while not self._done.wait(interval):
            slept, woke = time.monotonic() - woke, time.monotonic()
            if slept > 5 * interval:  # the whole process was suspended (Ctrl-Z, a paused host), not stuck
                self._since += slept
            idle = woke - self._since
            if idle > self._limit:
                text = f"{process} is stuck: {self._where} for {idle:.0f} s; its stacks:"
                report = threading.Thread(target=_report, args=(text,), daemon=True)
                report.start()
                report.join(GRACE)  # it may block, too, if nothing reads the output
                os._exit(EXIT_CODE)  # other ways to exit need the main thread, which does not respond


def _report(text: str) -> None:
    """Prints a text and the stacks of all threads."""
    print(text, file=sys.stderr, flush=True)
    faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr, all_threads=True)
