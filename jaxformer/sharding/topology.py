"""Machines that are not here: their devices, for a program to be compiled for, and what a data sheet says of them."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib.metadata
import importlib.util
import math
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax


@dataclasses.dataclass(frozen=True)
class Chip:
    """One device, as JAX sees it; bytes and seconds."""

    memory: float
    """Bytes of its memory (HBM)."""
    flops: float
    """Dense bfloat16 matrix peak, FLOP/s."""
    memory_rate: float
    """Of its memory, bytes/s."""
    link_rate: float
    """What it can send along one axis of the torus, both ways round, bytes/s."""
    slice_rate: float
    """What it can send to another slice, bytes/s."""
    dims: int
    """Of the torus."""
    largest: int
    """Chips of the largest slice."""


GIB = 2**30
# Of a chip: docs.cloud.google.com/tpu/docs/{v5e,v5p,v6e,tpu7x}, read in 2026.  There the interconnect is of all ports
# and both directions; a ring along one axis sends through two ports, hence total / ports.  A TPU7x chip is two devices.
CHIPS = {
    "v5e": Chip(16 * GIB, 197e12, 819e9, 400e9 / 4, 25e9 / 8, 2, 256),
    "v5p": Chip(95 * GIB, 459e12, 2765e9, 1200e9 / 6, 50e9 / 8, 3, 6144),
    "v6e": Chip(32 * GIB, 918e12, 1638e9, 800e9 / 4, 100e9 / 8, 2, 256),
    "tpu7x": Chip(96 * GIB, 2307e12 / 2, 7380e9 / 2, 1200e9 / 6 / 2, 100e9 / 8 / 2, 3, 9216),
}
_SHAPES = {
    2: ["1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"],
    3: ["2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16"],
}
NAMES = [f"{kind}:{shape}" for kind, chip in CHIPS.items() for shape in _SHAPES[chip.dims]]
"""The usual topologies; others of the same form are tried, too."""


def parse(name: str) -> tuple[str, Chip, int]:
    """The kind of chip, its data sheet, and the number of chips of a topology such as ``v5p:4x4x8``.

    Raises:
      ValueError: there is no such chip or no slice of that shape; the nearest names are in the message.

    >>> parse("v5p:4x4x8")[::2]
    ('v5p', 128)
    """
    kind, _, shape = name.partition(":")
    if kind not in CHIPS or not re.fullmatch(r"\d+(x\d+)+", shape) or shape.count("x") + 1 != CHIPS[kind].dims:
        known = [other for other in NAMES if other.startswith(f"{kind}:")] or NAMES
        near = difflib.get_close_matches(name, known, 4, cutoff=0.0)
        raise ValueError(f"unknown topology {name!r}; near it are {', '.join(near)}; chips: {', '.join(CHIPS)}")
    size = math.prod(map(int, shape.split("x")))
    if not 1 <= size <= CHIPS[kind].largest:
        raise ValueError(
            f"topology {name!r} has {size} chips, but a slice of {kind} has 1 to {CHIPS[kind].largest}; "
            "several slices are an axis of the mesh: slice=2,..."
        )
    return kind, CHIPS[kind], size


def devices(name: str, *, slices: int = 1) -> Sequence[Any]:
    """The devices of this many slices of a topology, for `mesh` and for compiling; none of them is here.

    Raises:
      ValueError: an unknown topology, or libtpu, which compiles for TPUs, is not installed.
    """
    parse(name)
    if importlib.util.find_spec("libtpu") is None:
        raise ValueError(f"compiling for {name} needs libtpu, but no TPU: pip install '{wanted_libtpu()}'")
    from jax.experimental import topologies

    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # or it asks the cloud which TPU this is
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # a TPU has one process; compiling for one needs no TPU
    options = {"num_slices": slices} if slices > 1 else {}
    try:
        with _quiet():
            return topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices
    except jax.errors.JaxRuntimeError as error:
        near = difflib.get_close_matches(name, NAMES, 4, cutoff=0.0)
        reason = str(error).splitlines()[0]
        raise ValueError(f"libtpu knows no topology {name!r} ({reason}); near it are {', '.join(near)}") from error


def wanted_libtpu() -> str:
    """The libtpu that goes with the JAX in use, as its own metadata say.

    >>> wanted_libtpu().startswith("libtpu==")
    True
    """
    for needed in importlib.metadata.requires("jax") or ():
        if found := re.match(r"(libtpu\s*==\s*[\w.*]+)", needed):
            return found[1].replace(" ", "")
    return f"jax[tpu]=={jax.__version__}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Nothing on standard error, not even from C++: libtpu complains of the TPU that it does not find."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
