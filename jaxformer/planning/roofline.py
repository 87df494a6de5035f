"""A roofline of one training step: what the data sheet's rates allow at best.  An estimate, never a measurement."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

import numpy as np

from jaxformer.planning.hlo import Collective
from jaxformer.planning.topology import Topology

_SHARED = "all-gather", "all-reduce", "reduce-scatter"
"""Collectives whose way out of a host or slice all devices there can share."""


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Seconds that a step spends on each of three things at the data sheet's rates, were it to do nothing else."""

    compute: float
    """Matrix products at the chip's peak."""
    memory: float
    """What it must read and write once."""
    network: float
    """All collectives, one after another, each on a ring along its mesh axes.  This is no limit from below: a mesh axis
    that lies along several dimensions of a torus can use the links of all, and two permutations can go opposite ways
    at once."""

    @property
    def overlapped(self) -> float:
        """Seconds of a step in which all three go on at once."""
        return max(self.compute, self.memory, self.network)

    @property
    def serial(self) -> float:
        """Seconds of a step in which the network waits for the device, and it for the network."""
        return max(self.compute, self.memory) + self.network

    @property
    def bound(self) -> str:
        """Which of the three is longest."""
        return max(("compute", "memory", "network"), key=lambda name: getattr(self, name))


def roofline(
    topology: Topology,
    mesh: Mapping[str, int],
    *,
    flops: float,
    touched: float,
    found: Iterable[Collective],
    dtype: str = "bfloat16",
) -> Roofline:
    """The roofline of a device's share of a step.

    Args:
      mesh: ``mesh.shape``, the axes with their sizes in order.
      flops: operations of one device, with those that the program does twice.
      touched: bytes that one device reads or writes at least.
      found: the collectives of the program.
      dtype: of the matrix products' operands, "bfloat16" or "float32".

    >>> from jaxformer.planning.topology import parse
    >>> reduced = Collective("all-reduce", 2 * 10**9, 2 * 10**9, 4, ("fsdp",), 1, "")
    >>> sheet = roofline(parse("v5p:2x2x1"), {"fsdp": 4}, flops=459e10, touched=2765e6, found=[reduced])
    >>> sheet.compute, sheet.memory, round(sheet.network, 6), sheet.bound       # 3 GB at 200 GB/s
    (0.01, 0.001, 0.015, 'network')
    """
    network = sum(one.count * one.wire / _rate(topology, mesh, one) for one in found)
    peak = {"bfloat16": topology.chip.flops, "float32": topology.chip.float32_flops}[dtype]
    return Roofline(flops / peak, touched / topology.chip.memory_rate, network)


def _rate(topology: Topology, mesh: Mapping[str, int], one: Collective) -> float:
    """Bytes/s at which a device sends in a collective.

    A ring on a torus goes both ways round, two devices have one link between them, and a permutation sends one way;
    through NVLink's switch each sends at its full rate, to whomever.  What leaves a slice, or a host of GPUs, is shared
    out over all of the devices there that take part, each with an adapter of its own; where each sends something else
    to each, nothing can be shared.  Of the groups of devices that do the same side by side, the slowest counts.
    """
    size, chip = math.prod(mesh.values()), topology.chip
    link = chip.link_rate / 2 if one.devices == 2 and not chip.gpu else chip.link_rate
    joined = topology.joined or size // mesh.get("slice", 1)
    along = [number for number, name in enumerate(mesh) if name in one.axes]
    places = np.arange(size).reshape(tuple(mesh.values()))
    groups = np.moveaxis(places, along, range(-len(along), 0)).reshape(-1, math.prod(mesh[name] for name in one.axes))
    hosts = groups // joined
    crossing = hosts[np.ptp(hosts, axis=1) > 0]
    if not len(crossing):
        return link
    shared = min(np.unique(group, return_counts=True)[1].min() for group in crossing) if one.kind in _SHARED else 1
    return min(link, shared * chip.network_rate)
