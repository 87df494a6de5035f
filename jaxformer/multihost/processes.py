"""Exchanges between the processes of one run; a single process decides alone and never waits."""

from __future__ import annotations

import jax
import numpy as np
from jax.experimental import multihost_utils


def first() -> bool:
    """True in the process that writes logs, pictures and everything else that exists once.

    >>> first()
    True
    """
    return jax.process_index() == 0


def wait(name: str) -> None:
    """Returns when every process has called it with this name.

    >>> wait("the tokenizer is saved")
    """
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def everywhere(here: bool) -> bool:
    """True if `here` is true in every process.

    >>> everywhere(True)
    True
    """
    return here if jax.process_count() == 1 else bool(multihost_utils.process_allgather(np.asarray(here)).all())


def decided(by_first: bool) -> bool:
    """Returns the value of the first process, where clocks and disks may differ.

    >>> decided(False)
    False
    """
    return by_first if jax.process_count() == 1 else bool(multihost_utils.broadcast_one_to_all(np.asarray(by_first)))


def asked_to_stop(step: int) -> bool:
    """True if some process got SIGTERM: at the same step in all of them, the first that no process has passed."""
    return jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(step)
