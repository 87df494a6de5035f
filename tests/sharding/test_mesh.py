"""Meshes from lines of text."""

import dataclasses
import re

import pytest

from jaxformer import sharding


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("", {"data": 8}),
        ("tensor=2,data=*", {"data": 4, "tensor": 2}),
        (" fsdp = 8 ", {"fsdp": 8}),
        ("context=2,tensor=2,data=2", {"data": 2, "context": 2, "tensor": 2}),
    ],
)
def test_mesh(text, shape):
    """In one order, outermost first, for any order of the words."""
    found = sharding.mesh(text)
    assert dict(found.shape) == shape
    assert list(found.shape) == list(shape)
    assert len(set(found.devices.flat)) == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data=4", "data 4 = 4 devices, but there are 8"),
        ("data=4,tensor=4", "data 4 x tensor 4 = 16 devices, but there are 8"),
        ("tenser=8", "no axis 'tenser'; did you mean 'tensor'?"),
        ("data", "expected axis=size, such as data=8,tensor=4, got 'data'"),
        ("data=2,data=4", "'data' twice"),
        ("data=0", "'data' must be at least 1, got 0"),
        ("data=*,tensor=*", "only one size may be *, got data and tensor"),
        ("data=3,tensor=*", "8 devices cannot be divided by 3"),
        ("data=" + 5000 * "9", "expected axis=size"),
        ("data=٨", "expected axis=size, such as data=8,tensor=4, got 'data=٨'"),
        ("a;touch x", "expected axis=size, such as data=8,tensor=4, got 'a;touch x'"),
    ],
)
def test_mesh_refusals(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        sharding.mesh(text)


@dataclasses.dataclass(frozen=True)
class Device:
    """What `mesh` reads of one."""

    id: int
    platform: str
    slice_index: int
    device_kind: str = ""


def test_hosts_of_gpus_need_no_axis():
    """JAX numbers each host of GPUs as a slice; several slices of TPUs need the axis `slice`."""
    gpus = [Device(n, "gpu", n // 8) for n in range(32)]
    for text in ("fsdp=8,data=4", "slice=4,fsdp=8", ""):
        grid = sharding.mesh(text, gpus)
        assert [device.id for device in grid.devices.flatten()] == list(range(32))
    tpus = [Device(n, "tpu", n // 8) for n in range(32)]
    with pytest.raises(ValueError, match="the devices are 4 slices: the mesh must begin slice=4"):
        sharding.mesh("fsdp=8,data=4", tpus)
