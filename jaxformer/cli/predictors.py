"""The options of commands that use a trained run, and their predictor."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxformer.cli.paths import local_path
from jaxformer.errors import ConfigError

if TYPE_CHECKING:
    from jaxformer.tasks.base import Predictor, TaskConfig

SETTINGS = "  --decode.NAME VALUE    a setting of the search; `jaxformer train RUN/config.json --settings` lists them\n"


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the run, its checkpoint and the mesh."""
    parser.add_argument("run", metavar="RUN", type=local_path, help="a run directory")
    parser.add_argument("--checkpoint", default="best", help="best (default), last, average, or a step")
    parser.add_argument("--mesh", default="", metavar="MESH", help="device mesh; default: all devices share the work")


def split_settings(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits off the settings of the search, ``--decode.x 1`` or ``--decode.x=1``; returns other arguments first."""
    rest: list[str] = []
    settings: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word.startswith("--decode."):
            settings.append(word)
            if "=" not in word and words and not words[0].startswith("--"):
                settings.append(words.pop(0))
        elif word == "--":  # no options follow
            return [*rest, word, *words], settings
        else:
            rest.append(word)
    return rest, settings


def configured(options: argparse.Namespace, settings: Sequence[str]) -> TaskConfig:
    """Returns the configuration of a run with these settings of its search. It imports neither JAX nor a task.

    Raises:
      ConfigError: it is no run, or a setting is wrong.
    """
    from jaxformer.cli.arguments import override
    from jaxformer.tasks.registry import read_config

    return override(read_config(options.run), settings)


def load(options: argparse.Namespace, config: TaskConfig, command: str) -> Predictor:
    """Returns the predictor of a run, under the result of `configured`.

    Raises:
      ConfigError: the command cannot use a predictor of this run's task.
    """
    from jaxformer.cli import runtime
    from jaxformer.tasks import registry, runner

    task = registry.task_of(config)
    if command != "evaluate" and command not in task.commands:
        others = ", ".join(("evaluate", *task.commands))
        raise ConfigError(
            f"{options.run} is a run of {task.name}, which `{command}` cannot use; its commands are {others}"
        )
    runtime.start()
    return runner.predictor(options.run, config, checkpoint=options.checkpoint, mesh=options.mesh)
