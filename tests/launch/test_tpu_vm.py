"""`launch/tpu_vm/train.py` against a stub `gcloud` that writes down what it is asked and knows one TPU's state."""

import json
import os
import shlex
import subprocess
import sys

import pytest

from tests.launch import programs

STUB = """#!{python}
import json, os, sys
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
"""
HOSTILE = ["a;touch x", "$(touch y)", "../x", "it's", "`touch z`", "two words"]


def train(folder, state, *arguments, name="base", fail=""):
    """Exit code, what gcloud was asked, and the error."""
    (folder / "gcloud").write_text(STUB.format(python=sys.executable))
    (folder / "gcloud").chmod(0o755)
    (folder / "state").write_text(state)
    (folder / "calls").write_text("")
    (folder / "j-1.whl").touch()
    script = programs.LAUNCH / "tpu_vm" / "train.py"
    where = [name, "--zone", "us-east5-a", "--type", "v5litepod-16", "--spot", "--wheel", "j-1.whl"]
    known = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "FAIL": fail}
    command = [sys.executable, script, *where, "--", *arguments]
    done = subprocess.run(command, cwd=folder, env=known, capture_output=True, text=True, timeout=60)
    calls = [json.loads(line) for line in (folder / "calls").read_text().splitlines()]
    assert all(call[:3] == ["compute", "tpus", "tpu-vm"] for call in calls)
    return done.returncode, [call[3:] for call in calls], done.stderr


ZONE = "--zone=us-east5-a"
CREATE = ["create", "base", ZONE, "--accelerator-type=v5litepod-16", "--version=v2-alpha-tpuv5-lite", "--spot"]


def run_calls(folder, *arguments):
    every = ["ssh", "base", ZONE, "--worker=all"]
    return [
        ["scp", str(folder / "j-1.whl"), "base:", ZONE, "--worker=all"],
        [*every, "--command=python3 -m pip install --quiet --user './j-1.whl[train,tpu]'"],
        [*every, f"--command=python3 -u -m jaxformer.cli.main train {shlex.join(arguments)}"],
    ]


DESCRIBE = ["describe", "base", ZONE, "--format=value(state)"]
DELETE = ["delete", "base", ZONE, "--quiet"]


@pytest.mark.parametrize(
    ("state", "before"), [("", [CREATE]), ("READY", []), ("PREEMPTED", [DELETE, CREATE])], ids=["none", "ready", "gone"]
)
def test_makes_what_is_not_there_and_trains_everywhere(tmp_path, state, before):
    code, calls, said = train(tmp_path, state, "base", "--out", "gs://runs/base")
    assert code == 0, said
    assert calls == [DESCRIBE, *before, *run_calls(tmp_path, "base", "--out", "gs://runs/base")]


def test_arguments_stay_what_they_are_on_the_hosts(tmp_path):
    code, calls, _ = train(tmp_path, "READY", "base", *HOSTILE)
    assert code == 0
    line = calls[-1][-1].removeprefix("--command=").replace("python3 -u -m jaxformer.cli.main", "printf '%s\\0'")
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\0")[:-1] == ["train", "base", *HOSTILE]
    assert not [name for name in "xyz" if (tmp_path / name).exists()]


@pytest.mark.parametrize("name", ["a;touch x", "$(id)", "../x", "--zone=b"])
def test_names_are_names(tmp_path, name):
    code, calls, said = train(tmp_path, "READY", "base", name=name)
    assert (code, calls) == (2, [])
    assert "is no name" in said or "expected one argument" in said or "required" in said


@pytest.mark.parametrize("verb", ["create", "scp", "ssh"])
def test_a_failure_ends_it(tmp_path, verb):
    code, calls, said = train(tmp_path, "", "base", fail=verb)
    assert code == 255
    assert calls[-1][0] == verb
    assert "Traceback" not in said


def test_without_gcloud(tmp_path):
    script, wheel = programs.LAUNCH / "tpu_vm" / "train.py", tmp_path / "j-1.whl"
    wheel.touch()
    command = [sys.executable, script, "base", "--zone", "z", "--type", "v5p-8", "--wheel", wheel, "--", "base"]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("there is no gcloud on this machine's PATH")


def test_an_unknown_answer_makes_nothing(tmp_path):
    code, calls, said = train(tmp_path, "READY", "base", fail="describe")
    assert (code, calls) == (255, [DESCRIBE])
    assert "Traceback" not in said
