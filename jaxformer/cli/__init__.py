"""The command line, one file a command."""

import time

STARTED = time.time()
"""The time of day at which this process began, nearly."""
