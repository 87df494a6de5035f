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
    float32_flops: float
    """Of float32 matrices at JAX's default precision, FLOP/s.  That is one pass in bfloat16 on a TPU, hence the same,
    and TF32 on these GPUs, half as fast (`jax.lax.Precision`)."""
    memory_rate: float
    """Of its memory, bytes/s."""
    link_rate: float
    """What it can send to its neighbors, bytes/s: along one axis of a TPU's torus, half of it each way round; or by
    NVLink, to any GPU of the host."""
    network_rate: float
    """What it can send through the slower network, bytes/s: to another slice of TPUs, or another host of GPUs."""
    shapes: tuple[str, ...]
    """Of the usual slices or clusters; others of the same form are tried, too."""
    largest: int
    """Chips of the largest slice or cluster."""
    gpu: str = ""
    """What CUDA calls it; empty for a TPU."""


GIB = 2**30
_PLANE = "1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"
_CUBE = "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16"
_HOSTS = "1x1", "1x8", "2x8", "4x8", "8x8", "16x8", "32x8", "64x8"
# TPUs, of a chip: docs.cloud.google.com/tpu/docs/{v5e,v5p,v6e,tpu7x}, read in 2026.  There the interconnect is of all
# ports and both directions; a ring along one axis sends through two ports, hence total / ports.  A TPU7x chip is two
# devices.  GPUs: NVIDIA's data sheets of the SXM modules, and of DGX H100 and H200 for the network (one 400 Gbit/s
# adapter a GPU); NVLink's 900 GB/s are of both directions.
CHIPS = {
    "v5e": Chip(16 * GIB, 197e12, 197e12, 819e9, 400e9 / 4, 25e9 / 8, _PLANE, 256),
    "v5p": Chip(95 * GIB, 459e12, 459e12, 2765e9, 1200e9 / 6, 50e9 / 8, _CUBE, 6144),
    "v6e": Chip(32 * GIB, 918e12, 918e12, 1638e9, 800e9 / 4, 100e9 / 8, _PLANE, 256),
    "tpu7x": Chip(96 * GIB, 2307e12 / 2, 2307e12 / 2, 7380e9 / 2, 1200e9 / 6 / 2, 100e9 / 8 / 2, _CUBE, 9216),
    "h100": Chip(84_929_347_584, 989e12, 494.7e12, 3352e9, 900e9 / 2, 400e9 / 8, _HOSTS, 8192, "NVIDIA H100 80GB HBM3"),
    "h200": Chip(150_754_820_096, 989e12, 494.7e12, 4800e9, 900e9 / 2, 400e9 / 8, _HOSTS, 8192, "NVIDIA H200"),
}
_GPUS_OF_A_HOST = 8
NAMES = [f"{kind}:{shape}" for kind, chip in CHIPS.items() for shape in chip.shapes]
"""The usual topologies."""


@dataclasses.dataclass(frozen=True)
class Topology:
    """A slice of TPUs, by the sides of its torus, or a cluster of GPUs, hosts by GPUs of a host."""

    kind: str
    shape: tuple[int, ...]

    @property
    def chip(self) -> Chip:
        """The data sheet."""
        return CHIPS[self.kind]

    @property
    def size(self) -> int:
        """The number of chips; of a TPU7x each is two devices."""
        return math.prod(self.shape)

    @property
    def joined(self) -> int | None:
        """How many devices, in their order, the fast links join: the GPUs of a host, or None for a slice of TPUs."""
        return self.shape[-1] if self.chip.gpu else None

    @property
    def available(self) -> int:
        """Bytes of a device's memory that JAX will take: of a GPU's three quarters, unless told otherwise.

        Raises:
          ValueError: told by something that is no positive number, or by two variables.
        """
        share = _memory_fraction() if self.chip.gpu else 1.0
        return int(self.chip.memory * share)


def _memory_fraction() -> float:
    """The share of a GPU's memory, from the variables that JAX reads, as it reads them: empty is unset."""
    name, deprecated = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"
    said = {variable: os.environ[variable] for variable in (name, deprecated) if os.environ.get(variable)}
    if len(said) == 2:
        raise ValueError(f"both {name} and {deprecated} are set, which JAX refuses; the second is deprecated: unset it")
    for variable, text in said.items():
        with contextlib.suppress(ValueError):
            if 0 < float(text) < math.inf:
                return float(text)
        raise ValueError(f"{variable}={text!r}: expected a positive number, such as 0.9")
    return 0.75


def parse(name: str) -> Topology:
    """The topology of a name such as ``v5p:4x4x8``, a torus of TPUs, or ``h100:16x8``, 16 hosts of 8 GPUs.

    Raises:
      ValueError: there is no such chip or no slice of that shape; the nearest names are in the message.

    >>> parse("v5p:4x4x8").size, parse("h100:16x8").joined
    (128, 8)
    """
    kind, _, shape = name.partition(":")
    known = kind in CHIPS and re.fullmatch(r"\d+(x\d+)+", shape)
    if not known or shape.count("x") != CHIPS[kind].shapes[0].count("x"):
        raise ValueError(f"unknown topology {name!r}; near it are {_near(name)}; chips: {', '.join(CHIPS)}")
    found = Topology(kind, tuple(map(int, shape.split("x"))))
    if not 1 <= found.size <= found.chip.largest:
        many = f"a cluster of {kind}" if found.chip.gpu else f"a slice of {kind}"
        further = "" if found.chip.gpu else "; several slices are an axis of the mesh: slice=2,..."
        raise ValueError(f"topology {name!r} has {found.size} chips, but {many} has 1 to {found.chip.largest}{further}")
    if found.joined and found.joined > _GPUS_OF_A_HOST:
        raise ValueError(f"topology {name!r}: hosts x GPUs of a host, of which there are at most {_GPUS_OF_A_HOST}")
    return found


def _near(name: str) -> str:
    kind = name.partition(":")[0]
    known = [other for other in NAMES if other.startswith(f"{kind}:")] or NAMES
    return ", ".join(difflib.get_close_matches(name, known, 4, cutoff=0.0))


def devices(name: str, *, slices: int = 1) -> Sequence[Any]:
    """The devices of this many slices of a topology, for `mesh` and for compiling; none of them is here.

    Raises:
      ValueError: an unknown topology, or the compiler for it, libtpu or JAX's CUDA wheels, is not installed.
    """
    found = parse(name)
    if found.chip.gpu:
        return _gpus(found)
    return _tpus(name, slices)


def _tpus(name: str, slices: int) -> Sequence[Any]:
    if importlib.util.find_spec("libtpu") is None:
        raise ValueError(f"compiling for {name} needs libtpu, but no TPU: pip install '{wanted_libtpu()}'")
    from jax.experimental import topologies

    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # or it asks the cloud which TPU this is
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # a TPU has one process; compiling for one needs no TPU
    options = {"num_slices": slices} if slices > 1 else {}
    try:
        # With flags it is heard: an unknown one ends the process, and only its own words say why.
        with contextlib.nullcontext() if os.environ.get("LIBTPU_INIT_ARGS") else _quiet():
            return topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"libtpu knows no topology {name!r} ({reason}); near it are {_near(name)}") from error


def _gpus(found: Topology) -> Sequence[Any]:
    if not any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        wanted = f"jax[cuda12]=={jax.__version__}"
        raise ValueError(f"compiling for {found.kind} needs 5 GB of CUDA wheels, but no GPU: pip install '{wanted}'")
    from jax.experimental import topologies

    hosts, gpus = found.shape
    with _quiet():
        described = topologies.get_topology_desc(
            platform="cuda", topology=f"1x{hosts}x{gpus}", target_config=_described(found.chip)
        )
    return described.devices


def _described(chip: Chip) -> str:
    """What XLA wants to know of a GPU that it cannot ask: its `GpuTargetConfigProto`, as text.

    The limits are those of compute capability 9.0, in the CUDA C++ Programming Guide; the caches and the 132
    multiprocessors at 1.98 GHz are those of Hopper's SXM modules.
    """
    return f"""
        platform_name: "CUDA"
        device_description_str: "{chip.gpu}"
        runtime_version {{ major: 12 minor: 8 }}
        dnn_version_info {{ major: 9 minor: 8 }}
        gpu_device_info {{
          cuda_compute_capability {{ major: 9 minor: 0 }}
          core_count: 132  fpus_per_core: 128  clock_rate_ghz: 1.98  l2_cache_size: {50 * 2**20}
          device_memory_size: {int(chip.memory)}  memory_bandwidth: {int(chip.memory_rate)}
          threads_per_warp: 32  threads_per_block_limit: 1024  threads_per_core_limit: 2048
          registers_per_block_limit: 65536  registers_per_core_limit: 65536
          shared_memory_per_block: {48 * 2**10}  shared_memory_per_block_optin: {227 * 2**10}
          shared_memory_per_core: {228 * 2**10}
          block_dim_limit_x: {2**31 - 1}  block_dim_limit_y: 65535  block_dim_limit_z: 65535
        }}
    """


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
