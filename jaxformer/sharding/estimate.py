"""A roofline of one training step: what the data sheet's rates allow at best.  An estimate, never a measurement."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from jaxformer.sharding.hlo import Collective
from jaxformer.sharding.topology import Chip


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Seconds that a step spends at least on each of three things, were it to do nothing else."""

    compute: float
    """Matrix products at the chip's peak."""
    memory: float
    """What it must read and write once."""
    network: float
    """All collectives, each at the rate of the axis that it crosses."""

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


def roofline(chip: Chip, *, flops: float, touched: float, found: Iterable[Collective]) -> Roofline:
    """The roofline of a device's share of a step.

    Args:
      flops: operations of one device.
      touched: bytes that one device reads or writes at least.
      found: the collectives of the program; those along `slice` cross the slow network, the others use one axis
        of the torus, which wraps around only where it is long enough and is then used both ways.

    >>> from jaxformer.sharding.topology import CHIPS
    >>> reduced = Collective("all-reduce", 2 * 10**9, 2 * 10**9, 4, ("fsdp",), 1, "")
    >>> sheet = roofline(CHIPS["v5p"], flops=459e10, touched=2765e6, found=[reduced])
    >>> sheet.compute, sheet.memory, round(sheet.network, 6), sheet.bound       # 3 GB at 200 GB/s
    (0.01, 0.001, 0.015, 'network')
    """
    network = sum(one.count * one.wire / (chip.slice_rate if "slice" in one.axes else chip.link_rate) for one in found)
    return Roofline(flops / chip.flops, touched / chip.memory_rate, network)
