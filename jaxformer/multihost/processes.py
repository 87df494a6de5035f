"""Exchanges between the processes of one run; a single process decides alone and never waits."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxformer import hardware, signals
from jaxformer.errors import ConfigError, DataError, JaxformerError
from jaxformer.signals import StopRequest

T = TypeVar("T")


def is_first() -> bool:
    """Returns True in the process that writes logs, pictures and every other file that exists once per run.

    >>> is_first()
    True
    """
    return jax.process_index() == 0


def barrier(name: str) -> None:
    """Waits until every process has called it with this name.

    >>> barrier("the tokenizer is saved")
    """
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def all_true(here: bool) -> bool:
    """Returns True if `here` is true in every process.

    >>> all_true(True)
    True
    """
    return here if jax.process_count() == 1 else bool(multihost_utils.process_allgather(np.asarray(here)).all())


def broadcast(value: bool) -> bool:
    """Returns the value that the first process has, because clocks and disks may differ.

    >>> broadcast(False)
    False
    """
    return value if jax.process_count() == 1 else bool(multihost_utils.broadcast_one_to_all(np.asarray(value)))


def raise_together(problem: ConfigError | DataError | OSError | None, message: str) -> None:
    """Raises an error in all processes if one has it: its own there, its kind with `message` in those that have none.

    Otherwise the others would wait for that process, and abort with an exit code that does not tell the reason.
    """
    if all_true(problem is None):
        return
    for kind in (ConfigError, DataError):
        if not all_true(not isinstance(problem, kind)):
            raise problem or kind(message)
    raise problem or OSError(message)


def in_all(make: Callable[[], T], message: str) -> T:
    """Returns the result of a function that exchanges nothing; if it fails in one process, all raise.

    Args:
      message: that of the error in the processes in which it does not fail.

    >>> in_all(lambda: 3, "another process cannot count: see its message")
    3
    """
    try:
        made = make()
    except (ConfigError, DataError, OSError) as error:
        raise_together(error, message)
        raise
    raise_together(None, message)
    return made


def stop_requests(say: Callable[[str], None]) -> AbstractContextManager[list[StopRequest]]:
    """Collects the requests to stop of this process, as in `signals.stop_requests`."""
    return signals.stop_requests(say, num_processes=jax.process_count())


def first_request(step: int, requests: Sequence[StopRequest]) -> StopRequest | None:
    """Returns the first request to stop, or None.

    If one of several processes received SIGTERM, all see it at the same step, the next that all will reach.
    """
    if jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(step):
        return "terminated"
    return next(iter(requests), None)


def find_devices() -> None:
    """Starts the platform of this process; its error is then one that a user can act on.

    Raises:
      ConfigError: JAX does not know the platform that JAX_PLATFORMS names, or finds no device for it.
      JaxformerError: a device does not respond.
    """
    try:
        jax.devices()
    except AssertionError as error:  # without a message, for a known platform that is not installed
        raise ConfigError(f"JAX finds no device, JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')}") from error
    except RuntimeError as error:
        kind = ConfigError if "known backends" in str(error) else JaxformerError
        raise kind(str(error)) from error


def num_hosts() -> int:
    """Returns the number of hosts on which a run has processes; all processes must call it.

    >>> num_hosts()
    1
    """
    if jax.process_count() == 1:
        return 1
    host = np.frombuffer(hashlib.sha256(platform.node().encode()).digest(), np.uint8)
    return len(np.unique(multihost_utils.process_allgather(host), axis=0))


def facts() -> dict[str, object]:
    """Returns the host and processor of this process, the numbers of processes and devices, and compiler flags."""
    kind = jax.devices()[0].device_kind
    flags = {name: text for name, text in os.environ.items() if name.startswith(("XLA_", "JAX_", "LIBTPU_", "NCCL_"))}
    return {
        "host": platform.node(),
        "processor": hardware.processor_name(),
        "processes": jax.process_count(),
        "devices": f"{jax.device_count()} x {kind}",
        "flags": flags,
    }
