"""``jaxformer configs``."""

from __future__ import annotations

import dataclasses

from jaxformer.cli.command import Options, command


@dataclasses.dataclass(frozen=True)
class Configs(Options):
    """Lists the built-in configurations and those below ./experiments (a clone of jaxformer has some), without
    running their code.

    examples:
      jaxformer configs
      jaxformer train multi30k:en_de --settings
    """


@command
def main(args: Configs) -> int:
    """Lists configurations with the first lines of their docstrings."""
    from jaxformer.tasks.registry import catalog

    entries = catalog()
    longest = max(len(name) for name, _ in entries)
    for name, summary in entries:
        print(f"{name:{longest}}  {summary}")
    return 0
