"""``jaxformer runs``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from jaxformer.cli.output import shown
from jaxformer.cli.paths import local_path

EXAMPLES = """examples:
  jaxformer runs runs
"""


def main(arguments: Sequence[str]) -> int:
    """Lists runs with their state and their scores."""
    parser = argparse.ArgumentParser(
        prog="jaxformer runs",
        description="Lists the runs below a folder: state (running, killed, done, ...), steps, losses, saved scores.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="DIR", type=local_path, help="a folder of runs")
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"{options.folder} is not a folder")
    from jaxformer.tasks.history import find_runs

    runs = find_runs(options.folder)
    if not runs:
        print(f"no runs below {options.folder}")
    for run in runs:
        print(shown(f"{run.path}  {run.task}  {run.state}  step {run.step:,}/{run.steps:,}"))
        for name, value in run.results.items():
            print(shown(f"    {name} {value:.4g}"))
    return 0
