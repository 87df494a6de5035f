"""``jaxformer diff``."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Annotated

from jaxformer.cli.command import Options, Run, Word, command, option, word
from jaxformer.cli.output import as_indented_json, shown
from jaxformer.cli.paths import local_path


@dataclasses.dataclass(frozen=True)
class Diff(Options):
    """Shows how two runs differ: settings, versions, data and results. Exits with 1 if they differ. Translations of the
    same sentences are compared by paired bootstrap resampling.

    examples:
      jaxformer diff runs/a runs/b
      jaxformer diff runs/a runs/b --json | jq .settings
    """

    run: Run = word("A run directory.")
    other: Annotated[pathlib.Path, Word("OTHER", local_path)] = word("Another one.")
    json: bool = option("Print everything as JSON.", False)


@command
def main(args: Diff) -> int:
    """Shows how two runs differ; returns 0 if settings, versions, data and results are the same, else 1."""
    from jaxformer.tasks.runs import comparisons, differences, read_run

    a, b = read_run(args.run), read_run(args.other)
    differing, compared = differences(a, b), comparisons(a, b)
    code = int(any(differing.values()))
    if args.json:
        rows = {section: {name: values for name, *values in rows} for section, rows in differing.items()}
        tests = {name: dataclasses.asdict(comparison) for name, comparison in compared.items()}
        print(as_indented_json({**rows, "comparisons": tests}))
        return code
    for section, rows in differing.items():
        print(f"{section}:{' the same' * (not rows)}")
        for name, first, second in rows:
            print(shown(f"  {name}: {first} | {second}"))
    for name, comparison in compared.items():
        print(shown(f"{name}: {comparison} (paired bootstrap)"))
    return code
