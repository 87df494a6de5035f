"""``jaxformer configs``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Lists configurations with the first line of their docstrings."""
    parser = argparse.ArgumentParser(
        prog="jaxformer configs",
        description="Lists the configurations below ./experiments and the built-in ones.",
        epilog="examples:\n  jaxformer configs\n  jaxformer train multi30k:en_de --settings\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(arguments)
    from jaxformer.config import catalog

    found = catalog()
    width = max(len(name) for name, _ in found)
    for name, summary in found:
        print(f"{name:{width}}  {summary}")
    return 0
