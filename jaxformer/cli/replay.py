"""``jaxformer replay``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from jaxformer.cli.paths import local_path
from jaxformer.cli.predictors import add_attention_option

EXAMPLES = """examples:
  jaxformer replay runs/demo --steps 20
"""


def main(arguments: Sequence[str]) -> int:
    """Trains the first steps of a run again; returns 0 if each loss is the logged one bit for bit, else 1."""
    parser = argparse.ArgumentParser(
        prog="jaxformer replay",
        description="Trains the first steps of a run again, and reports whether each loss is bitwise equal. "
        "Exits with 1 if one differs.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", metavar="RUN", type=local_path, help="a run directory")
    parser.add_argument("--steps", type=int, default=10, metavar="N", help="the number of steps (default 10)")
    add_attention_option(parser)
    options = parser.parse_args(arguments)
    from jaxformer.tasks.registry import read_config

    read_config(options.run)  # reports a mistyped name before JAX is imported
    from jaxformer.cli import runtime
    from jaxformer.tasks.replay import replay

    runtime.start()
    same = 0
    for step in replay(options.run, steps=options.steps, attention=options.attention):
        same += step.same
        print(
            f"step {step.step}: {step.loss!r} " + ("the same" if step.same else f"IS NOT {step.logged!r}"), flush=True
        )
    print(f"{same} of {options.steps} losses equal the logged ones bit for bit")
    return 0 if same == options.steps else 1
