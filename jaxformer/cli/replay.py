"""``jaxformer replay``."""

from __future__ import annotations

import dataclasses

from jaxformer.cli.command import command, option
from jaxformer.cli.predictors import OneRun


@dataclasses.dataclass(frozen=True)
class Replay(OneRun):
    """Trains the first steps of a run again, and reports whether each loss is bitwise equal. Exits with 1 if one
    differs.

    examples:
      jaxformer replay runs/demo --steps 20
    """

    steps: int = option("The number of steps (default 10).", 10)


@command
def main(args: Replay) -> int:
    """Trains the first steps of a run again; returns 0 if each loss is the logged one bit for bit, else 1."""
    from jaxformer.tasks.registry import read_config

    read_config(args.run)  # reports a mistyped name before JAX is imported
    from jaxformer.cli import runtime
    from jaxformer.tasks.replay import replay

    runtime.start()
    same = 0
    for step in replay(args.run, steps=args.steps, attention=args.attention):
        same += step.same
        verdict = "the same" if step.same else f"IS NOT {step.logged!r}"
        print(f"step {step.step}: {step.loss!r} {verdict}", flush=True)
    print(f"{same} of {args.steps} losses equal the logged ones bit for bit")
    return int(same != args.steps)
