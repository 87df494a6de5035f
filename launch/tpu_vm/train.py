"""A TPU slice of Google Cloud, without Kubernetes: makes it, or makes it anew when it was preempted, and trains on it.

    python launch/supervise.py -- python launch/tpu_vm/train.py NAME --zone us-east5-a --type v5litepod-16 --spot \\
        --wheel dist/jaxformer-0.1.0-py3-none-any.whl -- base --out gs://my-runs/base

It runs the same command on every host; JAX asks the machine where the others are.  Its exit code is gcloud's.
"""

import argparse
import pathlib
import shlex
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from names import name

# Software versions by the kind of TPU: https://cloud.google.com/tpu/docs/runtimes
RUNTIMES = {"v5litepod": "v2-alpha-tpuv5-lite", "v5p": "v2-alpha-tpuv5", "v6e": "v2-alpha-tpuv6e"}
GONE = ("PREEMPTED", "TERMINATED", "FAILED", "SUSPENDED")


def main() -> int:
    usage = "train.py NAME --zone Z --type T --wheel W -- ARGUMENT ..."
    parser = argparse.ArgumentParser(usage=usage, description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("name", type=name)
    parser.add_argument("--zone", type=name, required=True)
    parser.add_argument("--type", type=name, required=True, help="such as v5p-128")
    parser.add_argument("--spot", action="store_true", help="cheaper, and may be taken away")
    parser.add_argument("--wheel", type=pathlib.Path, required=True, help="of `make wheel`")
    parser.add_argument("arguments", nargs="+", help="of `jaxformer train`")
    known = parser.parse_args()
    kind = known.type.partition("-")[0]
    if kind not in RUNTIMES:
        parser.error(f"no TPU of type {known.type!r}; there are {', '.join(RUNTIMES)}")
    if not known.wheel.is_file():
        parser.error(f"no wheel {known.wheel}; make one with `make wheel`")
    if shutil.which("gcloud") is None:
        parser.error("there is no gcloud on this machine's PATH")
    there = Slice(known.name, known.zone)
    try:
        return train(there, known, RUNTIMES[kind])
    except subprocess.CalledProcessError as error:
        print(f"train.py: {shlex.join(error.cmd)} ended with {error.returncode}", file=sys.stderr)
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
    there.copy(known.wheel).check_returncode()
    install = f"python3 -m pip install --quiet --user {shlex.quote(f'./{known.wheel.name}[train,tpu]')}"
    there.everywhere(install).check_returncode()
    return there.everywhere(f"python3 -u -m jaxformer.cli.main train {shlex.join(known.arguments)}").returncode


class Slice:
    """A TPU VM and its hosts."""

    def __init__(self, name: str, zone: str):
        self._name, self._zone = name, zone

    def gcloud(self, verb: str, *options: str, **settings: object) -> subprocess.CompletedProcess:
        """``gcloud compute tpus tpu-vm VERB`` of it."""
        start = ["gcloud", "compute", "tpus", "tpu-vm", verb]
        return subprocess.run([*start, self._name, f"--zone={self._zone}", *options], check=False, **settings)

    def state(self) -> str | None:
        """READY, PREEMPTED and so on; None if there is none of this name."""
        found = self.gcloud("describe", "--format=value(state)", capture_output=True, text=True)
        if found.returncode and "NOT_FOUND" not in found.stderr:
            sys.stderr.write(found.stderr)
            found.check_returncode()
        return found.stdout.strip() or None

    def copy(self, path: pathlib.Path) -> subprocess.CompletedProcess:
        """Copies a file into the home directory of every host."""
        start = ["gcloud", "compute", "tpus", "tpu-vm", "scp", str(path.resolve()), f"{self._name}:"]
        return subprocess.run([*start, f"--zone={self._zone}", "--worker=all"], check=False)

    def everywhere(self, line: str) -> subprocess.CompletedProcess:
        """Runs a line of shell on every host at once."""
        return self.gcloud("ssh", "--worker=all", f"--command={line}")


if __name__ == "__main__":
    sys.exit(main())
