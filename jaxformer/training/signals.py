"""Requests to stop: SIGTERM and Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Literal

import jax

from jaxformer.multihost import processes

Request = Literal["terminated", "interrupted"]


@contextlib.contextmanager
def stop_requests() -> Iterator[list[Request]]:
    """Collects requests to stop; a second Ctrl-C interrupts at once. Outside the main thread it collects nothing.

    With several processes, JAX has its own handler for SIGTERM, which tells all processes of the signal. Ctrl-C is
    turned into SIGTERM, so that all processes stop at the same step.
    """
    requests: list[Request] = []

    def collect(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and requests:
            raise KeyboardInterrupt
        requests.append("interrupted" if number == signal.SIGINT else "terminated")

    def pass_on(_: int, __: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.kill(os.getpid(), signal.SIGTERM)

    handlers = {signal.SIGTERM: collect, signal.SIGINT: collect}
    if jax.process_count() > 1:
        handlers = {signal.SIGINT: pass_on}
    try:
        previous_handlers = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    except ValueError:  # outside the main thread signals belong to other code
        yield requests
        return
    try:
        yield requests
    finally:
        for number, handler in previous_handlers.items():
            # None stands for a handler from outside Python, which cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def first_request(step: int, requests: Sequence[Request]) -> Request | None:
    """Returns the first request to stop, or None.

    If one of several processes was asked to stop, all of them see the request at the same step.
    """
    if processes.asked_to_stop(step):
        return "terminated"
    return requests[0] if requests else None
