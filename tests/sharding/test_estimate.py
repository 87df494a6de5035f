"""The roofline's arithmetic, by hand."""

import functools

import pytest

from jaxformer.sharding.estimate import Roofline, roofline
from jaxformer.sharding.hlo import Collective
from jaxformer.sharding.topology import CHIPS

V6E = CHIPS["v6e"]
gather = functools.partial(Collective, "all-gather", 4_000, 4_000, 4)


def test_sums_over_collectives():
    """3,000 bytes are sent of 4,000; 200 GB/s along the torus, 12.5 GB/s between slices."""
    found = [gather(("fsdp",), 10, ""), gather(("slice", "data"), 2, "")]
    sheet = roofline(V6E, flops=918e9, touched=1638e6, found=found)
    assert sheet.compute == pytest.approx(1e-3)
    assert sheet.memory == pytest.approx(1e-3)
    assert sheet.network == pytest.approx(10 * 3_000 / 200e9 + 2 * 3_000 / 12.5e9)


@pytest.mark.parametrize(
    ("sheet", "bound", "overlapped", "serial"),
    [
        (Roofline(3, 2, 1), "compute", 3, 4),
        (Roofline(1, 3, 2), "memory", 3, 5),
        (Roofline(1, 2, 4), "network", 4, 6),
    ],
)
def test_bounds(sheet, bound, overlapped, serial):
    """Memory is read while products are made; the network may be waited for."""
    assert (sheet.bound, sheet.overlapped, sheet.serial) == (bound, overlapped, serial)
