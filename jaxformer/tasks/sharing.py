"""The share of each process of a run in the preparation of a large corpus."""

from __future__ import annotations

import functools
import pathlib
import sys
import time
from collections.abc import Callable

import jax

from jaxformer import hardware
from jaxformer.data.units import ALONE, Share
from jaxformer.multihost import cluster, processes, storage
from jaxformer.training.progress import Count


def share_of_run(cache: pathlib.Path | None, num_lines: int, *, is_large: bool) -> Share:
    """Returns the share of this process of a run; all processes must call it with equal arguments.

    Processes that see one cache divide the units among them. Otherwise each of them makes all, and the first says so.

    Args:
      num_lines: the number of sentences, for the progress.
      is_large: the corpus is tokenized in units.
    """
    if not is_large:
        return ALONE
    say = functools.partial(print, file=sys.stderr, flush=True)
    number = jax.process_count()
    here = -(-number // processes.num_hosts())
    part, parts = 0, 1
    if number > 1 and storage.is_shared(cache):
        part, parts = jax.process_index(), number
    elif number > 1 and processes.is_first():
        say(f"each of {number} processes tokenizes all {num_lines:,} sentences: they do not share the cache {cache}")
    tell = say if processes.is_first() else lambda text: None
    return Share(
        part=part,
        parts=parts,
        workers=max(1, hardware.num_cores() // here),
        patience=cluster.heartbeat_seconds(),
        progress=Count(num_lines // parts, "sentences tokenized", tell, rate=True),
    )


def waiting_for(what: str, *, seconds: float = 10.0) -> Callable[[str], None]:
    """Returns a function that says who makes something that this process waits for, at most every `seconds`."""
    began, said = time.monotonic(), list[float]()

    def waiting(holder: str) -> None:
        now = time.monotonic()
        if not said or now - said[-1] >= seconds:
            said.append(now)
            print(f"waiting for {holder}, which makes {what}: {now - began:.0f} s", file=sys.stderr, flush=True)

    return waiting
