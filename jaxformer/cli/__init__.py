"""The command line, one file per command."""

import time

STARTED = time.monotonic()
"""The approximate time at which this process began, on the monotonic clock."""
