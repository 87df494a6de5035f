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

import jax

from jaxformer.training.hooks import Hook, Part, Start

EXIT_CODE = 70
"""The exit code of a stuck process; a scheduler should restart the process as after a crash."""

GRACE = 15.0
"""Extra seconds for actions in which all processes take part, and the time allowed for a report."""


ACTIONS: dict[Part, str] = {
    "starting": "going back from step",
    "waiting for data": "waiting for the batch of step",
    "stepping": "in step",
    "validating": "validating after step",
    "saving": "saving after step",
}


class Watchdog(Hook):
    """A hook that ends the process if no other action begins within `seconds`; 0 sets no limit.

    It prints the host, the process, its action and the stacks of all threads, and ends the process with `EXIT_CODE`. In
    a job of many processes, look at one that waits for a batch: the other processes wait for it in the step.
    """

    def __init__(self, seconds: float):
        self._seconds, self._done = seconds, threading.Event()
        self._where, self._since, self._limit = "starting", time.monotonic(), seconds

    def started(self, start: Start) -> None:
        """Begins to watch, in another thread."""
        self._since, self._together = time.monotonic(), self._seconds + GRACE * (jax.process_count() > 1)
        if self._seconds > 0:
            threading.Thread(target=self._watch, daemon=True, name="watchdog").start()

    def begins(self, step: int, part: Part) -> None:
        """Notes progress and the next action.

        In all but the wait for a batch, all processes take part; one that is stuck elsewhere then reports first.
        """
        self._where, self._since = f"{ACTIONS[part]} {step}", time.monotonic()
        self._limit = self._seconds if part == "waiting for data" else self._together

    def ended(self, step: int, reason: str) -> None:
        """Stops watching."""
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
