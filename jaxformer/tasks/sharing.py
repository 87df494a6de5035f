"""The share of each process of a run in the tokenization of a large corpus."""

from __future__ import annotations

import functools
import pathlib
import sys

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
    shared = number > 1 and storage.is_shared(cache)
    if number > 1 and not shared and processes.is_first():
        say(f"each of {number} processes tokenizes all {num_lines:,} sentences: they do not share the cache {cache}")
    parts = number if shared else 1
    tell = say if processes.is_first() else lambda text: None
    return Share(
        part=jax.process_index() if shared else 0,
        parts=parts,
        workers=max(1, hardware.num_cores() // here),
        patience=cluster.heartbeat_seconds(),
        progress=Count(num_lines // parts, "sentences tokenized", tell, rate=True),
    )
