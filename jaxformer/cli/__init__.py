"""The command line, one file a command."""

import time

STARTED = time.time()
"""The time of day at which this process began, nearly."""

ANSWERS: dict[int, tuple[int, str]] = {}
"""The exit code and the line of each signal that ends a process outside of training; it ignores the others."""
