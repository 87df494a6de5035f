"""The ends of a program: signals and errors become one line and an exit code. Importing this imports no JAX."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from jaxformer.cli.main import report_error


class Terminated(KeyboardInterrupt):
    """SIGTERM outside of a training, which has its own handler."""


def raise_signals() -> None:
    """Lets Ctrl-C and SIGTERM raise `KeyboardInterrupt` and `Terminated`, so that temporary files are removed."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # during the imports; in a background job it is ignored
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, frame: Any) -> NoReturn:
    raise Terminated


def guarded(run: Callable[[], int | None], *, stopped: str, terminated: int) -> int:
    """Calls `run` and returns its exit code, by default 0; an error or a signal is one line on standard error.

    Args:
      stopped: the line after a signal.
      terminated: the exit code after SIGTERM; after Ctrl-C it is 130.
    """
    try:
        code = run() or 0
        sys.stdout.flush()  # here, where an error is one line
    except KeyboardInterrupt as interrupt:
        print(stopped, file=sys.stderr)
        return terminated if isinstance(interrupt, Terminated) else 130
    except Exception as error:
        return report_error(error, "error")
    return code
