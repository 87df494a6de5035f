"""``jaxformer diff``."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

from jaxformer.cli.output import as_indented_json, shown
from jaxformer.cli.paths import local_path

EXAMPLES = """examples:
  jaxformer diff runs/a runs/b
  jaxformer diff runs/a runs/b --json | jq .settings
"""


def main(arguments: Sequence[str]) -> int:
    """Shows how two runs differ; returns 0 if settings, versions, data and results are the same, else 1."""
    parser = argparse.ArgumentParser(
        prog="jaxformer diff",
        description="Shows how two runs differ: settings, versions, data and results. Exits with 1 if they differ. "
        "Translations of the same sentences are compared by paired bootstrap resampling.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("a", metavar="A", type=local_path, help="a run directory")
    parser.add_argument("b", metavar="B", type=local_path, help="another")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    options = parser.parse_args(arguments)
    from jaxformer.tasks.runs import differences, read_run
    from jaxformer.tasks.significance import comparisons

    a, b = read_run(options.a), read_run(options.b)
    found, compared = differences(a, b), comparisons(a, b)
    if options.json:
        rows = {section: {name: values for name, *values in rows} for section, rows in found.items()}
        tests = {name: dataclasses.asdict(comparison) for name, comparison in compared.items()}
        print(as_indented_json({**rows, "comparisons": tests}))
        return 1 if any(found.values()) else 0
    for section, rows in found.items():
        print(f"{section}:" if rows else f"{section}: the same")
        for name, first, second in rows:
            print(shown(f"  {name}: {first} | {second}"))
    for name, comparison in compared.items():
        print(shown(f"{name}: {comparison} (paired bootstrap)"))
    return 1 if any(found.values()) else 0
