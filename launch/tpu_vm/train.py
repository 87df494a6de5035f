"""A TPU slice of Google Cloud, without Kubernetes: makes it, or makes it anew when it was preempted, and trains on it.

    python launch/supervise.py -- python launch/tpu_vm/train.py NAME --zone us-east5-a --type v5litepod-16 --spot \\
        --wheel dist/jaxformer-0.1.0-py3-none-any.whl --nfs 10.0.0.2:/runs \\
        -- wmt14:base_en_de --out /mnt/runs/base --data-dir /mnt/runs/data

It runs the same command on every host, beside a copy of the experiments; JAX asks the machine where the others are.
Its exit code is gcloud's.  SIGTERM and Ctrl-C stop the training on the hosts, which saves and ends with 85.  What an
earlier start has left running there, because it was killed or lost its connection, is stopped first.
"""

import argparse
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
RUNTIMES = {"v5litepod": "v2-alpha-tpuv5-lite", "v5p": "v2-alpha-tpuv5", "v6e": "v2-alpha-tpuv6e"}
EXPERIMENTS = pathlib.Path(__file__).parents[2] / "experiments"
GONE = ("PREEMPTED", "TERMINATED", "FAILED", "SUSPENDED")

# What follows are lines of shell for a host, in its user's home directory.

# SIGTERM, and SIGKILL where that does not help, to the process group that sshd made for the training.  It is asked for
# its name, because the number that is written down may be another's by now.
STOP = r"""pid=$(cat .jaxformer.pid 2>/dev/null)
runs() { tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -q '^[.]jaxformer/bin/python '; }
if runs; then kill -TERM "-$pid"; fi
for second in $(seq 90); do runs || break; sleep 1; done
if runs; then kill -KILL "-$pid"; sleep 1; fi"""

MOUNT = """if ! mountpoint -q /mnt/runs; then
    [ -x /sbin/mount.nfs ] || { sudo apt-get -qq update; sudo apt-get -qq -y install nfs-common; }
    sudo mkdir -p /mnt/runs && sudo mount -t nfs "$share" /mnt/runs || exit 1
fi
[ -w /mnt/runs ] || { echo "$(hostname): $share is not yours to write; sudo chmod it, once" >&2; exit 1; }"""

# The machine's own Python may be too old (3.10), so uv takes or fetches another.  Its exit code would be 2, which means
# that again cannot help.  A wheel that was built anew has the version of the one before.
INSTALL = """{ PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --quiet --user uv &&
python3 -m uv venv --quiet --allow-existing --python 3.12 .jaxformer &&
python3 -m uv pip install --quiet --python .jaxformer/bin/python --reinstall-package jaxformer "$wheel"; } ||
{ echo "$(hostname): no Python 3.12 with jaxformer" >&2; exit 1; }"""

# It stops first, too: gcloud gives a line again when it has lost the connection.
TRAIN = f"{STOP}\necho $$ >.jaxformer.pid; exec .jaxformer/bin/python -u -m jaxformer.cli.main train"


def main() -> int:
    usage = "train.py NAME --zone Z --type T --wheel W -- ARGUMENT ..."
    parser = argparse.ArgumentParser(usage=usage, description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("name", type=name)
    parser.add_argument("--zone", type=name, required=True)
    parser.add_argument("--type", type=name, required=True, help="such as v5p-128")
    parser.add_argument("--spot", action="store_true", help="cheaper, and may be taken away")
    parser.add_argument("--wheel", type=pathlib.Path, required=True, help="of `make wheel`")
    parser.add_argument("--nfs", type=share, help="HOST:/PATH, such as Filestore's; is mounted at /mnt/runs")
    parser.add_argument("--experiments", type=pathlib.Path, default=EXPERIMENTS, help="copied to the hosts")
    parser.add_argument("arguments", nargs="+", help="of `jaxformer train`")
    known = parser.parse_args()
    kind = known.type.partition("-")[0]
    if kind not in RUNTIMES:
        parser.error(f"no TPU of type {known.type!r}; there are {', '.join(RUNTIMES)}")
    if not known.wheel.is_file():
        parser.error(f"no wheel {known.wheel}; make one with `make wheel`")
    if known.experiments.name != "experiments" or not known.experiments.is_dir():
        parser.error(f"no folder named experiments at {known.experiments}")
    if shutil.which("gcloud") is None:
        parser.error("there is no gcloud on this machine's PATH")
    there = Slice(known.name, known.zone)
    try:
        return train(there, known, RUNTIMES[kind])
    except subprocess.CalledProcessError as error:
        print(f"train.py: {shlex.join(error.cmd[:5])} ended with {error.returncode}", file=sys.stderr)
        return error.returncode


def train(there: "Slice", known: argparse.Namespace, runtime: str) -> int:
    """The exit code of the training.

    Raises:
      CalledProcessError: what had to be done before it failed.
    """
    state = there.state()
    if state in GONE:
        there.gcloud("delete", "--quiet").check_returncode()
    if state is None or state in GONE:
        made_of = [f"--accelerator-type={known.type}", f"--version={runtime}"]
        there.gcloud("create", *made_of, *(["--spot"] if known.spot else [])).check_returncode()
    there.everywhere(STOP).check_returncode()
    there.copy(known.wheel, known.experiments).check_returncode()
    if known.nfs:
        there.everywhere(f"share={shlex.quote(known.nfs)}\n{MOUNT}").check_returncode()
    wheel = shlex.quote(f"./{known.wheel.name}[train,tpu]")
    there.everywhere(f"wheel={wheel}\n{INSTALL}").check_returncode()
    return there.run(f"{TRAIN} {shlex.join(known.arguments)}")


class Slice:
    """A TPU VM and its hosts."""

    def __init__(self, name: str, zone: str):
        self._name, self._zone = name, zone

    def gcloud(self, verb: str, *options: str, **settings: object) -> subprocess.CompletedProcess:
        """``gcloud compute tpus tpu-vm VERB`` of it."""
        return subprocess.run(self._command(verb, self._name, *options), check=False, **settings)

    def state(self) -> str | None:
        """READY, PREEMPTED and so on; None if there is none of this name."""
        found = self.gcloud("describe", "--format=value(state)", capture_output=True, text=True)
        if found.returncode and "NOT_FOUND" not in found.stderr:
            sys.stderr.write(found.stderr)
            found.check_returncode()
        return found.stdout.strip() or None

    def copy(self, *paths: pathlib.Path) -> subprocess.CompletedProcess:
        """Copies files and folders into the home directory of every host."""
        what = [*(str(path.resolve()) for path in paths), f"{self._name}:", "--recurse", "--worker=all"]
        return subprocess.run(self._command("scp", *what), check=False)

    def everywhere(self, line: str) -> subprocess.CompletedProcess:
        """Runs a line of shell on every host at once."""
        return self.gcloud("ssh", "--worker=all", f"--command={line}")

    def run(self, line: str) -> int:
        """The same for the training, which SIGTERM and Ctrl-C stop: to end gcloud would leave it running there."""
        told_to_stop: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: told_to_stop.append(number))
        command = self._command("ssh", self._name, "--worker=all", f"--command={line}")
        # In a session of its own, where a signal to our process group does not reach it.
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
