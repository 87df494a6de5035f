"""`launch/tpu_vm/train.py` with a stub `gcloud` that records its calls and knows the state of one TPU.

The commands for the hosts really run, in a shell with its own session, as sshd starts one.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from launch.names import share
from tests.launch import programs

STUB = """#!{python}
import json, os, subprocess, sys
with open("calls", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
verb = sys.argv[4]
if verb == "describe":
    state = open("state").read()
    if not state:
        sys.exit("ERROR: NOT_FOUND: Resource 'base' was not found")
    print(state)
if verb in os.environ.get("FAIL", "").split(","):
    sys.exit(255)
if verb == "ssh" and os.path.exists("host"):
    line = sys.argv[-2].removeprefix("--command=")
    code = subprocess.run(["bash", "-c", line], cwd="host", start_new_session=True).returncode
    sys.exit(code if code >= 0 else 128 - code)
"""
# Instead of a training: creates `ready`, and saves on SIGTERM unless it is stuck.
TRAINING = """
import pathlib, signal, sys, time
def save(*_):
    pathlib.Path("saved").touch()
    sys.exit(85)
signal.signal(signal.SIGTERM, signal.SIG_IGN if "--stuck" in sys.argv else save)
pathlib.Path("ready").touch()
while True:
    time.sleep(0.05)
"""
HOSTILE = ["a;touch x", "$(touch y)", "../x", "it's", "`touch z`", "two words"]
ZONE = "--zone=us-east5-a"


def command(folder, state, *arguments, name="base", options=()):
    """Prepares a folder with a stub of gcloud and the files for the hosts, and returns the script's command line."""
    executable(folder / "gcloud", STUB.format(python=sys.executable))
    (folder / "state").write_text(state)
    (folder / "calls").write_text("")
    (folder / "j-1.whl").touch()
    (folder / "experiments").mkdir(exist_ok=True)
    script = str(programs.LAUNCH / "tpu_vm" / "train.py")
    target = [name, "--zone", "us-east5-a", "--type", "v5litepod-16", "--spot", "--wheel", "j-1.whl"]
    return [sys.executable, script, *target, "--experiments", "experiments", *options, "--", *arguments]


def executable(path, text):
    path.write_text(text)
    path.chmod(0o755)


def environment(folder, **variables):
    clean = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")}
    return {**clean, "PATH": f"{folder}:{os.environ['PATH']}", **variables}


def train(folder, state, *arguments, fail="", variables=(), **settings):
    """Runs the script and returns its exit code, the calls of gcloud, and the errors."""
    done = subprocess.run(
        command(folder, state, *arguments, **settings),
        cwd=folder, env=environment(folder, FAIL=fail, **dict(variables)), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return done.returncode, calls(folder), done.stderr


def calls(folder):
    made = [json.loads(line) for line in (folder / "calls").read_text().splitlines()]
    assert all(call[:3] == ["compute", "tpus", "tpu-vm"] for call in made)
    return [call[3:] for call in made]


def lines(made):
    """Returns the shell commands among the calls."""
    assert all(call[1:3] == ["base", "--worker=all"] for call in made if call[0] == "ssh")
    return [call[3].removeprefix("--command=") for call in made if call[0] == "ssh"]


def sh(line, folder, shell="bash", **variables):
    options = {"env": environment(folder, **variables), "capture_output": True, "text": True, "timeout": 60}
    return subprocess.run([shell, "-c", line], cwd=folder, **options)


DESCRIBE = ["describe", "base", "--format=value(state)", ZONE]
DELETE = ["delete", "base", "--quiet", ZONE]
CREATE = ["create", "base", "--accelerator-type=v5litepod-16", "--version=v2-alpha-tpuv5-lite", "--spot", ZONE]


@pytest.mark.parametrize(
    ("state", "before"), [("", [CREATE]), ("READY", []), ("PREEMPTED", [DELETE, CREATE])], ids=["none", "ready", "gone"]
)
def test_the_slice_is_created_if_necessary_and_trains_on_all_hosts(tmp_path, state, before):
    code, made, errors = train(tmp_path, state, "demo", "--out", "/mnt/runs/base", options=["--nfs", "10.0.0.2:/runs"])
    assert code == 0, errors
    assert made[: 1 + len(before)] == [DESCRIBE, *before]
    stop, copy, mount, install, start = made[1 + len(before) :]
    assert copy == ["scp", str(tmp_path / "j-1.whl"), str(tmp_path / "experiments"), "base:", "--recurse",
                    "--worker=all", ZONE]  # fmt: skip
    stop, mount, install, start = lines([stop, mount, install, start])
    assert mount.startswith("share=10.0.0.2:/runs\n")
    assert install.startswith("wheel='./j-1.whl[train,tpu]'\n")
    assert start.startswith(stop)
    assert start.endswith(" train --train.stall-minutes=60 demo --out /mnt/runs/base")


def test_without_a_share_nothing_is_mounted(tmp_path):
    assert not [line for line in lines(train(tmp_path, "READY", "demo")[1]) if "mount" in line]


def test_the_experiments_are_those_of_the_source_tree(tmp_path):
    words = command(tmp_path, "READY", "demo")
    at = words.index("--experiments")
    del words[at : at + 2]
    subprocess.run(words, cwd=tmp_path, env=environment(tmp_path), check=True, timeout=60)
    (copy,) = [call for call in calls(tmp_path) if call[0] == "scp"]
    assert copy[2] == str(programs.ROOT / "experiments")


def test_arguments_reach_the_hosts_unchanged(tmp_path):
    code, made, _ = train(tmp_path, "READY", "base", *HOSTILE)
    assert code == 0
    line = lines(made)[-1].replace("exec .jaxformer/bin/python -u -m jaxformer.cli.main", "printf '%s\\0'")
    for shell in ("bash", "sh"):
        words = sh(line, tmp_path, shell).stdout.split("\0")[:-1]
        assert words == ["train", "--train.stall-minutes=60", "base", *HOSTILE]
    assert not [name for name in "xyz" if (tmp_path / name).exists()]


def test_flags_and_the_cache_reach_the_hosts(tmp_path):
    flags = {"XLA_FLAGS": "--xla_a=1 $(touch x)", "LIBTPU_INIT_ARGS": "--xla_tpu_b='y z'"}
    _, made, _ = train(tmp_path, "READY", "base", options=["--nfs", "10.0.0.2:/runs"], variables=flags)
    line = lines(made)[-1].split("exec ")[0]
    line += 'printf \'%s\\0\' "$XLA_FLAGS" "$LIBTPU_INIT_ARGS" "$JAXFORMER_CACHE"'
    assert sh(line, tmp_path, "sh").stdout.split("\0")[:-1] == [*flags.values(), "/mnt/runs/.cache"]


def host(folder):
    """Creates a host of the slice: a folder with a Python and a training, with nothing to install."""
    (folder / "host" / ".jaxformer" / "bin").mkdir(parents=True)
    (folder / "host" / ".jaxformer" / "bin" / "python").symlink_to(pathlib.Path(sys.executable).resolve())
    (folder / "host" / "jaxformer" / "cli").mkdir(parents=True)
    (folder / "host" / "jaxformer" / "__init__.py").touch()
    (folder / "host" / "jaxformer" / "cli" / "main.py").write_text(TRAINING)
    executable(folder / "python3", "#!/bin/sh\n")
    return folder / "host"


def started(folder, *arguments):
    """Starts the script in its own process group and returns it once its training runs."""
    (folder / "host" / "ready").unlink(missing_ok=True)
    process = subprocess.Popen(
        command(folder, "READY", *arguments), cwd=folder, env=environment(folder), start_new_session=True
    )
    programs.STARTED.append(process)
    programs.until((folder / "host" / "ready").exists, timeout=20)
    return process


def pid(machine):
    return int((machine / ".jaxformer.pid").read_text())


@pytest.fixture
def machine(tmp_path):
    """A host whose training ends with the test."""
    yield host(tmp_path)
    if (tmp_path / "host" / ".jaxformer.pid").exists() and running(pid(tmp_path / "host")):
        os.killpg(pid(tmp_path / "host"), signal.SIGKILL)


def running(number):
    stat = pathlib.Path(f"/proc/{number}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_hosts_save(tmp_path, machine, number):
    """The whole process group gets the signal, as from a terminal or supervise.py; the gcloud process survives it."""
    process = started(tmp_path, "demo")
    os.killpg(process.pid, number)
    assert process.wait(timeout=20) == 85
    assert (machine / "saved").exists()
    *_, start, stop = lines(calls(tmp_path))
    assert start.startswith(stop)


@pytest.mark.full
def test_a_training_left_behind_is_stopped_before_anything_is_copied(tmp_path, machine):
    """The launcher and its gcloud are killed without a signal to the training."""
    first = started(tmp_path, "demo")
    left = pid(machine)
    (gcloud,) = programs.children(first)
    first.kill()
    first.wait()
    os.kill(gcloud, signal.SIGKILL)
    assert running(left)
    second = started(tmp_path, "demo")
    assert (machine / "saved").exists()
    assert not running(left)
    assert [call[0] for call in calls(tmp_path)][:3] == ["describe", "ssh", "scp"]
    assert lines(calls(tmp_path))[0].startswith("pid=")
    second.send_signal(signal.SIGTERM)
    assert second.wait(timeout=20) == 85


@pytest.mark.full
def test_a_command_that_gcloud_repeats_replaces_the_training(tmp_path, machine):
    started(tmp_path, "demo")
    again, left = lines(calls(tmp_path))[-1], pid(machine)
    repeated = subprocess.Popen(["bash", "-c", again], cwd=machine, start_new_session=True)
    programs.STARTED.append(repeated)
    programs.until(lambda: pid(machine) == repeated.pid, timeout=20)
    assert not running(left)
    assert (machine / "saved").exists()


@pytest.mark.full
def test_a_training_that_does_not_stop_is_killed(tmp_path, machine):
    started(tmp_path, "demo", "--stuck")
    stop = lines(calls(tmp_path))[0]
    assert "seq 300" in stop  # shorter than the --grace of the supervisor in its example
    began = time.monotonic()
    assert sh(stop.replace("seq 300", "seq 1"), machine).returncode == 0
    assert time.monotonic() - began < 10
    assert not running(pid(machine))


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_nothing_else_is_stopped(tmp_path, shell):
    """The recorded number is missing, empty, unused, or belongs to another program."""
    stop = lines(train(tmp_path, "READY", "demo")[1])[0]
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    programs.STARTED.append(other)
    for number in (None, "", "999999999", str(other.pid)):
        if number is not None:
            (tmp_path / ".jaxformer.pid").write_text(number)
        done = sh(stop, tmp_path, shell)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert other.poll() is None


def test_the_share_is_mounted_once(tmp_path):
    mount = lines(train(tmp_path, "READY", "demo", options=["--nfs", "10.0.0.2:/runs"])[1])[1]
    mount = mount.replace("/mnt/runs", str(tmp_path / "runs"))
    executable(tmp_path / "mountpoint", '#!/bin/sh\n[ "$1" = -q ] && [ -e "$2/mounted" ]\n')
    script = 'echo "$@" >>asked; case $1 in mkdir) mkdir "$3" ;; mount) [ -z "$FAIL" ] && touch "$5/mounted" ;; esac'
    executable(tmp_path / "sudo", f"#!/bin/sh\n{script}\n")
    asked = f"mount -t nfs 10.0.0.2:/runs {tmp_path}/runs"
    assert sh(mount, tmp_path, FAIL="1").returncode == 1
    (tmp_path / "runs").rmdir()
    for _ in range(2):
        done = sh(mount, tmp_path)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "asked").read_text().splitlines().count(asked) == 2  # the failed attempt, and one more
    done = sh(mount.replace("-w ", "! -w "), tmp_path)
    assert (done.returncode, "10.0.0.2:/runs is not writable for you" in done.stderr) == (1, True)
    assert f"sudo chown {os.getuid()} " in done.stderr  # a folder that others can write holds no cache


def test_a_share_is_a_host_and_a_path():
    assert share("fs-1.example:/vol_1/runs") == "fs-1.example:/vol_1/runs"


SHARES = ("gs://runs", "10.0.0.2", "-o:/x", "a:/b c", "a:/b;id", "a:/$(id)", ":/x", "a:b")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(({"options": [f"--nfs={share}"]}, "a share must be host:/path") for share in SHARES),
        *(({"name": name}, "a name must be") for name in ("a;touch x", "$(id)", "../x")),
        ({"name": "--zone=b"}, "expected one argument|required"),
        ({"options": ["--experiments", "."]}, r"--experiments must be a folder named experiments, got \."),
    ],
)
def test_wrong_arguments(tmp_path, settings, message):
    """Nothing is asked of gcloud."""
    code, made, errors = train(tmp_path, "READY", "demo", **settings)
    assert (code, made) == (2, [])
    assert re.search(message, errors)


PYTHON = """#!/bin/sh
echo "$@" >>asked
case "$*" in *"$FAIL"*) exit 2 ;; esac
"""


@pytest.mark.parametrize("fail", ["never", "pip install --quiet --user uv", "uv venv", "uv pip"])
def test_a_failed_installation_prints_one_line(tmp_path, fail):
    """Its exit code is not 2, which a supervisor would take as final."""
    install = lines(train(tmp_path, "READY", "demo")[1])[1]
    executable(tmp_path / "python3", PYTHON)
    done = sh(install, tmp_path, FAIL=fail)
    asked = (tmp_path / "asked").read_text().splitlines()
    if fail == "never":
        assert (done.returncode, done.stderr) == (0, "")
        assert asked[-1].endswith("--reinstall-package jaxformer ./j-1.whl[train,tpu]")
        assert len(asked) == 3
    else:
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
        assert "cannot install Python 3.12 with jaxformer" in done.stderr
        assert fail in asked[-1]


@pytest.mark.parametrize("verb", ["create", "scp", "ssh"])
def test_a_failure_is_final(tmp_path, verb):
    code, made, errors = train(tmp_path, "", "base", fail=verb)
    assert code == 255
    assert made[-1][0] == verb
    assert "Traceback" not in errors


def test_without_gcloud(tmp_path):
    words = command(tmp_path, "READY", "base")
    (tmp_path / "gcloud").unlink()
    done = subprocess.run(words, cwd=tmp_path, env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("gcloud not found on PATH; install the Google Cloud CLI")


def test_an_unknown_answer_creates_nothing(tmp_path):
    code, made, errors = train(tmp_path, "READY", "base", fail="describe")
    assert (code, made) == (255, [DESCRIBE])
    assert "Traceback" not in errors
