"""Topologies by name, whether or not a compiler for them is installed."""

import importlib.util
import re

import pytest

from jaxformer import hardware, sharding
from jaxformer.planning import topology

FRACTIONS = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"


@pytest.mark.parametrize("name", topology.NAMES)
def test_usual_names(name):
    found = topology.parse(name)
    assert found.chip is hardware.CHIPS[found.kind]
    assert 1 <= found.size <= topology.SIZES[found.kind].largest
    assert f"{found.kind}:{'x'.join(map(str, found.shape))}" == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v5q:4x4x8", "unknown topology 'v5q:4x4x8'; did you mean 'v5p:4x4x8'?"),
        ("v5p:4x4", "did you mean 'v5p:4x4x8'?"),
        ("v6e:4x4x4", "did you mean 'v6e:4x4'?"),
        ("v5p", "unknown topology 'v5p'; did you mean 'v5p:"),
        ("v5p:4x4x8;touch x", "unknown topology 'v5p:4x4x8;touch x'"),
        ("", "unknown topology ''"),
        (f"v5e:{'9' * 5000}x1", "unknown topology 'v5e:999"),
        ("v6e:16x32", "512 chips, but a slice of v6e has 1 to 256; several slices are an axis of the mesh: slice=2"),
        ("v6e:0x4", "0 chips"),
        ("v5e:4x5", "must each be 1 or even, as a host has 2 x 2 chips, got 4x5; did you mean 'v5e:4x8'?"),
        ("v5p:5x5x5", "must each be 1 or even, as a host has 2 x 2 chips, got 5x5x5; did you mean 'v5p:"),
        ("h100:8", "unknown topology 'h100:8'; did you mean 'h100:"),
        ("h100:8x16", "must be hosts x GPUs of a host, at most 8, got 16"),
        ("h200:2000x8", "has 16000 chips, but a cluster of h200 has 1 to 8192"),
    ],
)
def test_refusals(name, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        topology.devices(name)


@pytest.mark.parametrize(
    ("name", "mesh", "message"),
    [
        ("v5e:4x4", "fsdp=3", "mesh 'fsdp=3' has fsdp 3 = 3 devices, but there are 16"),
        ("v4:2x2x1", "slice=2,fsdp=*,tensor=3", "8 devices cannot be divided by 6"),
        ("tpu7x:2x2x1", "fsdp=4", "but there are 8"),
        ("h100:2x8", "fsdp=9", "but there are 16"),
    ],
)
def test_a_mesh_that_does_not_fit_needs_no_compiler(monkeypatch, name, mesh, message):
    """It was refused only after the installation of 700 MB, or 5 GB."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=re.escape(message)):
        topology.mesh(name, mesh)


@pytest.mark.parametrize("kind", [name for name in topology.SIZES if not hardware.CHIPS[name].gpu])
def test_sides_of_slices(monkeypatch, kind):
    """One row of hosts is a slice too; the third side is not cut into hosts."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    names = ("1x1", "1x6", "4x6") if kind in ("v5e", "v6e") else ("1x1x3", "4x6x5")
    for shape in names:
        with pytest.raises(ValueError, match="needs libtpu"):
            topology.devices(f"{kind}:{shape}")


def test_names_of_clouds():
    """The same slice under the name in a cloud's commands."""
    assert topology.parse("v5litepod:4x4") == topology.parse("v5e:4x4")


def test_every_chip_of_a_cloud_can_be_planned():
    """All but old or rare GPUs, with the limits of their own generation."""
    assert {*hardware.CHIPS, *hardware.OTHER_NAMES} - {*topology.SIZES} == {
        *("v100", "h100-pcie", "h100-nvl", "gb200", "v5litepod")
    }
    cores = {}
    for kind in topology.SIZES:
        if (chip := hardware.CHIPS[kind]).gpu:
            text = topology._target_config(chip)
            assert f'device_description_str: "{chip.cuda_name}"' in text
            cores[kind] = re.search(r"major: (\d+) minor: 0 }\n +core_count: (\d+)", text).groups()
    assert cores == {"a100": ("8", "108"), "h100": ("9", "132"), "h200": ("9", "132"), "b200": ("10", "148")}


def test_the_error_has_the_command_to_install(monkeypatch):
    """The version is the one that this JAX requires."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs libtpu, but no TPU: pip install 'libtpu==0\.0\.\d+\.\*'"):
        topology.devices("v5p:2x2x2")
    with pytest.raises(ValueError, match=r"needs 5 GB of CUDA wheels, but no GPU: pip install 'jax\[cuda12\]==0\.1"):
        topology.devices("h100:1x8")


def test_the_memory_that_jax_uses(monkeypatch):
    """All of a TPU's, three quarters of a GPU's, or the fraction in a variable."""
    for name in FRACTIONS:
        monkeypatch.delenv(name, raising=False)
    assert topology.parse("v5e:1x1").available == 16 * 2**30
    assert topology.parse("h100:1x1").available == int(0.75 * 84_929_347_584)
    for said, unsaid in (FRACTIONS, reversed(FRACTIONS)):
        monkeypatch.setenv(said, ".9")
        monkeypatch.setenv(unsaid, "")
        assert topology.parse("h200:1x1").available == int(0.9 * 150_754_820_096)


@pytest.mark.parametrize("said", [".9 .9", "most ", "0 ", " nan", " -1"])
def test_wrong_memory_fractions_are_refused(monkeypatch, said):
    """The variables do not apply to TPUs."""
    for name, text in zip(FRACTIONS, said.split(" "), strict=True):
        monkeypatch.setenv(name, text)
    with pytest.raises(ValueError, match="which JAX refuses" if said == ".9 .9" else "must be a positive number"):
        _ = topology.parse("h100:1x1").available
    assert topology.parse("v5e:1x1").available == 16 * 2**30


def test_gpus():
    if not any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        pytest.skip("no CUDA wheels, 5 GB, which compile for GPUs: by hand")
    for kind in ("a100", "h100", "h200", "b200"):
        devices = topology.devices(f"{kind}:2x4")
        assert [device.process_index for device in devices] == [0] * 4 + [1] * 4
        assert {device.platform for device in devices} == {"gpu"}
        assert {hardware.by_device_kind(device.device_kind) for device in devices} == {hardware.CHIPS[kind]}


def test_devices():
    pytest.importorskip("libtpu", reason="no libtpu, which compiles for TPUs: make test-faults has it")
    two = topology.devices("v5p:2x2x2", slices=2)
    assert [device.slice_index for device in two] == [0] * 8 + [1] * 8
    assert dict(sharding.mesh("slice=2,fsdp=8", two).shape) == {"slice": 2, "fsdp": 8}
    for name in ("v4:2x2x1", "v5e:1x6", "v5p:1x2x3", "tpu7x:2x2x1"):
        assert len(topology.devices(name)) == topology.parse(name).num_devices
    for name in (
        "v4:2x2x1",
        "v5litepod:2x2",
        "v5p:2x2x1",
        "v6e:2x2",
        "tpu7x:2x2x1",
    ):  # the kinds that utilization goes by
        kind = topology.devices(name)[0].device_kind
        assert hardware.by_device_kind(kind) is topology.parse(name).chip


def test_slices_are_rows_of_the_mesh():
    """The slow network is crossed along `slice` and no other axis."""
    pytest.importorskip("libtpu", reason="no libtpu, which compiles for TPUs: make test-faults has it")
    two = topology.devices("v5p:2x2x2", slices=2)
    mesh = sharding.mesh("tensor=2,slice=2,fsdp=4", two)
    assert dict(mesh.shape) == {"slice": 2, "fsdp": 4, "tensor": 2}
    assert [{device.slice_index for device in row.flat} for row in mesh.devices] == [{0}, {1}]
    assert len({device.id for device in mesh.devices.flat}) == 16
    assert dict(sharding.mesh("", two).shape) == {"slice": 2, "data": 8}
    for text in ("fsdp=16", "data=2,fsdp=8", "slice=4,fsdp=4", "slice=1,fsdp=16"):
        with pytest.raises(ValueError, match="the devices are 2 slices: the mesh must begin slice=2"):
            sharding.mesh(text, two)
