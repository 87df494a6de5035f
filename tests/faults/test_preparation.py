"""Two hosts tokenize one corpus; one of them dies or freezes in the middle."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.faults.hosts import FILES, HEARTBEAT, PAIRS, PROGRAMS, ROOT, report, write_pairs

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
PROGRAM = """
import pathlib, sys, time
from jaxformer.config import changed
from jaxformer.data import pipeline, units
from jaxformer.multihost import cluster
from jaxformer.tasks import registry

units.UNIT, pipeline.SMALL = 100, 200  # 40 units of the 4,000 pairs
write = units.write_unit

def slow(*job):
    time.sleep(0.3)
    write(*job)

units.write_unit = slow
cluster.initialize()
cache, run = map(pathlib.Path, sys.argv[1:3])
files = dict(zip(("source", "target"), sys.argv[3:]))
settings = {"corpus": "files", **files, "held_out": 500, "vocab_size": 400, "cache": str(cache)}
config = changed(registry.resolve("demo"), {"data": settings})
task = registry.task_of(config)
run.mkdir(exist_ok=True)
task.prepare(config, task.read(config), run)
cluster.exit_process(0)
"""


class Hosts:
    """Two processes of a run that only tokenize, each with a cache."""

    def __init__(self, folder, *caches):
        write_pairs()
        self.folder = folder
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        common = os.environ | PROGRAMS
        common |= {
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": "1",
            "JAX_NUM_PROCESSES": str(len(caches)),
            "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
            "JAXFORMER_HEARTBEAT_TIMEOUT": str(HEARTBEAT),
            "PYTHONPATH": str(ROOT),
        }
        self.processes = []
        for rank, cache in enumerate(caches):
            with (folder / f"{rank}.txt").open("a") as said:
                command = [sys.executable, "-c", PROGRAM, str(folder / cache), str(folder / "run"), *FILES]
                environment = common | {"JAX_PROCESS_ID": str(rank)}
                self.processes.append(subprocess.Popen(command, env=environment, stdout=said, stderr=said))

    def said(self, rank):
        return (self.folder / f"{rank}.txt").read_text(errors="replace")

    def wait_for(self, condition, limit=300):
        deadline = time.monotonic() + limit
        while not condition():
            assert time.monotonic() < deadline, self.said(0)
            time.sleep(0.02)

    def codes(self, limit=300):
        try:
            return [process.wait(limit) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()
                process.wait()


def contents(folder):
    """The token files below a folder; the vocabulary aside."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.glob("*/*")}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The files that one process makes."""
    folder = tmp_path_factory.mktemp("one")
    assert Hosts(folder, "tokens").codes() == [0]
    return contents(folder / "tokens")


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
@pytest.mark.parametrize("victim", [1, 0])
def test_a_host_that_dies_ends_the_other(tmp_path, expected, fault, victim):
    """With a code that schedulers retry, within a few heartbeats; finished units stay, and the files are the same."""
    hosts = Hosts(tmp_path, "tokens", "tokens")
    made = lambda: sorted((tmp_path / "tokens").glob("*.units/*.npz"))
    hosts.wait_for(lambda: len(made()) >= 6)
    hosts.processes[victim].send_signal(fault)
    began = time.monotonic()
    code = hosts.processes[1 - victim].wait(8 * HEARTBEAT)
    seconds = time.monotonic() - began
    hosts.processes[victim].kill()
    hosts.codes()
    assert code not in (0, 2, 85, 130), hosts.said(1 - victim)
    kept = {path: path.stat().st_mtime_ns for path in made()}
    assert 6 <= len(kept) < 40
    again = Hosts(tmp_path, "tokens", "tokens")
    again.wait_for(lambda: len(made()) > len(kept))
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert again.codes() == [0, 0], again.said(0)
    assert contents(tmp_path / "tokens") == expected
    report(f"{fault.name} of host {victim} that tokenizes", tried=1, survived=1, seconds_to_detect=seconds)


def test_hosts_that_share_no_cache_make_all(tmp_path, expected):
    hosts = Hosts(tmp_path, "a", "b")
    assert hosts.codes() == [0, 0], hosts.said(0)
    assert contents(tmp_path / "a") == contents(tmp_path / "b") == expected
    assert f"each of 2 processes tokenizes all 8,000 sentences: they do not share the cache {tmp_path}/a" in hosts.said(
        0
    )
    assert "each of" not in hosts.said(1)


JOB = """
import pathlib, sys, time
from jaxformer.cli.main import main
from jaxformer.data import pipeline, units
from jaxformer.tokenizers.subwords import SubwordTokenizer

units.UNIT, pipeline.SMALL = 100, 200
folder, part, *files = sys.argv[1:]
train = SubwordTokenizer.train

def slow(*lines, **options):
    with open(f"{folder}/learned.txt", "a") as file:
        file.write(f"{part}\\n")
    time.sleep(600 if part == "1/2" else 0)  # until it is killed
    return train(*lines, **options)

SubwordTokenizer.train = slow
settings = ["--data.vocab-size", "400", "--workers", "1", *files]
sys.exit(main(["data", "prepare", "demo", "--out", f"{folder}/tokens", "--part", part, *settings]))
"""


def test_a_job_takes_over_the_vocabulary_of_a_dead_one(tmp_path, expected):
    """One of two jobs learns it and the other waits; after kill -9, that one learns it, and the files are the same."""
    learned = tmp_path / "learned.txt"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}

    def start(part):
        with (tmp_path / f"{part[0]}.txt").open("a") as said:
            return subprocess.Popen(
                [sys.executable, "-c", JOB, str(tmp_path), part, *PAIRS], env=environment, stderr=said
            )

    def wait_for(path, text):
        deadline = time.monotonic() + 200
        while not (path.exists() and text in path.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.02)

    first = start("1/2")
    wait_for(learned, "1/2")
    second = start("2/2")
    wait_for(tmp_path / "2.txt", f"waiting for process {first.pid} on {socket.gethostname()}")
    first.kill()
    first.wait()
    assert second.wait(200) == 0, (tmp_path / "2.txt").read_text()
    assert start("1/2").wait(200) == 0
    assert learned.read_text().split() == ["1/2", "2/2"]
    assert contents(tmp_path / "tokens") == expected
    report("kill -9 of a job that learns a vocabulary", tried=1, survived=1)
