"""The processes of a run, as launchers describe them; nothing here connects."""

import os
import socket
import sys
import threading
from types import SimpleNamespace

import jax
import pytest

from jaxformer.errors import ConfigError
from jaxformer.multihost import cluster, connections
from jaxformer.multihost.cluster import Cluster, detect, gpus_of_task

SET = {"JAX_COORDINATOR_ADDRESS": "node7:1234", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"}
SLURM = {
    "SLURM_JOB_ID": "4097",
    "SLURM_STEP_NODELIST": "node[07-09],other",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
    "SLURM_NODEID": "2",
}
OPEN_MPI = {
    "OMPI_MCA_orte_hnp_uri": "1314521088.0;tcp://10.96.0.1,10.148.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_VERSION": "4.1.5",
}


@pytest.fixture(autouse=True)
def only(monkeypatch):
    """An environment without launchers, to which a test adds one; JAX's classes read the real one."""
    for name in list(os.environ):
        if name.startswith(
            ("SLURM", "OMPI", "KUBERNETES", "JAX_NUM_PROC", "JAX_PROCESS", "JAX_CO", "JAX_CPU_", "JAX_LOCAL", "PMI")
        ):
            monkeypatch.delenv(name)
    return lambda variables: [monkeypatch.setenv(*item) for item in variables.items()] and os.environ


def test_settings_take_precedence_over_detection(only):
    assert detect(only({**SLURM, **SET})) == Cluster("as set", "node7:1234", 4, 3)
    assert detect(os.environ, "a:1", 2, 0) == Cluster("as set", "a:1", 2, 0)
    assert detect(only({"JAX_LOCAL_DEVICE_IDS": "2,3"})) == Cluster("as set", "node7:1234", 4, 3, (2, 3))


def test_one_process_alone(only):
    assert detect({}).num_processes == 1
    assert detect(only({**SLURM, "JAX_NUM_PROCESSES": "1"})).num_processes == 1
    assert detect(only({"SLURM_NTASKS": "1"})).num_processes == 1


def test_one_process_over_gloo(only):
    """By request: it has its own coordinator, without which JAX would sum in another order than gloo."""
    one = only({**SET, "JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"})
    assert detect(one) == Cluster("as set")
    assert detect(only({"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"})) == Cluster("as set", "node7:1234")
    assert detect(dict(one, JAX_COORDINATOR_ADDRESS="")) == Cluster("as set")


def test_slurm(only):
    found = detect(only(SLURM))
    assert found == Cluster("SlurmCluster", f"node07:{61440 + 1}", 4, 2)
    assert detect(only({"JAX_COORDINATOR_PORT": "99"})).coordinator == "node07:99"


def test_slurm_with_one_task_does_not_connect(only):
    assert detect(only({**SLURM, "SLURM_NTASKS": "1", "SLURM_PROCID": "0"})) == Cluster("SlurmCluster")


def test_open_mpi(only):
    address = f"10.96.0.1:{61440 + 1314521088 // 4096 % 4096}"
    assert detect(only({**SLURM, **OPEN_MPI})) == Cluster("OmpiCluster", address, 8, 5, (1,))


def test_open_mpi_5_without_mpi4py(only):
    """JAX cannot read it, and would end with a traceback; one process needs no information."""
    version_5 = {name: text for name, text in OPEN_MPI.items() if name != "OMPI_MCA_orte_hnp_uri"}
    only({**version_5, "OMPI_VERSION": "5.0.3"})
    with pytest.raises(ConfigError, match=r"Open MPI has 8 processes .*, or JAX_NUM_PROCESSES=1"):
        detect(os.environ)
    one = {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    assert detect(only(one)).num_processes == 1


def test_a_launcher_that_does_not_answer_is_an_error_to_retry(only, monkeypatch):
    only(SLURM)

    def fail():
        raise RuntimeError("Kubernetes API Error: 503")

    silent = SimpleNamespace(
        __name__="K8sCluster", opt_in_only_method=False, is_env_present=lambda: True, get_process_count=fail
    )
    monkeypatch.setattr(cluster.ClusterEnv, "_cluster_types", [silent])
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
    with pytest.raises(cluster.DistributedError, match="K8sCluster: Kubernetes API Error: 503"):
        detect(os.environ)


def test_an_ipv6_address_in_brackets(only):
    assert detect(only({**SET, "JAX_COORDINATOR_ADDRESS": "[2001:db8::1]:99"})).coordinator == "[2001:db8::1]:99"


@pytest.mark.parametrize("process", [0, 1])
def test_an_address_to_listen_at_has_a_port(only, process):
    """In all processes: otherwise the others would wait for the first, which has failed."""
    found = detect(only({**SET, "JAX_PROCESS_ID": str(process), "JAX_COORDINATOR_BIND_ADDRESS": "0.0.0.0"}))
    with pytest.raises(ConfigError, match=r"JAX_COORDINATOR_BIND_ADDRESS must be host:port .*, got '0.0.0.0'"):
        cluster._connect(found)


def test_a_pod_outside_a_job_is_alone(only):
    assert detect(only({"KUBERNETES_SERVICE_HOST": "10.0.0.1"})).num_processes == 1


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({**SET, "JAX_PROCESS_ID": ""}, "go together, got node7:1234, 4 and None"),
        ({"JAX_PROCESS_ID": "1"}, "go together, got None, None and 1"),
        ({"JAX_COORDINATOR_ADDRESS": "node7:1234"}, "go together, got node7:1234, None and None"),
        ({**SET, "JAX_PROCESS_ID": "4"}, "process id 4 of 4"),
        ({**SET, "JAX_PROCESS_ID": "-1"}, "JAX_PROCESS_ID must be a whole number, got '-1'"),
        ({**SET, "JAX_NUM_PROCESSES": "four"}, "JAX_NUM_PROCESSES must be a whole number, got 'four'"),
        (
            {**SET, "JAX_LOCAL_DEVICE_IDS": "0;1"},
            "JAX_LOCAL_DEVICE_IDS must be whole numbers, separated by commas, got '0;1'",
        ),
        ({**SET, "JAX_NUM_PROCESSES": "\u00b2"}, "JAX_NUM_PROCESSES must be a whole number, got '\u00b2'"),
        *(
            ({**SET, "JAX_COORDINATOR_ADDRESS": address}, rf"the coordinator must be host:port .*, got '{address}'")
            for address in ("node7", "node7:99999", ":1234", "2001:db8::1", "::1:8476", "http://node7:1234", " node7:1")
        ),
        (
            {
                **SET,
                "JAX_COORDINATOR_ADDRESS": "node7",
                "JAX_NUM_PROCESSES": "1",
                "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
            },
            "the coordinator must be host:port .*, got 'node7'",
        ),
        ({"SLURM_NTASKS": "2"}, r"SLURM has 2 processes \(SLURM_NTASKS\).*srun"),  # in a batch script
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "Open MPI has 2 processes"),  # version 5, which JAX 0.10 does not know
        ({"SKYPILOT_NUM_NODES": "3"}, "SkyPilot has 3 processes"),
    ],
)
def test_contradictions(only, variables, message):
    only(variables)
    for name in ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"):
        assert name not in os.environ
    with pytest.raises(ValueError, match=message):
        detect(os.environ)


@pytest.mark.parametrize("name", ["JAXFORMER_INIT_TIMEOUT", "JAXFORMER_HEARTBEAT_TIMEOUT"])
def test_a_timeout_of_zero_is_refused(only, name):
    """It was once read as the default of minutes."""
    only({**SET, name: "0"})
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        cluster._connect(detect(os.environ))


@pytest.mark.parametrize(
    ("variables", "local_rank", "expected"),
    [
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 0, ()),  # JAX alone would take one
        ({"SLURM_STEP_TASKS_PER_NODE": "4", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 3, (3,)),
        ({"SLURM_STEP_TASKS_PER_NODE": "2", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 1, (2, 3)),
        # Bound by SLURM: the task sees its own alone, and calls them 0 and 1.
        ({"SLURM_STEP_TASKS_PER_NODE": "2", "CUDA_VISIBLE_DEVICES": "0,1", "SLURM_GPUS_ON_NODE": "4"}, 1, ()),
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x2),2,4", "SLURM_NODEID": "2", "CUDA_VISIBLE_DEVICES": "0,1"}, 1, (1,)),
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x2),2", "SLURM_NODEID": "0", "CUDA_VISIBLE_DEVICES": "0,1"}, 0, ()),
        ({"SLURM_STEP_TASKS_PER_NODE": "2"}, 1, (1,)),  # nothing says how many there are: as JAX would
        ({"SLURM_STEP_TASKS_PER_NODE": "2", "CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 1, (1,)),  # the node has no GPU
        ({"SLURM_STEP_TASKS_PER_NODE": "2", "CUDA_VISIBLE_DEVICES": "0,1,-1,3"}, 1, (1,)),
        ({"SLURM_STEP_TASKS_PER_NODE": "2", "CUDA_VISIBLE_DEVICES": "GPU-1-a,GPU-2-1"}, 1, (1,)),
        ({"SLURM_STEP_TASKS_PER_NODE": "2", "JAX_LOCAL_DEVICE_IDS": "5,6"}, 1, (5, 6)),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, None, ()),
    ],
)
def test_gpus_of_a_task(variables, local_rank, expected):
    assert gpus_of_task(variables, local_rank) == expected


def test_every_gpu_of_a_node_has_one_task():
    for tasks in (1, 2, 4, 8):
        node = {"SLURM_STEP_TASKS_PER_NODE": str(tasks), "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
        shares = [gpus_of_task(node, rank) or tuple(range(8)) for rank in range(tasks)]
        assert sorted(sum(shares, ())) == list(range(8))
    with pytest.raises(ValueError, match="8 GPUs cannot be divided among the 3 tasks"):
        gpus_of_task({**node, "SLURM_STEP_TASKS_PER_NODE": "3"}, 0)


def test_another_number_of_devices_is_refused(only):
    """Fewer may be a broken device, which another start may avoid; more is a wrong setting."""
    assert "8 of 8 devices" in str(cluster.initialize(devices=8))
    here = rf"there are 8: process 0 of 1 .*, on {socket.gethostname()}$"
    with pytest.raises(cluster.DistributedError, match=f"expected 16 devices in all, but {here}") as fewer:
        cluster.initialize(devices=16)
    with pytest.raises(ConfigError, match=f"expected 4 devices in all, but {here}") as more:
        cluster.initialize(devices=4)
    assert (fewer.value.exit_code, more.value.exit_code) == (1, 2)


@pytest.mark.parametrize("listens_at", ["127.0.0.1", ""])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "10.0.0.7"])
def test_a_port_in_use_is_found_before_jax_uses_it(only, listens_at, host):
    """JAX would share it with the coordinator of the other run."""
    with socket.create_server((listens_at, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(cluster.DistributedError, match=f"cannot listen on port {port} of .*: Address already"):
            cluster._connect(Cluster("as set", f"{host}:{port}", 2, 0))
    cluster._check_port(f"127.0.0.1:{port}")
    cluster._check_port(f"[::]:{port}")
    cluster._check_port(f"no.such.host.invalid:{port}")  # JAX says so


@pytest.mark.parametrize("process", [0, 1])
def test_processes_that_wait_for_a_frozen_one_say_so(only, monkeypatch, capsys, process):
    """The silent process is the one that hangs; a restart without it would end the same."""
    only({"JAXFORMER_INIT_TIMEOUT": "2"})
    over = threading.Event()
    monkeypatch.setattr(jax.distributed, "initialize", lambda *_, **__: over.wait(60))
    monkeypatch.setattr(cluster, "_check_port", lambda _: None)
    monkeypatch.setattr(connections, "connected", lambda _: [])
    try:
        with pytest.raises(cluster.DistributedError, match=f"process {process} of 2, on .* within 2 s"):
            cluster._connect(Cluster("as set", "127.0.0.1:1", 2, process))
    finally:
        over.set()
    who = ("1 of the 1 others", "process 0 at 127.0.0.1:1, or another,")[process]
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"process {process} of 2, on {socket.gethostname()}: {who} did not connect yet, after 1 of 2 s"


@pytest.fixture
def three(monkeypatch):
    """Simulates three processes in one, with 2 devices each: the data that they would have sent are given."""
    devices = [SimpleNamespace(process_index=i) for i in (0, 0, 1, 1, 2, 2)]
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    monkeypatch.setattr(jax, "devices", lambda: devices)
    monkeypatch.setattr(cluster.socket, "gethostname", lambda: "a")
    rows = []

    def gathered(mine):
        sent = rows.pop(0)
        assert sent[0] == mine
        return cluster.np.stack([cluster.np.frombuffer(row, cluster.np.uint8) for row in sent])

    monkeypatch.setattr(cluster, "_gathered", gathered)
    send = lambda *exchanges: rows.extend([[name.encode().ljust(64, b"\0") for name in ("a", "b", "c")], *exchanges])
    return SimpleNamespace(send=send, devices=devices)


def test_numbers_that_differ_are_named(three):
    told = lambda *numbers: [number.to_bytes(4) for number in numbers]
    three.send(told(3, 3, 3))
    cluster._check_counts(3)
    three.send(told(3, 4, 3))
    with pytest.raises(ConfigError, match=r"the same number of processes: process 1 \(b\) 4, the others 3$"):
        cluster._check_counts(3)
    three.send(told(3, 3, 3))
    del three.devices[-1]
    broken = r"the same number of devices: process 2 \(c\) 1, the others 2; if a device is broken"
    with pytest.raises(cluster.DistributedError, match=broken) as error:
        cluster._check_counts(3)
    assert error.value.exit_code == 1  # the launchers try again


def test_one_process_agrees_with_itself_and_exits_normally():
    cluster.check_equal({"seed": "1"})
    cluster.exit_process(3)  # would end this process if it had others
    assert sys.excepthook is sys.__excepthook__
    assert not jax.distributed.is_initialized()


def test_processes_that_differ_are_named(three):
    sent = [{"seed": "1", "code": "a"}, {"seed": "2", "code": "a"}, {"seed": "1", "code": "b"}]

    def rows(sent):
        digest = cluster._digest
        yield [digest("\0".join(sorted(what))) for what in sent]
        yield [b"".join(digest(what[name]) for name in sorted(what)) for what in sent]

    three.send(*rows(sent))
    with pytest.raises(ValueError, match=r"process 0 \(a\): code of process 2 \(c\); seed of process 1 \(b\)"):
        cluster.check_equal(sent[0])
    sent = [sent[0], sent[0], {"x": "1"}]
    three.send(*list(rows(sent))[:1])
    with pytest.raises(ValueError, match=r"process 2 \(c\) have other settings"):
        cluster.check_equal(sent[0])
