"""The target devices of a program: this machine's, or those of another machine that it is compiled for."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from typing import Protocol

import jax


class Device(Protocol):
    """The part of a ``jax.Device`` that decides which program suits it."""

    @property
    def platform(self) -> str:
        """The kind of hardware: "cpu", "gpu" or "tpu"."""
        ...

    @property
    def device_kind(self) -> str:
        """The vendor's name of the hardware."""
        ...


_devices: contextvars.ContextVar[Sequence[Device]] = contextvars.ContextVar("devices", default=())


def devices() -> Sequence[Device]:
    """Returns the devices that a function being traced will run on: those of `compiling_for`, else all of JAX's."""
    return _devices.get() or jax.devices()


@contextlib.contextmanager
def compiling_for(devices: Sequence[Device]) -> Iterator[None]:
    """Declares the target devices of functions that are traced inside the context; they need not be on this machine."""
    token = _devices.set(devices)
    try:
        yield
    finally:
        _devices.reset(token)
