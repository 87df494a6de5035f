"""The roofline, against numbers computed by hand."""

import dataclasses

import pytest

from jaxformer.planning.hlo import Collective
from jaxformer.planning.roofline import Roofline, roofline
from jaxformer.planning.topology import parse


def gather(*axes, kind="all-gather", count=1):
    """Of four devices, so that each sends three quarters of 4 GB: 3 GB."""
    return Collective(kind, 4 * 10**9, 4 * 10**9, 4, axes, count, "")


def network(name, mesh, *found):
    return roofline(parse(name), mesh, flops=0, touched=0, collectives=found).network


def test_sums_over_collectives():
    """3 GB are sent of 4; 200 GB/s along the torus, 12.5 GB/s between slices."""
    mesh = {"slice": 4, "fsdp": 4}
    found = [gather("fsdp", count=10), gather("slice", count=2)]
    sheet = roofline(parse("v6e:2x2"), mesh, flops=918e9, touched=1638e6, collectives=found)
    assert sheet.compute == pytest.approx(1e-3)
    assert sheet.memory == pytest.approx(1e-3)
    assert sheet.network == pytest.approx(10 * 3 / 200 + 2 * 3 / 12.5)


def test_neighbors_share_the_outgoing_network():
    """Two devices of each slice, or host, in a ring: each sends half of what leaves."""
    assert network("v6e:2x2", {"slice": 2, "fsdp": 4}, gather("slice", "fsdp")) == pytest.approx(3 / (4 * 12.5))
    assert network("v6e:2x2", {"slice": 2, "data": 2, "fsdp": 2}, gather("slice", "data")) == pytest.approx(3 / 25)
    assert network("h100:4x8", {"data": 4, "fsdp": 8}, gather("data")) == pytest.approx(3 / 50)
    assert network("h100:4x8", {"data": 8, "fsdp": 4}, gather("data")) == pytest.approx(3 / (2 * 50))


def test_within_a_host():
    """NVLink, and never more than that: eight adapters are no faster than the links that feed them."""
    assert network("h100:4x8", {"data": 4, "fsdp": 8}, gather("fsdp")) == pytest.approx(3 / 450)
    assert network("h200:64x8", {"fsdp": 512}, gather("fsdp")) == pytest.approx(3 / 400)
    assert network("h200:1x2", {"fsdp": 2}, gather("fsdp")) == pytest.approx(3 / 450)


def test_the_slowest_group_counts():
    """Of four groups of six on three hosts, two cross from one host to the next, through two adapters at one end."""
    assert network("h100:3x8", {"data": 4, "tensor": 6}, gather("tensor")) == pytest.approx(3 / (2 * 50))
    assert network("h100:3x8", {"data": 6, "tensor": 4}, gather("tensor")) == pytest.approx(3 / 450)


def test_one_link_one_way():
    """On a torus: 100 GB/s to a neighbor, in a pair or in a ring; NVLink's switch has no neighbors."""
    pair = dataclasses.replace(gather("fsdp"), devices=2)
    permuted = dataclasses.replace(gather("fsdp", kind="collective-permute"), devices=2)
    assert network("v5p:2x1x1", {"fsdp": 2}, pair) == pytest.approx(2 / 100)
    assert network("v5p:2x2x1", {"fsdp": 4}, permuted) == pytest.approx(4 / 100)
    assert network("v5p:2x2x1", {"fsdp": 4}, gather("fsdp")) == pytest.approx(3 / 200)
    assert network("h100:1x2", {"fsdp": 2}, pair) == pytest.approx(2 / 450)
    assert network("h100:1x4", {"fsdp": 4}, permuted) == pytest.approx(4 / 450)


@pytest.mark.parametrize(("name", "seconds"), [("v5p:1x1x1", 1), ("h100:1x1", 2)])
def test_float32(name, seconds):
    """One pass in bfloat16 on a TPU, TF32 on a GPU: at JAX's default precision."""
    flops = parse(name).chip.bfloat16_flops
    sheet = roofline(parse(name), {"data": 1}, flops=flops, touched=0, collectives=[], dtype="float32")
    assert sheet.compute == pytest.approx(seconds, rel=1e-3)


def test_traffic_that_cannot_be_shared():
    """One that sends to its neighbor on the other host, or something else to each."""
    sent = dataclasses.replace(gather("context", kind="collective-permute"), devices=2)
    mesh = {"data": 2, "context": 16}
    assert network("h100:4x8", mesh, sent) == pytest.approx(4 / 50)
    assert network("h100:4x8", mesh, gather("context", kind="all-to-all")) == pytest.approx(3 / 50)
    assert network("h100:4x8", mesh, gather("context")) == pytest.approx(3 / 400)


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
