"""A real SLURM of one node: detection under srun, a preemption, requeuing, and the same losses."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time

import pytest

from tests.launch import programs

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]  # it waits for a queue and three trainings

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
ReturnToService=2
MpiDefault=none
SlurmdParameters=config_overrides
KillWait=10
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=1000 State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def run(*command, **environment):
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


@pytest.fixture
def slurm(tmp_path):
    """Starts a SLURM and yields the environment in which sbatch finds it."""
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if missing or os.geteuid():
        pytest.skip(f"needs root, and Debian's slurmctld slurmd slurm-client munge; missing: {missing}")
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        ports = one.getsockname()[1], two.getsockname()[1]
    for name in ("state", "spool", "munge"):
        (tmp_path / name).mkdir()
    (tmp_path / "munge").chmod(0o755)
    (tmp_path / "munge" / "key").write_bytes(os.urandom(1024))
    (tmp_path / "munge" / "key").chmod(0o400)
    text = CONFIGURATION.format(host=socket.gethostname().partition(".")[0], folder=tmp_path, ports=ports)
    (tmp_path / "slurm.conf").write_text(text)
    env = {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    munge = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    try:
        run("munged", "--force", *(f"--{option}={tmp_path}/munge/{file}" for option, file in munge.items()))
        run("slurmctld", "-i", **env)
        run("slurmd", **env)
        programs.until(lambda: "idle" in run("sinfo", "-h", "-o", "%T", **env), timeout=30)
        yield env
        run("scancel", "--user=root", **env)  # left by a test that failed halfway
        programs.until(lambda: not run("squeue", "-h", **env), timeout=60)
    finally:
        for path in (tmp_path / "slurmd.pid", tmp_path / "slurmctld.pid", tmp_path / "munge" / "pid"):
            if path.exists():
                os.kill(int(path.read_text()), 15)


def path_with(folder, line):
    """Returns a search path on which `jaxformer` is a line of shell."""
    shim = folder / "bin" / "jaxformer"
    shim.parent.mkdir()
    shim.write_text(f"#!/bin/sh\n{line}\n")
    shim.chmod(0o755)
    return f"{shim.parent}:{os.environ['PATH']}"


@pytest.mark.parametrize(("code", "state"), [(2, "FAILED"), (85, "PENDING")])
def test_tasks_that_end_one_after_the_other_keep_their_code(slurm, tmp_path, code, state):
    """Process 0 ends two seconds after the others that refuse with it: 2 is final, and 85 comes again without limit."""
    path = path_with(tmp_path, f"sleep $((2 - 2 * SLURM_PROCID)); exit {code}")
    env = programs.environment(tmp_path, PATH=path, JAXFORMER_RESTARTS="0", **slurm)
    file = str(programs.LAUNCH / "slurm" / "train.sbatch")
    words = ["sbatch", "--parsable", "--ntasks-per-node=2", f"--chdir={tmp_path}", file, "base"]
    job = subprocess.run(words, env=env, check=True, capture_output=True, text=True, timeout=60).stdout.strip()
    log = tmp_path / f"jaxformer-{job}.log"
    programs.until(lambda: log.exists() and log.read_text().count(f"Exited with exit code {code}") == 2, timeout=60)
    programs.until(lambda: f"JobState={state}" in run("scontrol", "show", "job", job, **slurm), timeout=30)


def test_a_preempted_job_resumes(trained, slurm, tmp_path):
    path = path_with(tmp_path, f'exec {sys.executable} -m jaxformer.cli.main "$@"')
    env = programs.environment(trained, JAX_NUM_CPU_DEVICES="2", PATH=path, HOME=str(tmp_path), **slurm)

    def ask(*command):
        done = subprocess.run(command, env=env, cwd=trained, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    file = str(programs.LAUNCH / "slurm" / "train.sbatch")
    command = ["train", "demo", "--out", "queued", *programs.SETTINGS, "--devices", "4"]
    job = ask("sbatch", "--parsable", "--ntasks-per-node=2", "--cpus-per-task=2", file, *command[1:]).strip()
    log = trained / f"jaxformer-{job}.log"
    state = lambda: re.search(r"JobState=(\w+)", ask("scontrol", "show", "job", job))[1]

    programs.until(lambda: len(programs.losses(trained / "queued")) > 5 or state() in ("FAILED", "COMPLETED"))
    assert "CPUs=4 " in ask("scontrol", "show", "step", f"{job}.0")
    ask("scancel", "--signal=TERM", job)
    programs.until(lambda: state() in ("PENDING", "FAILED", "COMPLETED"), timeout=60)
    output = log.read_text()
    assert state() == "PENDING", output
    assert "process 1 of 2 (SlurmCluster, coordinator " in output
    assert "2 of 4 devices" in output
    stopped = len(programs.losses(trained / "queued"))
    assert 5 < stopped < 40

    time.sleep(1)
    ask("scontrol", "update", f"JobId={job}", "StartTime=now")  # SLURM would wait for two minutes
    programs.until(lambda: state() in ("FAILED", "COMPLETED"))
    output = log.read_text()
    assert state() == "COMPLETED", output
    assert "Restarts=1" in ask("scontrol", "show", "job", job)
    assert f"resumed from step {stopped}" in output
    assert programs.losses(trained / "queued") == programs.losses(trained / "whole")
