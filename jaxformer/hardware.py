"""Data sheets of accelerators: the single table for utilization in training and for plans on target hardware."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import platform
import re
import resource
import sys

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """The data sheet of one accelerator, per device as JAX sees it; bytes and seconds."""

    device_kinds: tuple[str, ...]
    """Words of JAX's ``device_kind`` by which this chip is recognized."""
    memory: float
    """Bytes of its memory (HBM)."""
    bfloat16_flops: float
    """Dense bfloat16 matrix peak, FLOP/s; float16 for a V100, which has no bfloat16."""
    float32_flops: float
    """Peak of float32 matrix products at JAX's default precision, FLOP/s. On a TPU that is one pass in bfloat16, so the
    same; on GPUs since the A100 it is TF32, half as fast (`jax.lax.Precision`)."""
    memory_bandwidth: float
    """Bandwidth of its memory, bytes/s."""
    link_bandwidth: float
    """Bytes/s that it can send to its neighbors: along one axis of a TPU's torus, half of it in each direction; or by
    NVLink, to any GPU of the host."""
    network_bandwidth: float
    """Bytes/s that it can send through the slower network: to another slice of TPUs, or another host of GPUs."""
    cuda_name: str = ""
    """CUDA's name for it; empty for a TPU."""

    @property
    def gpu(self) -> bool:
        """True for a GPU, False for a TPU."""
        return bool(self.cuda_name)


# TPUs, per chip: docs.cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e,tpu7x}, read in 2026. The interconnect there counts all
# ports and both directions; a ring along one axis sends through two ports, so total / ports. v4's page gives no
# interconnect: 6 links of 50 GB/s each way are from Jouppi et al. 2023, and its network is assumed to be v5p's.
# A TPU7x chip is two devices. GPUs: NVIDIA's data sheets of the SXM modules (H100 PCIe apart), and of the DGX
# systems for the network, per GPU; NVLink's figures, such as 900 GB/s, count both directions.
CHIPS = {
    "v4": Chip(("TPU v4",), 32 * GIB, 275e12, 275e12, 1200e9, 600e9 / 6, 50e9 / 8),
    "v5e": Chip(("TPU v5 lite", "TPU v5e"), 16 * GIB, 197e12, 197e12, 819e9, 400e9 / 4, 25e9 / 8),
    "v5p": Chip(("TPU v5", "TPU v5p"), 95 * GIB, 459e12, 459e12, 2765e9, 1200e9 / 6, 50e9 / 8),
    "v6e": Chip(("TPU v6 lite", "TPU v6e"), 32 * GIB, 918e12, 918e12, 1638e9, 800e9 / 4, 100e9 / 8),
    "tpu7x": Chip(("TPU7x",), 96 * GIB, 2307e12 / 2, 2307e12 / 2, 7380e9 / 2, 1200e9 / 6 / 2, 100e9 / 8 / 2),
    "v100": Chip(("V100",), 16 * GIB, 125e12, 15.7e12, 900e9, 300e9 / 2, 50e9 / 8, "Tesla V100-SXM2-16GB"),
    "a100": Chip(("A100",), 80 * GIB, 312e12, 156e12, 2039e9, 600e9 / 2, 200e9 / 8, "NVIDIA A100-SXM4-80GB"),
    "h100-pcie": Chip(("H100 PCIe",), 80 * GIB, 756e12, 378e12, 2039e9, 600e9 / 2, 400e9 / 8, "NVIDIA H100 PCIe"),
    "h100-nvl": Chip(("H100 NVL",), 94 * GIB, 835.5e12, 417.5e12, 3938e9, 600e9 / 2, 400e9 / 8, "NVIDIA H100 NVL"),
    "h100": Chip(("H100",), 84_929_347_584, 989e12, 494.7e12, 3352e9, 900e9 / 2, 400e9 / 8, "NVIDIA H100 80GB HBM3"),
    "h200": Chip(("H200", "GH200"), 150_754_820_096, 989e12, 494.7e12, 4800e9, 900e9 / 2, 400e9 / 8, "NVIDIA H200"),
    "b200": Chip(("B200",), 180e9, 2250e12, 1125e12, 8000e9, 1800e9 / 2, 400e9 / 8, "NVIDIA B200"),
    "gb200": Chip(("GB200",), 186e9, 2500e12, 1250e12, 8000e9, 1800e9 / 2, 400e9 / 8, "NVIDIA GB200"),
}
"""Chips by their usual names."""
OTHER_NAMES = {"v5litepod": "v5e"}
"""Names of the same chips in a cloud's commands."""
GROUP_LIMITS = (
    ("", "/sys/fs/cgroup", "memory.max"),
    ("memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
)
"""The controller in /proc/self/cgroup, the folder, and the file with a group's limit: of version 2, which names no
controller, and of version 1."""


def num_cores() -> int:
    """Returns the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_memory() -> int:
    """Returns the largest number of bytes of memory that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def host_memory() -> int:
    """Returns the bytes of main memory for this process: the machine's, or fewer if a control group limits it.

    The smallest limit counts, of the process's own group, such as a SLURM job's or a container's, and of all its
    ancestors.
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in _limits_of_groups():
        with contextlib.suppress(OSError, ValueError):  # no such kind of group, or "max"
            limits.append(int(file.read_text()))
    return min(limits)


def _limits_of_groups() -> list[pathlib.Path]:
    """Returns the files that may hold memory limits of this process's control groups (man 7 cgroups).

    A container may see its own group as the root, and still read the host's path for it, so the root is always
    included, and a path that does not exist is not an error.
    """
    lines = ["0::/", "0:memory:/"]
    with contextlib.suppress(OSError, ValueError):
        lines += pathlib.Path("/proc/self/cgroup").read_text().splitlines()
    files = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        group = pathlib.PurePosixPath(path)
        for controller, root, name in GROUP_LIMITS:
            if controller in controllers.split(","):
                files += [pathlib.Path(root, *folder.parts[1:], name) for folder in (group, *group.parents)]
    return files


def processor_name() -> str:
    """Returns the name of the processor, such as "AMD EPYC 7763 64-Core Processor", or else its architecture."""
    with contextlib.suppress(OSError):  # Linux has the file
        for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def use_large_pages() -> None:
    """Replaces this process by the same command with huge pages of memory, which takes a seventh less time on a CPU.

    The C library reads the setting when a process starts, so call this before doing anything else. If GLIBC_TUNABLES is
    already set, even to an empty string, nothing is changed.
    """
    if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
        os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - the same command


def by_device_kind(kind: str) -> Chip | None:
    """Returns the chip of a ``jax.Device.device_kind``, or None for one that is not in the table.

    The longest match of whole words decides: "TPU v5 lite" is not a "TPU v5", and an "RTX A1000" is not an "A100".

    >>> by_device_kind("NVIDIA H100 80GB HBM3") == CHIPS["h100"], by_device_kind("cpu")
    (True, None)
    """
    matches = [
        (len(part), name)
        for name, chip in CHIPS.items()
        for part in chip.device_kinds
        if re.search(rf"\b{part}\b", kind)
    ]
    _, name = max(matches, default=(0, ""))
    return CHIPS.get(name)
