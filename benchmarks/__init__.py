"""Benchmarks: ``python -m benchmarks.NAME --help``."""

import signal
import sys

if sys.argv[0] == "-m" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # `python -m benchmarks.NAME` is about to import its libraries: Ctrl-C ends it, without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
