"""The command line, one file a command."""

import time

STARTED = time.monotonic()
"""The time near which this process began, on the monotonic clock."""

ANSWERS: dict[int, tuple[int, str]] = {}
"""The exit code and the line of each signal that ends a process outside of training; it ignores the others."""
