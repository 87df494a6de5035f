"""Checks which properties well-known attention functions have, with `jaxformer.conformance`; ours among them.

python -m benchmarks.conformance --out benchmarks/results/conformance.json --page docs/conformance_results.md

Functions of packages that are not installed are named as such. A second interpreter, which has others, adds its
functions to the same file; the page has every function in the file.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import platform
from typing import Any

import jax

from benchmarks import command
from benchmarks.sides import attention_functions
from jaxformer import conformance
from jaxformer.files import write_text

MARKS = {"passed": "yes", "failed": "**no**", "not offered": "-"}


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("conformance", __doc__, required=True)
    names = list(attention_functions.every())
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help="by default all")
    parser.add_argument("--page", type=pathlib.Path, help="Markdown file with the tables of every function in --out")
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Checks each function and writes what was found after each."""
    jax.config.update("jax_num_cpu_devices", 2)
    before = json.loads(args.out.read_text(encoding="utf-8")) if args.out.exists() else {"functions": {}}
    found: dict[str, Any] = before["functions"]
    for name in args.only:
        missing = list(attention_functions.packages(name))
        if missing:
            found.setdefault(name, {"missing": f"{', '.join(missing)} is not installed"})
            continue
        try:
            adapter = attention_functions.every()[name]()
        except ImportError as error:
            found.setdefault(name, {"missing": f"cannot be imported: {error}"})
            continue
        report = conformance.check(adapter)
        print(f"{name}: {report.counts}", flush=True)
        if not (report.of("passed") or report.of("failed")):
            found[name] = {"missing": report.rows[0].finding}
            continue
        facts = {"date": datetime.date.today().isoformat(), "cpu": platform.processor() or platform.machine()}
        found[name] = json.loads(report.to_json()) | facts
        command.write(args.out, {"functions": found})
    command.write(args.out, {"functions": found})
    if args.page is not None:
        write_text(args.page, page(found))


def page(found: dict[str, Any]) -> str:
    """Returns a page: a table of all functions and properties, then what was found of each that failed."""
    checked = {name: report for name, report in found.items() if "rows" in report}
    numbers = {name: str(i + 1) for i, name in enumerate(checked)}
    lines = ["| | " + " | ".join(numbers.values()) + " |", "|---|" + "---|" * len(numbers)]
    status = {name: {row["name"]: row for row in report["rows"]} for name, report in checked.items()}
    for prop in conformance.PROPERTIES:
        marks = [MARKS[status[name][prop]["status"]] if prop in status[name] else "" for name in checked]
        lines.append(f"| {prop} | " + " | ".join(marks) + " |")
    for label in ("float32", "bfloat16", "float16"):
        errors = [status[name]["values"]["errors"].get(label) for name in checked]
        lines.append(f"| worst error, {label} | " + " | ".join("" if x is None else f"{x:.0e}" for x in errors) + " |")
    legend = []
    for name, report in checked.items():
        versions = ", ".join(f"{package} {version}" for package, version in report["versions"].items())
        legend.append(f"{numbers[name]}. {name}: {report['date']}, {versions}; {report['devices']}")
    absent = [f"- {name}: {report['missing']}" for name, report in found.items() if "missing" in report]
    details = []
    for name, report in checked.items():
        failed = [row for row in report["rows"] if row["status"] == "failed"]
        details += [f"### {numbers[name]}. {name}", ""]
        details += [f"- {row['name']}: {row['finding']}" for row in failed] or [
            "Nothing: it has every property that it offers."
        ]
        details.append("")
    parts = [HEAD, "\n".join(lines), "", "\n".join(legend), "", "Not run:", "", "\n".join(absent or ["- nothing"]), ""]
    return "\n".join([*parts, "## What failed", "", *details]).rstrip() + "\n"


HEAD = """# Conformance of attention functions

Made by `python -m benchmarks.conformance --out benchmarks/results/conformance-2026-11-30.json --page
docs/conformance_results.md`, of the properties in [conformance.md](conformance.md). "yes": it has the property.
"**no**": it lacks it in a case that it accepts. "-": it does not offer it, or refuses it with an error. All ran on a
CPU: what kernels for a GPU or a TPU do is not here. Layers (`MultiheadAttention`, `Attend`) have kernels that change
nothing, and their dropout is not tried.

A "**no**" is not always a bug. What a query without keys gets, and what NaN in padding does, are conventions, and this
table measures ours; [how to read a failure](conformance.md#how-to-read-a-failure) says what the functions promise.
"""


if __name__ == "__main__":
    command.script(main)
