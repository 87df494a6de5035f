"""The command line, one file a command."""

import time

STARTED = time.monotonic()
"""The time at which this process began, nearly, on the clock that nobody sets."""

ANSWERS: dict[int, tuple[int, str]] = {}
"""The exit code and the line of each signal that ends a process outside of training; it ignores the others."""
