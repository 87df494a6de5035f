"""``jaxformer runs``."""

from __future__ import annotations

import dataclasses

from jaxformer.cli.command import Folder, Options, command, option, word
from jaxformer.cli.output import as_json, shown
from jaxformer.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Runs(Options):
    """Lists the runs below a folder: state (running, killed, done, ...), steps, losses, saved scores.

    examples:
      jaxformer runs runs
      jaxformer runs runs --json | jq -r 'select(.state == "killed") | .path'
    """

    folder: Folder = word("A folder of runs.")
    json: bool = option("Print one JSON object per line, nothing without runs.", False)


@command
def main(args: Runs) -> int:
    """Lists runs with their state and their scores."""
    if not args.folder.is_dir():
        raise ConfigError(f"{args.folder} is not a folder")
    from jaxformer.tasks.runs import find_runs

    runs = find_runs(args.folder)
    if args.json:
        for run in runs:
            facts = {"path": str(run.path), "task": run.task, "state": run.state, "step": run.step, "steps": run.steps}
            print(as_json(facts | {"results": run.results}))
        return 0
    if not runs:
        print(f"no runs below {args.folder}")
    for run in runs:
        print(shown(f"{run.path}  {run.task}  {run.state}  step {run.step:,}/{run.steps:,}"))
        for name, value in run.results.items():
            print(shown(f"    {name} {value:.4g}"))
    return 0
