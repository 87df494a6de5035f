"""``jaxformer average``."""

from __future__ import annotations

import dataclasses
import sys

from jaxformer.cli.command import command, option
from jaxformer.cli.predictors import OneRun


@dataclasses.dataclass(frozen=True)
class Average(OneRun):
    """Averages the parameters of a run's last checkpoints (Vaswani et al. 2017, section 6.1).

    examples:
      jaxformer average runs/en-de --last 10
      jaxformer evaluate runs/en-de --checkpoint average
    """

    last: int = option("The number of checkpoints (default 5).", 5)
    mesh: str = option("The device mesh; default: a copy on every device.", "")


@command
def main(args: Average) -> int:
    """Averages checkpoints into the run's ``average`` folder."""
    from jaxformer.cli import runtime
    from jaxformer.tasks import restore, rundir

    runtime.start()
    steps = restore.average(args.run, last=args.last, mesh=args.mesh, attention=args.attention)
    fewer = f" (the run keeps fewer than {args.last} checkpoints)" * (len(steps) < args.last)
    s = "s" * (len(steps) != 1)
    numbers = ", ".join(map(str, steps))
    print(f"averaged {len(steps)} checkpoint{s}, step{s} {numbers}{fewer}; use it with --checkpoint average")
    saved = {path.name: rundir.read_json(path) for path in sorted(args.run.glob("scores-*-average*.json"))}
    # The name of a test set, or a setting of an ensemble, may also be "average".
    saved = {name: about for name, about in saved.items() if about.get("settings", {}).get("checkpoint") == "average"}
    if old := [name for name, about in saved.items() if about.get("steps") != list(steps)]:
        print(f"these scores are of an earlier average; evaluate again: {', '.join(old)}", file=sys.stderr)
    return 0
