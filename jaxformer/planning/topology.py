"""Target hardware by name: its data sheet, and its devices for compiling ahead of time."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import math
import os
import re
from collections.abc import Iterator, Sequence

import jax
from jax.experimental import topologies
from jax.sharding import Mesh

from jaxformer import hardware, sharding
from jaxformer.errors import ConfigError, did_you_mean
from jaxformer.sharding.mesh import num_slices
from jaxformer.sharding.mesh import parse as parse_mesh
from jaxformer.targets import Device


@dataclasses.dataclass(frozen=True)
class SliceSizes:
    """The slices of TPUs, or clusters of GPUs, of one chip."""

    shapes: tuple[str, ...]
    """The usual slices or clusters; others of the same form are also accepted."""
    largest: int
    """The number of chips of the largest slice or cluster."""


_PLANE = "1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"
_CUBE = "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16"
_HOSTS = "1x1", "1x8", "2x8", "4x8", "8x8", "16x8", "32x8", "64x8"
SIZES = {
    "v4": SliceSizes(_CUBE, 4096),
    "v5e": SliceSizes(_PLANE, 256),
    "v5p": SliceSizes(_CUBE, 6144),
    "v6e": SliceSizes(_PLANE, 256),
    "tpu7x": SliceSizes(_CUBE, 9216),
    "a100": SliceSizes(_HOSTS, 8192),
    "h100": SliceSizes(_HOSTS, 8192),
    "h200": SliceSizes(_HOSTS, 8192),
    "b200": SliceSizes(_HOSTS, 8192),
}
"""The chips for which programs can be compiled ahead of time."""
_GPUS_OF_A_HOST = 8
NAMES = [f"{kind}:{shape}" for kind, sizes in SIZES.items() for shape in sizes.shapes]
"""The usual topologies."""


@dataclasses.dataclass(frozen=True)
class Topology:
    """A slice of TPUs, given by the sides of its torus, or a cluster of GPUs, given by hosts and GPUs of a host."""

    kind: str
    shape: tuple[int, ...]

    @property
    def chip(self) -> hardware.Chip:
        """The data sheet of one device."""
        return hardware.CHIPS[self.kind]

    @property
    def size(self) -> int:
        """The number of chips; each chip of TPU7x is two devices."""
        return math.prod(self.shape)

    @property
    def num_devices(self) -> int:
        """The number of JAX's devices."""
        return self.size * {"tpu7x": 2}.get(self.kind, 1)

    @property
    def gpus_per_host(self) -> int | None:
        """The number of consecutive devices that fast links join: the GPUs of a host, or None for a slice of TPUs."""
        return self.shape[-1] if self.chip.gpu else None

    @property
    def available(self) -> int:
        """The bytes of a device's memory that JAX uses: three quarters of a GPU's, unless a variable says otherwise.

        Raises:
          ConfigError: the variable is not a positive number, or two variables are set.
        """
        return int(self.chip.memory * (_memory_fraction() if self.chip.gpu else 1.0))


def _memory_fraction() -> float:
    """Returns the share of a GPU's memory, from the variables that JAX reads; as in JAX, empty is unset."""
    name, deprecated = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"
    values = {variable: os.environ[variable] for variable in (name, deprecated) if os.environ.get(variable)}
    if len(values) == 2:
        raise ConfigError(
            f"both {name} and {deprecated} are set, which JAX refuses; the second is deprecated: unset it"
        )
    for variable, text in values.items():
        with contextlib.suppress(ValueError):
            if 0 < float(text) < math.inf:
                return float(text)
        raise ConfigError(f"{variable} must be a positive number, such as 0.9, got {text!r}")
    return 0.75


def parse(name: str) -> Topology:
    """Returns the topology of a name such as ``v5p:4x4x8``, a torus of TPUs, or ``h100:16x8``, 16 hosts of 8 GPUs.

    Raises:
      ConfigError: the chip is unknown, or has no slice of that shape; the message suggests the most similar name.

    >>> parse("v5p:4x4x8").size, parse("h100:16x8").gpus_per_host
    (128, 8)
    """
    kind, _, shape = name.partition(":")
    kind = hardware.OTHER_NAMES.get(kind, kind)
    valid = kind in SIZES and re.fullmatch(r"[0-9]{1,9}(x[0-9]{1,9})+", shape)
    if not valid or shape.count("x") != SIZES[kind].shapes[0].count("x"):
        raise ConfigError(f"unknown topology {name!r}{_nearest(kind, shape)} (chips: {', '.join(SIZES)})")
    topology, largest = Topology(kind, tuple(map(int, shape.split("x")))), SIZES[kind].largest
    if not 1 <= topology.size <= largest:
        limits = f"a cluster of {kind} has 1 to {largest}"
        if not topology.chip.gpu:
            limits = f"a slice of {kind} has 1 to {largest}; several slices are an axis of the mesh: slice=2,..."
        raise ConfigError(f"topology {name!r} has {topology.size} chips, but {limits}")
    if topology.gpus_per_host and topology.gpus_per_host > _GPUS_OF_A_HOST:
        raise ConfigError(
            f"topology {name!r} must be hosts x GPUs of a host, at most {_GPUS_OF_A_HOST}, got {topology.gpus_per_host}"
        )
    if not topology.chip.gpu and any(side > 1 and side % 2 for side in topology.shape[:2]):
        raise ConfigError(
            f"topology {name!r}: the first two sides of a slice must each be 1 or even, as a host has 2 x 2 chips, got "
            f"{shape}{_nearest(kind, shape)}"
        )
    return topology


def _nearest(kind: str, shape: str) -> str:
    """Returns the nearest of the usual topologies; those of the same chip come first."""
    return did_you_mean(f"{kind}:{shape}", [name for name in NAMES if name.startswith(f"{kind}:")] or NAMES)


def devices(name: str, *, slices: int = 1) -> Sequence[Device]:
    """Returns the devices of this many slices of a topology, to compile for; they need not be on this machine.

    Raises:
      ConfigError: the topology is unknown, or the compiler for it, libtpu or JAX's CUDA wheels, is not installed.
    """
    topology = parse(name)
    if topology.chip.gpu:
        return _gpus(topology)
    return _tpus(topology, slices)


def mesh(name: str, text: str) -> Mesh:
    """Returns the mesh of a string such as ``slice=2,fsdp=256`` over the devices of one or several slices.

    Raises:
      ConfigError: an unknown topology, a mesh that does not fit it, or no compiler for it.
    """
    topology = parse(name)  # an unknown topology is reported before a mesh that is wrong, and that before a compiler
    slices = num_slices(text)
    if text:
        parse_mesh(text, slices * topology.num_devices)
    return sharding.mesh(text, devices(name, slices=slices))


def _tpus(topology: Topology, slices: int) -> Sequence[Device]:
    shape = "x".join(map(str, topology.shape))
    name = f"{topology.kind}:{shape}"
    if importlib.util.find_spec("libtpu") is None:
        raise ConfigError(f"compiling for {name} needs libtpu, but no TPU: pip install '{wanted_libtpu()}'")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # otherwise libtpu queries the cloud for the TPU type
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # a TPU has one process; compiling for one needs no TPU
    description: dict[str, str | int] = {"num_slices": slices} if slices > 1 else {}
    if topology.kind == "v4":
        description["chip_config_name"] = "megacore"  # the two cores of a chip are one device, as on a real slice
    try:
        # With flags libtpu is not silenced: an unknown flag ends the process, and only libtpu's message says why.
        with contextlib.nullcontext() if os.environ.get("LIBTPU_INIT_ARGS") else _quiet():
            return topologies.get_topology_desc(platform="tpu", topology_name=name, **description).devices
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"libtpu has no topology {name!r} ({reason}){_nearest(topology.kind, shape)}") from error


def _gpus(topology: Topology) -> Sequence[Device]:
    if not any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        wanted = f"jax[cuda12]=={jax.__version__}"
        raise ConfigError(
            f"compiling for {topology.kind} needs 5 GB of CUDA wheels, but no GPU: pip install '{wanted}'"
        )
    hosts, gpus = topology.shape
    with _quiet():
        described = topologies.get_topology_desc(
            platform="cuda", topology=f"1x{hosts}x{gpus}", target_config=_target_config(topology.chip)
        )
    return described.devices


def _target_config(chip: hardware.Chip) -> str:
    """Returns the `GpuTargetConfigProto` of a GPU that is not on this machine, as text.

    The limits are those of its compute capability, in the CUDA C++ Programming Guide; the numbers of multiprocessors,
    their clocks and caches are those of the SXM modules, from NVIDIA's architecture white papers.
    """
    gpu = _CUDA[chip.cuda_name]
    return f"""
        platform_name: "CUDA"
        device_description_str: "{chip.cuda_name}"
        runtime_version {{ major: 12 minor: 8 }}
        dnn_version_info {{ major: 9 minor: 8 }}
        gpu_device_info {{
          cuda_compute_capability {{ major: {gpu.capability} minor: 0 }}
          core_count: {gpu.cores}  fpus_per_core: {gpu.fpus}  clock_rate_ghz: {gpu.clock}  l2_cache_size: {gpu.l2_cache}
          device_memory_size: {int(chip.memory)}  memory_bandwidth: {int(chip.memory_bandwidth)}
          threads_per_warp: 32  threads_per_block_limit: 1024  threads_per_core_limit: 2048
          registers_per_block_limit: 65536  registers_per_core_limit: 65536
          shared_memory_per_block: {48 * 2**10}  shared_memory_per_block_optin: {gpu.shared_memory - 2**10}
          shared_memory_per_core: {gpu.shared_memory}
          block_dim_limit_x: {2**31 - 1}  block_dim_limit_y: 65535  block_dim_limit_z: 65535
        }}
    """


@dataclasses.dataclass(frozen=True)
class _Cuda:
    capability: int
    cores: int
    """Streaming multiprocessors."""
    fpus: int
    """Units for float32 in each of them."""
    clock: float
    """GHz."""
    l2_cache: int
    shared_memory: int
    """Bytes of a multiprocessor; a block can have all but 1 KiB of them."""


_HOPPER = _Cuda(9, 132, 128, 1.98, 50 * 2**20, 228 * 2**10)
_CUDA = {
    hardware.CHIPS["a100"].cuda_name: _Cuda(8, 108, 64, 1.41, 40 * 2**20, 164 * 2**10),
    hardware.CHIPS["h100"].cuda_name: _HOPPER,
    hardware.CHIPS["h200"].cuda_name: _HOPPER,
    hardware.CHIPS["b200"].cuda_name: _Cuda(10, 148, 128, 1.965, 126 * 2**20, 228 * 2**10),
}


def wanted_libtpu() -> str:
    """Returns the version of libtpu that the installed JAX requires, from its metadata.

    >>> wanted_libtpu().startswith("libtpu==")
    True
    """
    for needed in importlib.metadata.requires("jax") or ():
        if pinned := re.match(r"(libtpu\s*==\s*[\w.*]+)", needed):
            return pinned[1].replace(" ", "")
    return f"jax[tpu]=={jax.__version__}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences standard error, also for C++, because libtpu warns that it finds no TPU."""
    stderr, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(null)
