"""What the processes of one run say to each other; where there is one, it talks to itself and waits for nobody."""

from __future__ import annotations

import jax
import numpy as np
from jax.experimental import multihost_utils


def first() -> bool:
    """Whether this is the process that writes logs, pictures and everything else there is one of.

    >>> first()
    True
    """
    return jax.process_index() == 0


def wait(name: str) -> None:
    """Returns when every process has come to the place of this name.

    >>> wait("the tokenizer is saved")
    """
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def everywhere(here: bool) -> bool:
    """True if it is so in every process.

    >>> everywhere(True)
    True
    """
    return here if jax.process_count() == 1 else bool(multihost_utils.process_allgather(np.asarray(here)).all())


def decided(by_first: bool) -> bool:
    """What the first process says, for what clocks and disks may see differently.

    >>> decided(False)
    False
    """
    return by_first if jax.process_count() == 1 else bool(multihost_utils.broadcast_one_to_all(np.asarray(by_first)))


def asked_to_stop(step: int) -> bool:
    """Whether some process got SIGTERM: True at the same step in all of them, the first that none is beyond."""
    return jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(step)
