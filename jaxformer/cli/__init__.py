"""The command line, one file per command."""

import time

STARTED = time.monotonic()
"""The approximate time at which this process began, on the monotonic clock."""

SIGNAL_EXITS: dict[int, tuple[int, str]] = {}
"""The exit code and message for each signal that ends a process outside of training; other signals are ignored."""
