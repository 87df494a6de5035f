"""Requests to stop: SIGTERM and Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Literal

import jax

from jaxformer.multihost import processes

StopRequest = Literal["terminated", "interrupted"]


MESSAGES = {
    signal.SIGTERM: "SIGTERM: stopping after this step, then saving",
    signal.SIGINT: "Ctrl-C: stopping after this step, then saving; a second Ctrl-C stops without saving",
}
END = b"\0"
AGAIN = "Ctrl-C again: stopping without saving"

os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # a signal of a fork is not for its parent


@contextlib.contextmanager
def stop_requests(say: Callable[[str], None] = lambda text: None) -> Iterator[list[StopRequest]]:
    """Collects requests to stop; a second Ctrl-C has its original effect, which by default is to interrupt at once.

    Outside the main thread, nothing is collected. A signal that is ignored, such as Ctrl-C in a background job of a
    script, stays ignored. `say` acknowledges each request at once, from a separate thread, because the main thread may
    be waiting for a device.

    With several processes, JAX has its own handler for SIGTERM, which informs all processes. Ctrl-C is turned into
    SIGTERM, so that all processes stop at the same step.
    """
    requests: list[StopRequest] = []
    process = os.getpid()

    def collect(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM and os.getpid() != process:  # a fork, such as a worker that reads data
            os._exit(128 + number)
        if number == signal.SIGINT and "interrupted" in requests:
            before = previous_handlers[signal.SIGINT]
            return before(number, frame) if callable(before) else signal.default_int_handler(number, frame)
        requests.append("interrupted" if number == signal.SIGINT else "terminated")

    def pass_on(_: int, __: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.kill(os.getpid(), signal.SIGTERM)

    handlers = {signal.SIGTERM: collect, signal.SIGINT: collect}
    if jax.process_count() > 1:
        handlers = {signal.SIGINT: pass_on}
    try:
        handlers = {number: x for number, x in handlers.items() if signal.getsignal(number) != signal.SIG_IGN}
        previous_handlers = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    except ValueError:  # outside the main thread, handlers cannot be set
        previous_handlers = {}
    if not previous_handlers:
        yield requests
        return
    try:
        with _acknowledging(say):
            yield requests
    finally:
        for number, handler in previous_handlers.items():
            # None stands for a handler that was not installed by Python and cannot be restored.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextlib.contextmanager
def _acknowledging(say: Callable[[str], None]) -> Iterator[None]:
    """Acknowledges signals as they arrive: Python writes them to a pipe before any handler runs."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    previous = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def acknowledge() -> None:
        received: set[int] = set()
        with open(reader, "rb", buffering=0) as pipe:
            while data := pipe.read(1).strip(END):
                number = data[0]
                repeated = number in received
                if number in MESSAGES and not repeated:
                    say(MESSAGES[signal.Signals(number)])
                elif number == signal.SIGINT:
                    say(AGAIN)
                # A second Ctrl-C, whose handler waits for the end of a compilation, or the signal of another handler
                if previous >= 0 and (number not in MESSAGES or (repeated and number == signal.SIGINT)):
                    os.write(previous, data)
                received.add(number)

    thread = threading.Thread(target=acknowledge, daemon=True, name="signals")
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        os.write(writer, END)  # a process that was forked in the meantime may hold the pipe open
        os.close(writer)
        thread.join()


def first_request(step: int, requests: Sequence[StopRequest]) -> StopRequest | None:
    """Returns the first request to stop, or None.

    If one of several processes was asked to stop, all of them see the request at the same step.
    """
    if processes.asked_to_stop(step):
        return "terminated"
    return requests[0] if requests else None
