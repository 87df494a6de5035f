"""The legend: what each letter of a shape means, what each dimension is called, and the seam for placement.

Letters, the same in every signature of the library::

    B batch               T query (target) length     S key (source) length
    N query heads         K key heads; in decoding, hypotheses
    G = N / K             H head dim                  J value dim
    D model dim           F feed-forward dim          V vocabulary
    L layers              W window
    E experts             C room of an expert

Arrays of heads are laid out ``[B, T, N, H]``.  A dimension of a parameter or an activation also has a *logical
axis name*; a table of rules (``jaxformer.sharding``) maps those names to the axes of a device mesh.  Models
name, and never place: with no rules active, `constrain` is the identity.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import jax

AxisName: TypeAlias = Literal[
    "batch",
    "length",
    "memory_length",
    "layers",
    "model",
    "heads",
    "kv",
    "head_dim",
    "hidden",
    "experts",
    "vocab",
    "position",
]
"""A logical axis name.  ``"kv"`` is the (short) dimension that fused projections stack."""

Axes: TypeAlias = tuple[AxisName | None, ...]
"""One name for each dimension of an array; None where a dimension is never split."""

Place: TypeAlias = Callable[[jax.Array, Axes], jax.Array]
Pieces: TypeAlias = Callable[[Axes], int]

_active: contextvars.ContextVar[tuple[Place, Pieces] | None] = contextvars.ContextVar("place", default=None)
_devices: contextvars.ContextVar[Sequence[Any]] = contextvars.ContextVar("devices", default=())


def constrain(x: jax.Array, *names: AxisName | None) -> jax.Array:
    """Names the dimensions of an activation, so that an active rule table can place it; else the identity.

    Raises:
      ValueError: the number of names differs from the rank of `x`.
    """
    if len(names) != x.ndim:
        raise ValueError(f"constrain got {len(names)} axis names {names} for an array of shape {x.shape}")
    active = _active.get()
    return x if active is None else active[0](x, names)


def pieces(*names: AxisName) -> int:
    """Over how many devices an active rule table cuts an array of these dimensions; else 1."""
    active = _active.get()
    return 1 if active is None else active[1](names)


@contextlib.contextmanager
def placing(place: Place, pieces: Pieces = lambda names: 1) -> Iterator[None]:
    """While a function is traced, `place` decides where the activations named by `constrain` go.

    Args:
      pieces: over how many devices arrays of these names are cut.
    """
    token = _active.set((place, pieces))
    try:
        yield
    finally:
        _active.reset(token)


def devices() -> Sequence[Any]:
    """The devices that a function being traced will run on: all there are, or those given to `compiling_for`."""
    return _devices.get() or jax.devices()


@contextlib.contextmanager
def compiling_for(devices: Sequence[Any]) -> Iterator[None]:
    """While a function is traced, it is for these devices, which need not be here."""
    token = _devices.set(devices)
    try:
        yield
    finally:
        _devices.reset(token)
