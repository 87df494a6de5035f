"""The processes of one run: they find each other, agree on their settings, and do not block each other's exit.

The first source that gives an address wins: arguments, or JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID
together; the launchers that JAX detects by itself (SLURM under srun, Open MPI, Kubernetes, TPU). If none gives one, or
with JAX_NUM_PROCESSES=1, this process is alone.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import os
import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping

import jax
import numpy as np
from jax._src.clusters import ClusterEnv  # JAX has no public way to ask what it would detect without connecting
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer.errors import ConfigError, JaxformerError
from jaxformer.multihost import connections, processes

PROCESS_COUNTS = {
    "OMPI_COMM_WORLD_SIZE": "Open MPI",
    "PMI_SIZE": "MPI",
    "SLURM_NTASKS": "SLURM",
    "SKYPILOT_NUM_NODES": "SkyPilot",
}
"""The environment variables in which launchers give the number of processes."""

_this_process: Cluster | None = None  # the cluster of this process, once it is connected


class DistributedError(JaxformerError, RuntimeError):
    """The processes of a run did not find each other, or devices are missing: a restart may help."""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The rank of this process in a run, and where this information comes from.

    `local_devices` are the GPUs of this host that the process uses; () for all.
    """

    method: str
    coordinator: str = ""
    num_processes: int = 1
    process_id: int = 0
    local_devices: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Returns one line for the log; it initializes the devices."""
        devices = f"{jax.local_device_count()} of {jax.device_count()} devices ({jax.devices()[0].device_kind})"
        at = f", coordinator {self.coordinator}" * bool(self.coordinator)
        return f"process {self.process_id} of {self.num_processes} ({self.method}{at}): {devices}"


def initialize(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    devices: int | None = None,
) -> Cluster:
    """Connects this process with the other processes of its run; call it before anything uses a device.

    Others may take JAXFORMER_INIT_TIMEOUT (300) seconds to connect; process 0 says which addresses have. A process with
    no heartbeat for JAXFORMER_HEARTBEAT_TIMEOUT (100) seconds is dead, and all end. An uncaught exception ends it.

    Args:
      coordinator: ``host:port`` of process 0.
      devices: the number of devices that all processes must have together.

    Raises:
      ConfigError: settings that contradict each other, in this process or between processes, or more devices.
      DistributedError: other processes did not connect, the coordinator's port is in use, the processes have different
        numbers of devices, or there are too few devices in all.
    """
    global _this_process
    cluster = detect(os.environ, coordinator, num_processes, process_id)
    if cluster.num_processes > 1:
        _this_process, report = cluster, sys.excepthook
        sys.excepthook = lambda *about: (report(*about), exit_process(1))
    if cluster.coordinator:
        _connect(cluster)
    processes.find_devices()
    if cluster.num_processes > 1:
        _check_counts(cluster.num_processes)
    if devices is not None and jax.device_count() != devices:
        error = DistributedError if jax.device_count() < devices else ConfigError  # a broken device, or a wrong number
        where = f"{cluster}, on {socket.gethostname()}"
        raise error(f"expected {devices} devices in all, but there are {jax.device_count()}: {where}")
    return cluster


def detect(
    environment: Mapping[str, str],
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> Cluster:
    """Returns the cluster that `initialize` connects to, without connecting.

    Raises:
      ConfigError: settings that contradict each other, or several processes that have no address of each other.

    >>> detect({"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"}).process_id
    3
    """
    coordinator = coordinator or environment.get("JAX_COORDINATOR_ADDRESS") or None
    count = _number(environment, "JAX_NUM_PROCESSES", num_processes)
    rank = _number(environment, "JAX_PROCESS_ID", process_id)
    cluster = _detected(environment, coordinator) if count is None and rank is None else None
    if count == 1:
        # Without a coordinator JAX sums inside the process, in another order than gloo, so a request for gloo is kept.
        gloo = environment.get("JAX_CPU_COLLECTIVES_IMPLEMENTATION") == "gloo"
        cluster = Cluster("as set", coordinator if gloo and coordinator else "")
    elif cluster is None and (coordinator, count, rank) == (None, None, None):
        cluster = _alone(environment)
    elif cluster is None:
        if coordinator is None or count is None or rank is None:
            raise ConfigError(
                "coordinator, number of processes and process id (JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, "
                f"JAX_PROCESS_ID) go together, got {coordinator}, {count} and {rank}"
            )
        cluster = Cluster("as set", coordinator, count, rank, _devices_as_set(environment))
    if not 0 <= cluster.process_id < cluster.num_processes:
        raise ConfigError(f"process id {cluster.process_id} of {cluster.num_processes} processes")
    if cluster.coordinator:
        _check_address("the coordinator", cluster.coordinator)
    return cluster


def check_equal(settings: Mapping[str, str]) -> None:
    """Checks that all processes call it with the same names and texts; they wait for each other and exchange hashes.

    Raises:
      ConfigError: in every process, with the names that differ and the processes and hosts that differ from process 0.

    >>> check_equal({"seed": "1"})
    """
    if jax.process_count() == 1:
        return
    names, hosts = sorted(settings), _hosts()
    if differing := _unlike_first(_gathered(_digest("\0".join(names)))):
        raise ConfigError(
            f"{_named(differing, hosts)} have other settings than process 0: run the same code everywhere"
        )
    digests = _gathered(b"".join(_digest(settings[name]) for name in names)).reshape(len(hosts), len(names), 32)
    differences = {name: _unlike_first(digests[:, i]) for i, name in enumerate(names)}
    if mismatches := [f"{name} of {_named(x, hosts)}" for name, x in differences.items() if x]:
        raise ConfigError(f"not the same as in process 0 ({hosts[0]}): {'; '.join(mismatches)}")


def unequal_processes(text: str) -> list[str]:
    """Returns the names of the processes whose text differs from process 0's; all processes must call it.

    >>> unequal_processes("alone")
    []
    """
    if jax.process_count() == 1:
        return []
    unlike = _unlike_first(_gathered(_digest(text)))
    hosts = _hosts() if unlike else []
    return [_named([i], hosts) for i in unlike]


def random_bytes() -> bytes:
    """Returns 16 random bytes, those of the first process in all; all processes must call it."""
    own = os.urandom(16)
    return own if jax.process_count() == 1 else bytes(_gathered(own)[0])


def heartbeat_seconds() -> int:
    """Returns the seconds of silence after which a process counts as dead."""
    return _seconds(os.environ, "JAXFORMER_HEARTBEAT_TIMEOUT", 100)


def exit_process(code: int) -> None:
    """Ends this process now, with this exit code, if it is one of several.

    At a normal exit, JAX waits for all processes and aborts with its own exit code; a failed process must not wait.
    The first process ends last, because the others abort as soon as it is gone.
    """
    if _this_process is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        if _this_process.process_id == 0:
            time.sleep(2)
        os._exit(code)


def _check_counts(num_processes: int) -> None:
    """Checks that all processes were given this number of processes, and have the same number of devices.

    Raises:
      ConfigError: the numbers of processes differ.
      DistributedError: the numbers of devices differ, perhaps because one is broken.
    """
    hosts = _hosts()
    numbers = [int.from_bytes(bytes(row)) for row in _gathered(num_processes.to_bytes(4))]
    if len(set(numbers)) > 1:
        raise ConfigError(f"the processes must be given the same number of processes: {_numbered(numbers, hosts)}")
    counts = Counter(device.process_index for device in jax.devices())
    devices = [counts[i] for i in range(len(hosts))]
    if len(set(devices)) > 1:
        text = f"the processes must have the same number of devices: {_numbered(devices, hosts)}"
        raise DistributedError(f"{text}; if a device is broken, start on other hosts")


def _check_address(name: str, address: str) -> None:
    host, _, port = address.rpartition(":")
    is_host = re.fullmatch(r"[^\s:/\[\]]+|\[[0-9A-Fa-f:.]+(%[^\s\]]+)?\]", host)  # gRPC takes no other ones
    if not (is_host and re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 65536):
        raise ConfigError(f"{name} must be host:port (of IPv6, such as [::1]:8476), got {address!r}")


def _check_port(address: str) -> None:
    """Checks that this process can listen at the address; two coordinators on one port would mix up their runs.

    Raises:
      DistributedError: another process listens there, perhaps that of another run.
    """
    host, _, port = address.rpartition(":")
    try:
        family, *_, name = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that are closing do not count
            probe.bind(name)
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):  # others are JAX's to report
            raise DistributedError(
                f"the coordinator cannot listen on port {port} of {socket.gethostname()}: {error.strerror}; if another "
                "run uses it, set another in JAX_COORDINATOR_PORT, or in JAX_COORDINATOR_ADDRESS"
            ) from error


def _connect(cluster: Cluster) -> None:
    host, _, port = cluster.coordinator.rpartition(":")
    # gRPC would look for the coordinator behind a proxy, loopback included, and not find it.
    direct = os.environ.get("no_grpc_proxy") or os.environ.get("no_proxy")  # noqa: SIM112 - as gRPC spells it
    os.environ["no_grpc_proxy"] = ",".join(filter(None, (direct, host)))  # noqa: SIM112
    jax.config.update("jax_check_proxy_envs", False)
    limit = _seconds(os.environ, "JAXFORMER_INIT_TIMEOUT", 300)
    heartbeat = heartbeat_seconds()
    # The default is open to the whole network, so a local coordinator binds to the loopback only.
    bind_address = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS") or f"[::]:{port}"
    if host in ("localhost", "127.0.0.1"):
        bind_address = f"127.0.0.1:{port}"
    _check_address("JAX_COORDINATOR_BIND_ADDRESS", bind_address)
    if cluster.process_id == 0:
        _check_port(bind_address)
    failed: list[BaseException] = []

    def connect() -> None:
        try:
            jax.distributed.initialize(
                cluster.coordinator,
                cluster.num_processes,
                cluster.process_id,
                coordinator_bind_address=bind_address,
                local_device_ids=list(cluster.local_devices),
                initialization_timeout=limit + 60,  # JAX would abort the process
                heartbeat_timeout_seconds=heartbeat,
            )
        except BaseException as error:  # raised again below
            failed.append(error)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    this = f"process {cluster.process_id} of {cluster.num_processes}, on {socket.gethostname()}"
    for waited in range(0, limit, every := max(1, limit // 10)):  # one that hangs looks like one that starts late
        others = connections.awaited(cluster.process_id, cluster.num_processes, cluster.coordinator)
        if waited and thread.is_alive():
            print(f"{this}: {others} did not connect yet, after {waited} of {limit} s", file=sys.stderr, flush=True)
        thread.join(min(every, limit - waited))
    if thread.is_alive():  # the others are about to end, too, so `others` is of the last report
        raise DistributedError(f"{this}: {others} did not connect within {limit} s; all must have the same number")
    if failed:
        raise DistributedError(f"cannot connect to {cluster.coordinator}: {failed[0]}") from failed[0]


def _detected(environment: Mapping[str, str], coordinator: str | None) -> Cluster | None:
    for kind in ClusterEnv._cluster_types:
        # A pod outside an Indexed Job, perhaps a notebook, has no other processes to look for.
        outside_job = kind.__name__ == "K8sCluster" and "JOB_COMPLETION_INDEX" not in environment
        if kind.opt_in_only_method or outside_job or not kind.is_env_present():
            continue
        port, limit = environment.get("JAX_COORDINATOR_PORT"), _seconds(environment, "JAXFORMER_INIT_TIMEOUT", 300)
        try:
            count, rank = kind.get_process_count(), kind.get_process_id()
            if count == 1:
                return Cluster(kind.__name__)
            address = coordinator or kind.get_coordinator_address(timeout_secs=limit, override_coordinator_port=port)
            return Cluster(kind.__name__, address, count, rank, gpus_of_task(environment, kind.get_local_process_id()))
        except RuntimeError as error:
            if kind.__name__ == "OmpiCluster":  # version 5: JAX needs mpi4py to read it
                return None
            raise DistributedError(f"{kind.__name__}: {error}") from error
    return None


def _alone(environment: Mapping[str, str]) -> Cluster:
    """Returns a single process; raises a ConfigError if it is one of several, which would all write the same run."""
    for name, launcher in PROCESS_COUNTS.items():
        if (_number(environment, name) or 1) > 1:
            start = {"SLURM": "start it with srun"}.get(launcher, "set JAX_COORDINATOR_ADDRESS and JAX_PROCESS_ID")
            text = f"{launcher} has {environment[name]} processes ({name}), but their addresses are unknown"
            raise ConfigError(f"{text}: {start}, or JAX_NUM_PROCESSES=1 for one process alone")
    return Cluster("alone")


def gpus_of_task(environment: Mapping[str, str], local_rank: int | None) -> tuple[int, ...]:
    """Returns the indices, among the GPUs that this task sees, of those that it must use; () stands for all.

    JAX takes one for each task of SLURM and Open MPI, so seven of eight would be idle with one task per node.
    """
    if devices := _devices_as_set(environment):
        return devices
    tasks = _tasks_here(environment)
    if local_rank is None or tasks == 1:
        return ()
    # CUDA ignores everything after -1; SLURM writes NoDevFiles for a task without GPUs.
    visible = re.sub(r"(^|,)\s*(-1|NoDevFiles)\b.*", "", environment.get("CUDA_VISIBLE_DEVICES", ""))
    num_visible = len([item for item in visible.split(",") if item])
    if not num_visible:
        return (local_rank,)
    if num_visible < (_number(environment, "SLURM_GPUS_ON_NODE") or 0):
        return ()  # bound to this task already
    if num_visible % tasks:
        raise ConfigError(f"{num_visible} GPUs cannot be divided among the {tasks} tasks of this node")
    each = num_visible // tasks
    return tuple(range(local_rank * each, (local_rank + 1) * each))


def _devices_as_set(environment: Mapping[str, str]) -> tuple[int, ...]:
    text = environment.get("JAX_LOCAL_DEVICE_IDS", "").replace(" ", "")
    if not re.fullmatch(r"([0-9]+(,[0-9]+)*)?", text):
        raise ConfigError(f"JAX_LOCAL_DEVICE_IDS must be whole numbers, separated by commas, got {text!r}")
    return tuple(int(item) for item in text.split(",") if item)


def _tasks_here(environment: Mapping[str, str]) -> int:
    """Returns the number of tasks of this run on this node; SLURM writes those of all nodes as ``4(x2),3``."""
    if "OMPI_COMM_WORLD_LOCAL_SIZE" in environment:
        return int(environment["OMPI_COMM_WORLD_LOCAL_SIZE"])
    counts: list[int] = []
    for item in environment.get("SLURM_STEP_TASKS_PER_NODE", "1").split(","):
        tasks, _, times = item.partition("(x")
        counts += [int(tasks)] * int(times.rstrip(")") or 1)
    return counts[min(int(environment.get("SLURM_NODEID", "0")), len(counts) - 1)]


def _number(environment: Mapping[str, str], name: str, argument: int | None = None) -> int | None:
    """Returns an argument or, if it is None, the number in a variable of the environment."""
    if argument is not None or not (text := environment.get(name)):
        return argument
    if not re.fullmatch("[0-9]+", text):
        raise ConfigError(f"{name} must be a whole number, got {text!r}")
    return int(text)


def _seconds(environment: Mapping[str, str], name: str, default: int) -> int:
    if _number(environment, name) == 0:
        raise ConfigError(f"{name} must be at least 1, got 0")
    return _number(environment, name) or default


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _gathered(data: bytes) -> np.ndarray:
    """Returns the bytes of every process, one row for each; the numbers of their devices may differ."""
    one_each = {device.process_index: device for device in reversed(jax.devices())}
    mesh = Mesh([one_each[i] for i in sorted(one_each)], ("process",))
    place = lambda *names: NamedSharding(mesh, PartitionSpec(*names))
    rows = jax.make_array_from_process_local_data(place("process"), np.frombuffer(data, np.uint8)[None])
    return np.asarray(jax.jit(lambda x: x, out_shardings=place())(rows))


def _hosts() -> list[str]:
    """Returns the host of every process."""
    host = socket.gethostname().encode()[:64].ljust(64, b"\0")
    return [bytes(row).rstrip(b"\0").decode() for row in _gathered(host)]


def _unlike_first(rows: np.ndarray) -> list[int]:
    return [i for i in range(1, len(rows)) if (rows[i] != rows[0]).any()]


def _named(processes: list[int], hosts: list[str]) -> str:
    return ", ".join(f"process {i} ({hosts[i]})" for i in processes)


def _numbered(numbers: list[int], hosts: list[str]) -> str:
    """Returns text such as ``process 3 (node09) 7, the others 8``."""
    usual = max(set(numbers), key=lambda number: (numbers.count(number), number))
    unlike = [f"process {i} ({hosts[i]}) {number}" for i, number in enumerate(numbers) if number != usual]
    return f"{', '.join(unlike)}, the others {usual}"
