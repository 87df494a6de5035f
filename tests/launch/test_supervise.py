"""The supervisor and the launcher of local processes, with tiny programs instead of trainings."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from tests.launch import programs

SUPERVISE = [sys.executable, str(programs.LAUNCH / "supervise.py"), "--wait", "0.01"]
LOCAL = [sys.executable, str(programs.LAUNCH / "local.py")]
COUNT = "n=$(cat runs 2>/dev/null || echo 0); n=$((n + 1)); echo $n > runs; "


def supervise(folder, script, *options, command=None, **settings):
    command = [*SUPERVISE, *options, "--", *(command or ["sh", "-c", script, "sh"])]
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, **settings)


def outcome(process, timeout=20):
    try:
        _, errors = process.communicate(timeout=timeout)
    finally:
        process.kill()
        process.wait()
    return process.returncode, errors


def runs(folder):
    return int((folder / "runs").read_text())


def ended(file):
    """Returns True if the process whose id is in a file has ended."""
    stat = pathlib.Path(f"/proc/{int(file.read_text())}/stat")
    return not stat.exists() or stat.read_text().split()[2] == "Z"


@pytest.mark.parametrize("code", [0, 2, 130])
def test_final_exit_codes_are_not_retried(tmp_path, code):
    assert outcome(supervise(tmp_path, f"{COUNT} exit {code}"))[0] == code
    assert runs(tmp_path) == 1


def test_a_crash_is_retried_until_it_is_done(tmp_path):
    code, errors = outcome(supervise(tmp_path, f"{COUNT} [ $n -gt 2 ] && exit 0; [ $n = 1 ] && kill -9 $$; exit 1"))
    assert (code, runs(tmp_path)) == (0, 3)
    assert "exit code 137" in errors


def test_it_gives_up_without_progress(tmp_path):
    code, errors = outcome(supervise(tmp_path, f"{COUNT} exit 1", "--restarts", "3", "--checkpoints", "ckpt"))
    assert (code, runs(tmp_path)) == (1, 4)
    assert "exit code 1 at checkpoint -1; 3 restarts brought no progress: giving up" in errors


@pytest.mark.full
def test_without_checkpoints_time_is_progress(tmp_path):
    """Five runs take long enough to count as progress, more than the allowed restarts without progress."""
    script = f"{COUNT} [ $n -le 5 ] && sleep 0.3; exit 1"
    code, errors = outcome(supervise(tmp_path, script, "--restarts", "1", "--minutes", "0.004"))
    assert (code, runs(tmp_path)) == (1, 5 + 2)
    assert "exit code 1; 1 restarts brought no progress: giving up" in errors


def test_without_checkpoints_it_gives_up_on_immediate_crashes(tmp_path):
    assert outcome(supervise(tmp_path, f"{COUNT} exit 1"))[0] == 1
    assert runs(tmp_path) == 1 + 5


def test_a_new_checkpoint_is_progress(tmp_path):
    (tmp_path / "ckpt").mkdir()
    for name in ("9.partial", "9²", "²"):  # an unfinished save does not count, nor does a copy by hand
        (tmp_path / "ckpt" / name).mkdir()
    script = f"{COUNT} [ $n -le 4 ] && mkdir ckpt/$n; exit 1"
    code, _ = outcome(supervise(tmp_path, script, "--restarts", "2", "--checkpoints", "ckpt"))
    assert (code, runs(tmp_path)) == (1, 4 + 3)


@pytest.mark.full
def test_it_restarts_at_once_after_a_save_and_ever_later_after_crashes(tmp_path):
    began = time.monotonic()
    process = supervise(tmp_path, f"{COUNT} [ $n -gt 3 ] && exit 0; exit 85", "--wait", "100")
    assert outcome(process)[0] == 0
    assert time.monotonic() - began < 10
    errors = outcome(supervise(tmp_path, "exit 1", "--wait", "0.2", "--restarts", "3"))[1]
    assert errors.count("starting again") == 3


PATIENT = """
import sys, types, supervise
child = types.SimpleNamespace(told_to_stop=False, run=lambda command: 1, sleep=lambda seconds: True)
supervise.Child = lambda grace: child
sys.argv = "supervise.py --restarts 1100 --wait 0.5 -- train".split()
sys.exit(supervise.main())
"""


def test_the_wait_is_at_most_ten_minutes():
    """It doubles with each restart, and no float holds 2 to the power of 1,024."""
    command = [sys.executable, "-c", PATIENT]
    done = subprocess.run(command, cwd=programs.LAUNCH, capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    first, *_, last, end = done.stderr.splitlines()
    assert first.endswith("starting again in 0 s")
    assert last.endswith("starting again in 600 s")
    assert end.endswith("1100 restarts brought no progress: giving up")


def test_a_command_that_has_run_may_be_missing_for_a_moment(tmp_path):
    """As on a mount that is lost: it is a fruitless restart; before it has run, its name is wrong."""
    (tmp_path / "train").write_text(f"#!/bin/sh\n{COUNT} mv train away; exit 1\n")
    (tmp_path / "train").chmod(0o755)
    code, errors = outcome(supervise(tmp_path, "", "--restarts", "3", command=["./train"]))
    assert (code, runs(tmp_path)) == (1, 1)
    assert errors.count("No such file or directory: './train'\n") == 3
    assert "exit code 1; 3 restarts brought no progress: giving up" in errors


OUTAGE = """
import errno, os, sys, types, supervise
lost = OSError(errno.ESTALE, os.strerror(errno.ESTALE))
answers = [["10"], lost, lost, ["10"], ["10"], *[["20"]] * 7]
def listdir(path):
    answer = answers.pop(0)
    if answer is lost:
        raise lost
    return answer
child = types.SimpleNamespace(told_to_stop=False, run=lambda command: 1, sleep=lambda seconds: True)
supervise.os, supervise.Child = types.SimpleNamespace(listdir=listdir), lambda grace: child
sys.argv = "supervise.py --checkpoints run --restarts 2 -- train".split()
sys.exit(supervise.main())
"""


def test_checkpoints_that_cannot_be_listed_are_no_progress_and_no_crash():
    """Storage may fail when the command does, and because of it; the last known step stands."""
    command = [sys.executable, "-c", OUTAGE]
    done = subprocess.run(command, cwd=programs.LAUNCH, capture_output=True, text=True, timeout=20)
    *lines, last = done.stderr.splitlines()
    assert done.returncode == 1, done.stderr
    assert [line.split("; ")[0].split()[-1] for line in lines] == ["10", "10", "20", "20", "20"]
    assert last.endswith("exit code 1 at checkpoint 20; 2 restarts brought no progress: giving up")


def test_sigterm_is_forwarded_and_the_exit_code_returned(tmp_path):
    script = f"{COUNT} trap 'exit 85' TERM; touch ready; while true; do sleep 0.05; done"
    process = supervise(tmp_path, script)
    programs.until((tmp_path / "ready").exists, timeout=20)
    process.send_signal(signal.SIGTERM)
    assert outcome(process)[0] == 85
    assert runs(tmp_path) == 1  # the sender of SIGTERM decides when to restart


@pytest.mark.parametrize("launcher", [SUPERVISE, LOCAL], ids=["supervise", "local"])
def test_a_signal_to_every_process_keeps_the_exit_code(tmp_path, launcher):
    """systemd and SLURM also signal the guard, without which the launcher failed."""
    script = "trap 'exit 85' TERM; touch ready; while true; do sleep 0.05; done"
    command = [*launcher, "--", "sh", "-c", script]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    programs.until((tmp_path / "ready").exists, timeout=20)
    for pid in [*programs.children(process), process.pid]:
        os.kill(pid, signal.SIGTERM)
    code, errors = outcome(process)
    assert (code, "Traceback" in errors) == (85, False), errors


def test_a_command_that_ignores_sigterm_is_killed_with_its_children(tmp_path):
    script = "trap '' TERM; sleep 600 & echo $! > grandchild; touch ready; while true; do sleep 0.05; done"
    process = supervise(tmp_path, script, "--grace", "0.5")
    programs.until((tmp_path / "ready").exists, timeout=20)
    process.send_signal(signal.SIGTERM)
    assert outcome(process)[0] == 137
    programs.until(lambda: ended(tmp_path / "grandchild"), timeout=20)


def test_processes_left_behind_are_killed(tmp_path):
    outcome(supervise(tmp_path, "sleep 600 & echo $! > grandchild; exit 0", stdout=subprocess.DEVNULL))
    programs.until(lambda: ended(tmp_path / "grandchild"), timeout=20)


@pytest.mark.parametrize("program", ["supervise.py", "local.py"])
def test_the_command_ends_with_its_launcher(tmp_path, program):
    """The launcher is killed and can send no signal; a command that ignores SIGTERM ends too, with its children."""
    script = "trap '' TERM; sleep 600 & echo $! > grandchild; echo $$ > child; wait"
    command = [sys.executable, str(programs.LAUNCH / program), "--", "sh", "-c", script]
    process = subprocess.Popen(command, cwd=tmp_path)
    programs.until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text().strip(), timeout=20)
    process.kill()
    process.wait()
    programs.until(lambda: ended(tmp_path / "child") and ended(tmp_path / "grandchild"), timeout=20)


GUARDED = """
import os, signal, subprocess, guard
one = guard.Guard()
before = one.start(["sleep", "600"], stdout=subprocess.DEVNULL)
one.forget()
last = [one.start(["sleep", "600"], stdout=subprocess.DEVNULL) for _ in range(2)]
print(before.pid, *(process.pid for process in last), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_guard_kills_only_remembered_groups(tmp_path):
    """The number of a group that has ended may belong to another group by now."""
    done = subprocess.run([sys.executable, "-c", GUARDED], cwd=programs.LAUNCH, stdout=-1, text=True, timeout=20)
    for name, pid in zip(["before", "first", "second"], done.stdout.split(), strict=True):
        (tmp_path / name).write_text(pid)
    try:
        programs.until(lambda: ended(tmp_path / "first") and ended(tmp_path / "second"), timeout=20)
        assert not ended(tmp_path / "before")
    finally:
        os.kill(int((tmp_path / "before").read_text()), signal.SIGKILL)


def test_the_guard_registers_a_command_before_it_runs(tmp_path):
    """The command kills its launcher as its first action."""
    program = f"""
import guard
guard.Guard().start(["sh", "-c", 'echo $$ > {tmp_path}/child; kill -9 $PPID; sleep 600'])
import time
time.sleep(60)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=programs.LAUNCH, timeout=50)
    assert done.returncode == -signal.SIGKILL
    programs.until(lambda: ended(tmp_path / "child"), timeout=20)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["local.py", "--processes", "0", "--", "true"], "--processes: must be at least 1, got 0"),
        (["local.py", "--devices", "0", "--", "true"], "--devices: must be at least 1, got 0"),
        (["local.py", "--", "no-such-command"], "No such file or directory: 'no-such-command'"),
        (["supervise.py", "--restarts", "-1", "--", "true"], "--restarts: must be at least 0, got -1"),
        (["supervise.py", "--wait", "nan", "--", "true"], "--wait: must be at least 0, got nan"),
        (["supervise.py", "--", "no-such-command"], "No such file or directory: 'no-such-command'"),
        (["supervise.py", "--", "./without-shebang"], "Exec format error: './without-shebang'"),
        (["supervise.py", "--", "./without-shebang/x"], "Not a directory: './without-shebang/x'"),
    ],
)
def test_wrong_arguments(tmp_path, words, message):
    """Wrong arguments print the usage and one line, and exit with 2, which is final."""
    (tmp_path / "without-shebang").write_text("exit 0\n")
    (tmp_path / "without-shebang").chmod(0o755)
    command = [sys.executable, programs.LAUNCH / words[0], *words[1:]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=20)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_the_supervisor_is_short():
    assert len((programs.LAUNCH / "supervise.py").read_text(encoding="utf-8").splitlines()) <= 120


def local(folder, script, *options):
    command = [*LOCAL, *options, "--", "sh", "-c", script]
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)


def test_local_numbers_the_processes(tmp_path):
    script = "env | grep ^JAX_ | sort > seen.$JAX_PROCESS_ID"
    assert outcome(local(tmp_path, script, "--processes", "3", "--devices", "4"))[0] == 0
    seen = [dict(line.split("=") for line in (tmp_path / f"seen.{i}").read_text().splitlines()) for i in range(3)]
    assert [variables.pop("JAX_PROCESS_ID") for variables in seen] == ["0", "1", "2"]
    assert seen[0] == seen[1] == seen[2]
    assert seen[0]["JAX_NUM_CPU_DEVICES"] == "4"
    assert seen[0]["JAX_NUM_PROCESSES"] == "3"
    assert seen[0]["JAX_COORDINATOR_ADDRESS"].startswith("127.0.0.1:")


@pytest.mark.parametrize(
    ("end", "expected"), [("exit 2", 2), ("kill -9 $$", 137), ("exit 1", 1)], ids=["wrong", "killed", "crashed"]
)
def test_local_kills_all_when_one_fails(tmp_path, end, expected):
    others = "while ! [ -s pid.0 ] || ! [ -s pid.2 ]; do sleep 0.05; done"
    script = (
        f"echo $$ > pid.$JAX_PROCESS_ID; [ $JAX_PROCESS_ID = 1 ] && {others} && {end}; trap '' TERM; exec sleep 600"
    )
    code, errors = outcome(local(tmp_path, script, "--processes", "3"))
    assert code == expected
    assert f"a process ended with {expected}" in errors
    for i in range(3):
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / f"pid.{i}").read_text()), 0)


def test_local_waits_until_all_have_saved(tmp_path):
    wait = "touch ready.$JAX_PROCESS_ID; while true; do sleep 0.05; done"
    script = f"trap 'sleep 0.$JAX_PROCESS_ID; exit 85' TERM; {wait}"
    process = local(tmp_path, script, "--processes", "3")
    programs.until(lambda: all((tmp_path / f"ready.{i}").exists() for i in range(3)), timeout=20)
    process.send_signal(signal.SIGTERM)
    code, errors = outcome(process)
    assert code == 85
    assert "were stopped" not in errors


def test_local_stops_the_processes_that_start_after_the_signal(tmp_path):
    """The first process stops the launcher while it is starting the others."""
    script = "trap 'exit 85' TERM; [ $JAX_PROCESS_ID = 0 ] && kill -TERM $PPID; sleep 600 & wait"
    code, _ = outcome(local(tmp_path, script, "--processes", "8"))
    assert code in (85, 128 + signal.SIGTERM)  # the second where a slow process gets the signal before it sets its trap
