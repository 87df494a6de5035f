"""Data sheets: the chip of each device kind that JAX reports."""

import os
import pathlib

import pytest

from jaxformer import hardware

# Device kinds as JAX reports them, with the dense bfloat16 peak of the maker's data sheet, TFLOP/s.
PEAKS = {
    "NVIDIA H100 PCIe": 756,
    "NVIDIA H100 80GB HBM3": 989,
    "NVIDIA H100 NVL": 835.5,
    "NVIDIA H200": 989,
    "NVIDIA GH200 480GB": 989,
    "NVIDIA A100-SXM4-80GB": 312,
    "NVIDIA A100-SXM4-40GB": 312,
    "Tesla V100-SXM2-16GB": 125,
    "NVIDIA B200": 2250,
    "NVIDIA GB200": 2500,
    "TPU v4": 275,
    "TPU v5 lite": 197,
    "TPU v5e": 197,
    "TPU v5": 459,
    "TPU v5p": 459,
    "TPU v6 lite": 918,
    "TPU v6e": 918,
    "TPU7x": 1153.5,
}


@pytest.mark.parametrize(("kind", "peak"), PEAKS.items())
def test_peaks(kind, peak):
    chip = hardware.by_device_kind(kind)
    assert chip.bfloat16_flops == peak * 1e12
    assert chip.gpu == kind.startswith(("NVIDIA", "Tesla"))


@pytest.mark.parametrize("kind", ["cpu", "", "NVIDIA GeForce RTX 3090", "NVIDIA RTX A1000", "TPU v3"])
def test_other_kinds_are_unknown(kind):
    assert hardware.by_device_kind(kind) is None


def test_main_memory_is_the_limit_of_machine_or_control_group(monkeypatch):
    files = files_are(monkeypatch, {"/sys/fs/cgroup/memory.max": "max\n"})
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert hardware.host_memory() == machine > 2**28
    files["/sys/fs/cgroup/memory.max"] = "1048576\n"
    assert hardware.host_memory() == 2**20


SLURM = "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n"
OLD = "9:cpu,cpuacct:/\n4:memory:/slurm/uid_1/job_7\n0::/\n"
JOB, ABOVE = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7", "/sys/fs/cgroup/system.slice"
OLD_JOB = "/sys/fs/cgroup/memory/slurm/uid_1/job_7"


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        (SLURM, {f"{JOB}/step_0/user/task_0/memory.max": "max\n", f"{JOB}/memory.max": "4096\n"}, 4096),
        (SLURM, {f"{JOB}/memory.max": "8192\n", f"{ABOVE}/memory.max": "4096\n"}, 4096),
        (SLURM, {f"{JOB}/memory.max": "4096\n", f"{ABOVE}/memory.max": "8192\n"}, 4096),
        (OLD, {f"{OLD_JOB}/memory.limit_in_bytes": "4096\n"}, 4096),
        (OLD, {"/sys/fs/cgroup/memory/slurm/memory.limit_in_bytes": "4096\n"}, 4096),
        (OLD, {f"{OLD_JOB}/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        # A container that sees its own group as the root, but the host's path of it.
        ("4:memory:/docker/1f2e\n", {"/sys/fs/cgroup/memory/memory.limit_in_bytes": "4096\n"}, 4096),
        ("0::/docker/1f2e\n", {"/sys/fs/cgroup/memory.max": "4096\n"}, 4096),
        ("0::/mine\n", {"/sys/fs/cgroup/other/memory.max": "4096\n"}, None),
    ],
)
def test_limits_of_all_groups_of_the_process_count(monkeypatch, groups, limits, expected):
    files_are(monkeypatch, {"/proc/self/cgroup": groups, **limits})
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert hardware.host_memory() == (expected or machine)


def files_are(monkeypatch, files):
    """Makes these the only files."""

    def read(path):
        if str(path) not in files:
            raise FileNotFoundError(path)
        return files[str(path)]

    monkeypatch.setattr(pathlib.Path, "read_text", read)
    return files


def test_data_sheets():
    assert not hardware.CHIPS.keys() & hardware.OTHER_NAMES.keys()
    for chip in hardware.CHIPS.values():
        assert chip.float32_flops <= chip.bfloat16_flops
        assert chip.network_bandwidth < chip.link_bandwidth < chip.memory_bandwidth < chip.bfloat16_flops
        if chip.gpu:
            assert hardware.by_device_kind(chip.cuda_name) is chip
