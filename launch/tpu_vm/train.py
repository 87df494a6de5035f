"""Creates a TPU slice of Google Cloud, or creates it again after a preemption, and trains on it without Kubernetes.

    python launch/supervise.py --restarts 200 --grace 330 -- \\
        python launch/tpu_vm/train.py NAME --zone us-east5-a --type v5litepod-16 --spot \\
        --wheel dist/jaxformer-0.1.0-py3-none-any.whl --nfs 10.0.0.2:/runs \\
        -- wmt14:base_en_de --out /mnt/runs/base --data-dir /mnt/runs/data

Every host runs the same command beside a copy of the experiments, and JAX asks the machine for the other hosts.
XLA_FLAGS and LIBTPU_INIT_ARGS of this machine are set on the hosts, too. The exit code is gcloud's. SIGTERM and Ctrl-C
stop the training on the hosts, which saves and ends with 85. A training that an earlier start left behind, because it
was killed or lost its connection, is stopped first.
"""

import argparse
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from names import name, share

# Software versions by the kind of TPU: https://cloud.google.com/tpu/docs/runtimes
RUNTIMES = {
    "v4": "tpu-ubuntu2204-base",
    "v5litepod": "v2-alpha-tpuv5-lite",
    "v5p": "v2-alpha-tpuv5",
    "v6e": "v2-alpha-tpuv6e",
}
EXPERIMENTS = pathlib.Path(__file__).parents[2] / "experiments"
FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
GONE = ("PREEMPTED", "TERMINATED", "FAILED", "SUSPENDED")

# The following are shell commands for a host; they run in its user's home directory.

# Sends SIGTERM, and later SIGKILL, to the process group that sshd made for the training. It first checks the command
# line of the process, because the recorded number may belong to another process by now.
STOP = r"""pid=$(cat .jaxformer.pid 2>/dev/null)
runs() { tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -q '^[.]jaxformer/bin/python '; }
if runs; then kill -TERM "-$pid"; fi
for second in $(seq 300); do runs || break; sleep 1; done
if runs; then kill -KILL "-$pid"; sleep 1; fi"""

MOUNT = """if ! mountpoint -q /mnt/runs; then
    [ -x /sbin/mount.nfs ] || { sudo apt-get -qq update; sudo apt-get -qq -y install nfs-common; }
    sudo mkdir -p /mnt/runs && sudo mount -t nfs "$share" /mnt/runs || exit 1
fi
[ -w /mnt/runs ] || {
    echo "$(hostname): $share is not writable for you; run once: sudo chown $(id -u) /mnt/runs" >&2
    exit 1
}"""

# The machine's own Python may be too old (3.10), so uv finds or downloads another. uv fails with 2, which a supervisor
# would take as final, so this exits with 1. A rebuilt wheel keeps its version, so jaxformer is always reinstalled.
INSTALL = """{ PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --quiet --user uv &&
python3 -m uv venv --quiet --allow-existing --python 3.12 .jaxformer &&
python3 -m uv pip install --quiet --python .jaxformer/bin/python --reinstall-package jaxformer "$wheel"; } ||
{ echo "$(hostname): cannot install Python 3.12 with jaxformer" >&2; exit 1; }"""

# A process that is stuck in training for an hour ends.
TRAIN = """echo $$ >.jaxformer.pid
export JAX_PLATFORMS=tpu,cpu # an error if another process holds the TPU; otherwise JAX would train on the CPU
exec .jaxformer/bin/python -u -m jaxformer.cli.main train --train.stall-minutes=60"""


def main() -> int:
    usage = "train.py NAME --zone Z --type T --wheel W -- ARGUMENT ..."
    parser = argparse.ArgumentParser(usage=usage, description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("name", type=name)
    parser.add_argument("--zone", type=name, required=True)
    parser.add_argument("--type", type=name, required=True, help="accelerator type, such as v5p-128")
    parser.add_argument("--spot", action="store_true", help="use a spot machine: cheaper, and may be preempted")
    parser.add_argument("--wheel", type=pathlib.Path, required=True, help="the wheel that `make wheel` builds")
    parser.add_argument("--nfs", type=share, help="HOST:/PATH of an NFS share, such as Filestore; mounted at /mnt/runs")
    parser.add_argument("--experiments", type=pathlib.Path, default=EXPERIMENTS, help="folder to copy to the hosts")
    parser.add_argument("arguments", nargs="+", help="arguments of `jaxformer train`")
    args = parser.parse_args()
    kind = args.type.partition("-")[0]
    if kind not in RUNTIMES:
        parser.error(f"unknown TPU type {args.type!r}; expected one of {', '.join(RUNTIMES)}")
    if not args.wheel.is_file():
        parser.error(f"wheel not found: {args.wheel}; build one with `make wheel`")
    if args.experiments.name != "experiments" or not args.experiments.is_dir():
        parser.error(f"--experiments must be a folder named experiments, got {args.experiments}")
    if shutil.which("gcloud") is None:
        parser.error("gcloud not found on PATH; install the Google Cloud CLI")
    tpu = Slice(args.name, args.zone)
    try:
        return train(tpu, args, RUNTIMES[kind])
    except subprocess.CalledProcessError as error:
        print(f"train.py: {shlex.join(error.cmd[:5])} ended with {error.returncode}", file=sys.stderr)
        return error.returncode


def train(tpu: "Slice", args: argparse.Namespace, runtime: str) -> int:
    """Prepares the slice, trains on it, and returns the exit code of the training.

    Raises:
      CalledProcessError: a step of the preparation failed.
    """
    state = tpu.state()
    if state in GONE:
        tpu.gcloud("delete", "--quiet").check_returncode()
    if state is None or state in GONE:
        options = [f"--accelerator-type={args.type}", f"--version={runtime}"]
        tpu.gcloud("create", *options, *(["--spot"] if args.spot else [])).check_returncode()
    tpu.everywhere(STOP).check_returncode()
    tpu.copy(args.wheel, args.experiments).check_returncode()
    if args.nfs:
        tpu.everywhere(f"share={shlex.quote(args.nfs)}\n{MOUNT}").check_returncode()
    wheel = shlex.quote(f"./{args.wheel.name}[train,tpu]")
    tpu.everywhere(f"wheel={wheel}\n{INSTALL}").check_returncode()
    variables = {flags: os.environ[flags] for flags in FLAGS if os.environ.get(flags)}
    if args.nfs:
        variables["JAXFORMER_CACHE"] = "/mnt/runs/.cache"  # compiled programs and tokens, for all hosts and restarts
    exports = "".join(f"export {variable}={shlex.quote(value)}\n" for variable, value in variables.items())
    # It stops an earlier training first, because gcloud sends a command again after a lost connection.
    return tpu.run(f"{STOP}\n{exports}{TRAIN} {shlex.join(args.arguments)}")


class Slice:
    """A TPU VM and its hosts."""

    def __init__(self, name: str, zone: str):
        self._name, self._zone = name, zone

    def gcloud(self, verb: str, *options: str, capture: bool = False) -> subprocess.CompletedProcess[str]:
        """Runs ``gcloud compute tpus tpu-vm VERB`` on the slice; captures its output, or shows it."""
        command = self._command(verb, self._name, *options)
        return subprocess.run(command, check=False, capture_output=capture, text=True)

    def state(self) -> str | None:
        """Returns the state of the slice, such as READY or PREEMPTED, or None if it does not exist."""
        answer = self.gcloud("describe", "--format=value(state)", capture=True)
        if answer.returncode and "NOT_FOUND" not in answer.stderr:
            sys.stderr.write(answer.stderr)
            answer.check_returncode()
        return answer.stdout.strip() or None

    def copy(self, *paths: pathlib.Path) -> subprocess.CompletedProcess:
        """Copies files and folders into the home directory of every host."""
        arguments = [*(str(path.resolve()) for path in paths), f"{self._name}:", "--recurse", "--worker=all"]
        return subprocess.run(self._command("scp", *arguments), check=False)

    def everywhere(self, line: str) -> subprocess.CompletedProcess:
        """Runs a shell command on every host at once."""
        return self.gcloud("ssh", "--worker=all", f"--command={line}")

    def run(self, line: str) -> int:
        """Runs the training on every host and stops it there on SIGTERM and Ctrl-C; ending gcloud would not stop it."""
        told_to_stop: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: told_to_stop.append(number))
        command = self._command("ssh", self._name, "--worker=all", f"--command={line}")
        # gcloud gets its own session, so that a signal to our process group does not reach it.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        while process.poll() is None:
            if told_to_stop:
                told_to_stop.clear()
                self.everywhere(STOP)
            time.sleep(0.1)
        return process.returncode

    def _command(self, verb: str, *options: str) -> list[str]:
        return ["gcloud", "compute", "tpus", "tpu-vm", verb, *options, f"--zone={self._zone}"]


if __name__ == "__main__":
    sys.exit(main())
