"""The command line: each command is a function of typed options."""

import time

STARTED = time.monotonic()
"""The approximate time at which this process began, on the monotonic clock."""
