"""``jaxformer runs``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from jaxformer.cli.output import as_json, shown
from jaxformer.cli.paths import local_path

EXAMPLES = """examples:
  jaxformer runs runs
  jaxformer runs runs --json | jq -r 'select(.state == "killed") | .path'
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
    parser.add_argument("--json", action="store_true", help="print one JSON object per line, nothing without runs")
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"{options.folder} is not a folder")
    from jaxformer.tasks.runs import find_runs

    runs = find_runs(options.folder)
    if options.json:
        for run in runs:
            facts = {"path": str(run.path), "task": run.task, "state": run.state, "step": run.step, "steps": run.steps}
            print(as_json(facts | {"results": run.results}))
        return 0
    if not runs:
        print(f"no runs below {options.folder}")
    for run in runs:
        print(shown(f"{run.path}  {run.task}  {run.state}  step {run.step:,}/{run.steps:,}"))
        for name, value in run.results.items():
            print(shown(f"    {name} {value:.4g}"))
    return 0
