"""The roofline of a training step: the best time that the data sheet allows. It is an estimate, not a measurement."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

import numpy as np

from jaxformer.planning.hlo import Collective
from jaxformer.planning.topology import Topology

_SHARED = "all-gather", "all-reduce", "reduce-scatter"
"""Collectives whose traffic out of a host or slice can be shared by all of its devices."""


@dataclasses.dataclass(frozen=True)
class Roofline:
    """The seconds that a step needs for computation, memory and network, each alone at the rates of the data sheet."""

    compute: float
    """Matrix products at the chip's peak."""
    memory: float
    """Reading and writing the bytes of the device's memory once."""
    network: float
    """All collectives, one after another, each on a ring along its mesh axes. This is not a lower limit: a mesh axis
    that lies along several dimensions of a torus can use the links of all of them, and two permutations can go opposite
    ways at once."""

    @property
    def overlapped(self) -> float:
        """The seconds of a step in which all three overlap."""
        return max(self.compute, self.memory, self.network)

    @property
    def serial(self) -> float:
        """The seconds of a step in which network and device wait for each other."""
        return max(self.compute, self.memory) + self.network

    @property
    def bound(self) -> str:
        """The name of the longest of the three."""
        return max(("compute", "memory", "network"), key=lambda name: getattr(self, name))


def roofline(
    topology: Topology,
    mesh: Mapping[str, int],
    *,
    flops: float,
    touched: float,
    collectives: Iterable[Collective],
    dtype: str = "bfloat16",
) -> Roofline:
    """Returns the roofline of a device's share of a step.

    Args:
      mesh: ``mesh.shape``, the axes with their sizes in order.
      flops: operations of one device, recomputed ones included.
      touched: the least number of bytes that one device reads or writes.
      collectives: the collectives of the program.
      dtype: the type of the matrix products' operands, "bfloat16" or "float32".

    >>> from jaxformer.planning.topology import parse
    >>> reduced = Collective("all-reduce", 2 * 10**9, 2 * 10**9, 4, ("fsdp",), 1, "")
    >>> sheet = roofline(parse("v5p:2x2x1"), {"fsdp": 4}, flops=459e10, touched=2765e6, collectives=[reduced])
    >>> sheet.compute, sheet.memory, round(sheet.network, 6), sheet.bound       # 3 GB at 200 GB/s
    (0.01, 0.001, 0.015, 'network')
    """
    network = sum(one.count * one.bytes_sent / _bandwidth(topology, mesh, one) for one in collectives)
    peak = {"bfloat16": topology.chip.bfloat16_flops, "float32": topology.chip.float32_flops}[dtype]
    return Roofline(flops / peak, touched / topology.chip.memory_bandwidth, network)


def _bandwidth(topology: Topology, mesh: Mapping[str, int], one: Collective) -> float:
    """Returns the bytes/s at which a device sends in a collective.

    A ring on a torus sends in both directions, two devices have one link between them, and a permutation sends one way;
    through NVLink's switch each device sends at its full rate to any other. The traffic out of a slice, or out of a
    host of GPUs, is shared by all participating devices there, each with its own adapter, except in an all-to-all and a
    permutation. If several groups communicate in parallel, the slowest counts.
    """
    size, chip = math.prod(mesh.values()), topology.chip
    link = chip.link_bandwidth / (1 + (one.devices == 2 and not chip.gpu))
    joined = topology.gpus_per_host or size // mesh.get("slice", 1)
    along = [number for number, name in enumerate(mesh) if name in one.axes]
    numbers = np.arange(size).reshape(tuple(mesh.values()))
    groups = np.moveaxis(numbers, along, range(-len(along), 0)).reshape(-1, math.prod(mesh[name] for name in one.axes))
    hosts = groups // joined
    crossing = hosts[np.ptp(hosts, axis=1) > 0]
    if not len(crossing):
        return link
    shared = min(np.unique(group, return_counts=True)[1].min() for group in crossing) if one.kind in _SHARED else 1
    return min(link, shared * chip.network_bandwidth)
