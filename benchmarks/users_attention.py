"""Measures what it costs to pass an attention function of one's own: the library's, wrapped as a user would.

python -m benchmarks.users_attention --out benchmarks/results/users_attention.json
"""

from __future__ import annotations

import argparse

from benchmarks import command
from benchmarks.revisions import CASES, compare, show
from benchmarks.worker import Side
from experiments.command import count


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("users_attention", __doc__)
    parser.add_argument("--cases", nargs="+", choices=["train", "decode"], default=["train", "decode"])
    parser.add_argument("--most", type=count, default=40, help="the most turns of a case; by default 40")
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Measures and prints everything that was asked for."""
    cases = {}
    for case in args.cases:
        module, spec, steps = CASES[case]
        sides = {name: Side(f"{case} {name}", module, spec | {"users": name == "new"}) for name in ("old", "new")}
        cases[case] = compare(sides, steps, args.most)
        show(f"{case}: a user's function / the default", cases[case])
        command.write(args.out, {"cases": cases})


if __name__ == "__main__":
    command.script(main)
