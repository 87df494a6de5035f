"""Reads of Orbax that are in progress when another one fails.

Orbax closes its event loop before they end, so the interpreter would report each of them to `sys.unraisablehook`.
"""

from __future__ import annotations

import contextlib
import gc
import pathlib
import sys
import time
import types
from collections.abc import Iterator


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Keeps the interpreter from reporting such reads; all other reports go to the user's hook, as before and after."""
    previous_hook = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs, /) -> None:
        loop_closed = unraisable.object is None and str(unraisable.exc_value) == "Event loop is closed"
        if not loop_closed and not _is_read(unraisable.object):
            previous_hook(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = previous_hook


def wait() -> None:
    """Waits until no read is in progress, at most five seconds; the exception of the failed one must be gone."""
    limit = time.monotonic() + 5.0
    while any(_is_read(thing) for thing in gc.get_objects()) and time.monotonic() < limit:
        time.sleep(0.01)
        gc.collect()


def _is_read(thing: object) -> bool:
    return isinstance(thing, types.CoroutineType) and "orbax" in pathlib.Path(thing.cr_code.co_filename).parts
