"""Signals: outside of training they end a command at once; in training they ask it to stop after the step."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Literal

StopRequest = Literal["terminated", "interrupted"]
"""A request to stop a training: SIGTERM, or Ctrl-C."""
Handler = Callable[[int, FrameType | None], object]

MESSAGES: dict[int, str] = {
    signal.SIGTERM: "SIGTERM: stopping after this step, then saving",
    signal.SIGINT: "Ctrl-C: stopping after this step, then saving; a second Ctrl-C stops without saving",
}
AGAIN = "Ctrl-C again: stopping without saving"
END = b"\0"
GRACE = 0.2
"""The seconds that the main thread has to answer a signal before another thread does."""
EXITS: dict[int, tuple[int, str]] = {}
"""The exit code and message for each signal that ends a command outside of training; other signals are ignored."""

os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # a signal of a fork is not for its parent


@contextlib.contextmanager
def ending_at_once(exits: Mapping[int, tuple[int, str]]) -> Iterator[None]:
    """Lets signals end the process with these exit codes and messages, except while `stop_requests` collects them.

    An exception would be lost where Python or C++ discards it, as in callbacks of the garbage collector, or become
    another one in the import of an extension. Files are replaced as a whole, so they survive this.
    """
    EXITS.clear()
    EXITS.update(exits)
    ending = threading.RLock()  # never released
    process = os.getpid()

    def stop(number: int, _: object) -> None:
        if os.getpid() != process:  # a fork, such as a worker that reads data
            os._exit(128 + number)
        if number not in EXITS:
            return
        code, text = EXITS[number]
        with contextlib.suppress(Exception):  # it may be in the middle of writing
            sys.stdout.flush()
        ending.acquire()
        with contextlib.suppress(KeyError, AttributeError):  # it is not imported yet, or only in part
            sys.modules["jaxformer.files"].end_all()
        show_cursor = "\x1b[?25h" if os.isatty(2) else ""  # a progress bar hides it
        with contextlib.suppress(OSError):
            os.write(2, f"{show_cursor}{text}\n".encode())
        os._exit(code)

    def stop_instead(number: int, _: object) -> None:
        time.sleep(GRACE)
        stop(number, None)

    with _handled(dict.fromkeys(EXITS, stop), restored=EXITS) as previous, _watched(stop_instead, previous):
        yield


@contextlib.contextmanager
def stop_requests(
    say: Callable[[str], None] = lambda text: None, *, num_processes: int = 1
) -> Iterator[list[StopRequest]]:
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
            before = previous[signal.SIGINT]
            (before if callable(before) else signal.default_int_handler)(number, frame)
        else:
            requests.append("interrupted" if number == signal.SIGINT else "terminated")

    def pass_on(_: int, __: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.kill(os.getpid(), signal.SIGTERM)

    handlers: dict[int, Handler] = {signal.SIGTERM: collect, signal.SIGINT: collect}
    if num_processes > 1:
        handlers = {signal.SIGINT: pass_on}
    with _handled(handlers) as previous, _acknowledging(say, previous):
        yield requests


def _acknowledging(
    say: Callable[[str], None], handlers: Mapping[int, object] = MESSAGES
) -> contextlib.AbstractContextManager[None]:
    """Acknowledges signals as they arrive."""
    received: set[int] = set()

    def acknowledge(number: int, pass_on: Callable[[int], None]) -> None:
        repeated = number in received
        if number in MESSAGES and not repeated:
            say(MESSAGES[number])
        elif number == signal.SIGINT:
            say(AGAIN)
        # A second Ctrl-C, whose handler waits for the end of a compilation, or the signal of another handler
        if number not in MESSAGES or (repeated and number == signal.SIGINT):
            pass_on(number)
        received.add(number)

    return _watched(acknowledge, handlers)


@contextlib.contextmanager
def _handled(
    handlers: Mapping[int, Handler], *, restored: Mapping[int, object] | None = None
) -> Iterator[dict[int, Handler | int | None]]:
    """Sets handlers, except of ignored signals and outside the main thread, and restores the previous ones, its value.

    Args:
      restored: at the end, only the handlers of the signals in this are restored; all by default.
    """
    previous: dict[int, Handler | int | None] = {}
    if threading.current_thread() is threading.main_thread():
        heard = [number for number in handlers if signal.getsignal(number) != signal.SIG_IGN]
        previous = {number: signal.signal(number, handlers[number]) for number in heard}
    try:
        yield previous
    finally:
        for number, handler in previous.items():
            if restored is None or number in restored:
                # None stands for a handler that was not installed by Python and cannot be restored.
                signal.signal(number, handler or signal.SIG_DFL)


@contextlib.contextmanager
def _watched(handle: Callable[[int, Callable[[int], None]], None], handlers: Mapping[int, object]) -> Iterator[None]:
    """Calls `handle` in a thread for each signal, if any has a handler: handlers wait for the end of a compilation.

    Python writes the numbers to a pipe before any handler runs. The second argument of `handle` passes a number on to
    the pipe of before.
    """
    if not handlers:
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    previous = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def pass_on(number: int) -> None:
        if previous >= 0:
            os.write(previous, bytes([number]))

    def watch() -> None:
        with open(reader, "rb", buffering=0) as pipe:
            while data := pipe.read(1).strip(END):
                handle(data[0], pass_on)

    thread = threading.Thread(target=watch, daemon=True, name="signals")
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        os.write(writer, END)  # a process that was forked in the meantime may hold the pipe open
        os.close(writer)
        thread.join()
