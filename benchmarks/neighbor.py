"""Measures what another process costs a training step: an idle one, one that takes turns with it, and a pause.

Each situation is measured in every round. Beside the seconds of a step, the table has the processor time, the time that
the process's threads waited for a core, its page faults, and the processor time of all other programs, from Linux's
``/proc``. Only where the last is near 0 do the seconds say something about a situation.

    python -m benchmarks.neighbor --torch-python PATH
    python -m benchmarks.neighbor --rounds 3 --out benchmarks/results/neighbor.json
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import time
from collections.abc import Callable

from benchmarks import command
from benchmarks.decode import processor
from benchmarks.train_step import SIZES
from benchmarks.worker import Side
from experiments.command import count
from jaxformer.errors import JaxformerError


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("neighbor", __doc__)
    parser.add_argument("--rounds", type=count, default=7)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds of a pause (default 1)")
    command.add_torch(parser)
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Measures and prints everything that was asked for."""
    if not command.find_torch(args.torch_python):
        raise JaxformerError("the neighbor is PyTorch: give --torch-python PATH")
    spec = SIZES["small-8k"] | {"source": 32, "target": 32, "dropout": 0.1}
    ours = Side("jaxformer", "benchmarks.sides.ours", spec)
    pause = lambda: time.sleep(args.pause)
    found: dict[str, list[dict[str, float]]] = {}

    def add(name: str, *before: Callable[[], object]) -> None:
        for action in before:
            action()
        found.setdefault(name, []).append(_step(ours))

    print(f"{processor()}, load {os.getloadavg()[0]:.1f}", flush=True)
    for _ in command.rounds(args.rounds):
        add("alone")
        add("alone, after a pause", pause)
    theirs = Side("PyTorch", "benchmarks.sides.pytorch", spec, python=args.torch_python)
    turn = lambda: theirs.round(1)
    for _ in command.rounds(args.rounds):
        add("beside an idle process")
        add("in turn with its steps", turn)
        add("in turn, after a pause", turn, pause)
    theirs.close()
    for _ in command.rounds(args.rounds):
        add("alone again")
    ours.close()
    columns = f"{'processor':>11s}{'waited':>9s}{'faults':>9s}{'others':>9s}"
    print(f"{'':26s}{'seconds':>9s}{'to':>8s}{'ratio':>8s}{columns}")
    median = lambda rows, key: statistics.median(row[key] for row in rows)
    base = median(found["alone"], "seconds")
    for name, rows in found.items():
        seconds, most = median(rows, "seconds"), max(row["seconds"] for row in rows)
        line = f"{name:26s}{seconds:9.3f}{most:8.3f}{seconds / base:8.2f}"
        line += f"{median(rows, 'processor'):11.3f}{median(rows, 'waited'):9.3f}{median(rows, 'faults'):9.0f}"
        print(line + f"{median(rows, 'others'):9.3f}")
    command.write(args.out, {"processor": processor(), "pause": args.pause, "situations": found})


def _step(side: Side) -> dict[str, float]:
    """Measures one step, and what its process waited for during it and the step before, which warms the caches."""
    before = _waits(side.pid)
    side.round(1)
    measured = {name: value - before[name] for name, value in _waits(side.pid).items()}
    return {"seconds": side.seconds[-1], "processor": side.processor[-1], **measured}


def _waits(pid: int) -> dict[str, float]:
    """Returns the seconds that a process has waited for a core, its page faults, and the seconds that others ran."""
    root, tick = pathlib.Path("/proc", str(pid)), os.sysconf("SC_CLK_TCK")
    delays = [int((task / "schedstat").read_text().split()[1]) for task in (root / "task").iterdir()]
    fields = (root / "stat").read_text().rpartition(")")[2].split()
    everything = sum(map(int, pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:4]))
    others = (everything - int(fields[11]) - int(fields[12])) / tick
    return {"waited": sum(delays) / 1e9, "faults": int(fields[7]) + int(fields[9]), "others": others}


if __name__ == "__main__":
    command.script(main)
