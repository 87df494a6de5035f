"""``jaxformer configs``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Lists configurations with the first lines of their docstrings."""
    parser = argparse.ArgumentParser(
        prog="jaxformer configs",
        description="Lists the built-in configurations and those below ./experiments (a clone of jaxformer has some), "
        "without running their code.",
        epilog="examples:\n  jaxformer configs\n  jaxformer train multi30k:en_de --settings\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(arguments)
    from jaxformer.tasks.registry import catalog

    entries = catalog()
    longest = max(len(name) for name, _ in entries)
    for name, summary in entries:
        print(f"{name:{longest}}  {summary}")
    return 0
