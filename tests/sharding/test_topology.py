"""Topologies by name, whether or not a compiler for them is installed."""

import importlib.util
import re

import pytest

from jaxformer import sharding
from jaxformer.sharding import topology
from jaxformer.training.progress import PEAKS


@pytest.mark.parametrize("name", topology.NAMES)
def test_usual_names(name):
    kind, chip, size = topology.parse(name)
    assert chip is topology.CHIPS[kind]
    assert 1 <= size <= chip.largest


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v5q:4x4x8", "unknown topology 'v5q:4x4x8'; near it are v5p:4x4x8"),
        ("v5p:4x4", "near it are v5p:4x4x8"),
        ("v6e:4x4x4", "near it are v6e:4x4"),
        ("v5p", "unknown topology 'v5p'; near it are v5p"),
        ("v5p:4x4x8;touch x", "unknown topology 'v5p:4x4x8;touch x'"),
        ("", "unknown topology ''"),
        ("v6e:16x32", "512 chips, but a slice of v6e has 1 to 256; several slices are an axis of the mesh: slice=2"),
        ("v6e:0x4", "0 chips"),
    ],
)
def test_refusals(name, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        topology.devices(name)


def test_what_to_install(monkeypatch):
    """The version is the one that this JAX asks for."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs libtpu, but no TPU: pip install 'libtpu==0\.0\.\d+\.\*'"):
        topology.devices("v5p:2x2x2")


def test_peaks_are_those_of_training():
    """Of a chip, as utilisation is worked out while training."""
    names = {"v5e": "TPU v5 lite", "v5p": "TPU v5", "v6e": "TPU v6 lite"}
    assert {kind: topology.CHIPS[kind].flops for kind in names} == {kind: PEAKS[name] for kind, name in names.items()}


def test_devices():
    pytest.importorskip("libtpu", reason="no libtpu, which compiles for TPUs: make test-faults has it")
    two = topology.devices("v5p:2x2x2", slices=2)
    assert [device.slice_index for device in two] == [0] * 8 + [1] * 8
    assert dict(sharding.mesh("slice=2,fsdp=8", two).shape) == {"slice": 2, "fsdp": 8}
    assert len(topology.devices("tpu7x:2x2x1")) == 8  # of four chips
    with pytest.raises(ValueError, match=r"libtpu knows no topology 'v5p:5x5x5' .*near it are v5p:"):
        topology.devices("v5p:5x5x5")
