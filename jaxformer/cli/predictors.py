"""The options of commands that use a trained run, and their predictor."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from jaxformer.cli.paths import local_path
from jaxformer.errors import ConfigError

if TYPE_CHECKING:
    from jaxformer.tasks.base import Predictor
    from jaxformer.tasks.config import TaskConfig

SETTINGS = "  --decode.NAME VALUE    a setting of the search; `jaxformer train RUN/config.json --settings` lists them\n"


SHARED = {
    "translate": "default: all devices share the sentences",
    "caption": "default: all devices share the images",
    "evaluate": "default: all devices share translation and captioning; each computes all of any other task",
}
"""The way devices share the work of a command, for the help text; for other commands, each computes everything."""


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the run, its checkpoint and the mesh, and the name of the command."""
    command = parser.prog.rpartition(" ")[2]
    parser.set_defaults(command=command)
    mesh = SHARED.get(command, "each device computes all; fsdp=N or tensor=N divides the parameters")
    parser.add_argument("run", metavar="RUN", type=local_path, help="a run directory")
    parser.add_argument("--checkpoint", default="best", help="best (default), last, average, or a step")
    parser.add_argument("--mesh", default="", metavar="MESH", help=f"device mesh; {mesh}")
    add_attention_option(parser)


def add_attention_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option for the attention of a run that was trained with one of the user's own."""
    text = "your attention, in place of the one that the run remembers, as after a change of its file"
    parser.add_argument("--attention", metavar="FILE.py:NAME", help=text)


SHORT = {
    "--sample": "sample instead of searching for the most probable",
    "--temperature": "divide logits by X before sampling",
    "--top-k": "sample from the N most probable tokens",
    "--top-p": "sample from the fewest most probable tokens with total probability X (nucleus)",
    "--min-p": "sample from the tokens at least X times as probable as the most probable one",
    "--seed": "the seed of sampling",
    "--beam-size": "the number of hypotheses that the search keeps",
    "--min-length": "the minimum number of tokens before the end",
    "--no-repeat-ngram-size": "no n-gram of N tokens occurs twice",
    "--forbid": "words or phrases that are never generated, separated by commas",
    "--shortlist": "a file of words; only their pieces are generated",
    "--mbr": "the best of N samples by minimum Bayes risk: the one most similar to the others",
}
"""Options that are settings of the search under shorter names: see `search_settings.placed`."""


_VALUES = {"--temperature": "X", "--top-p": "X", "--min-p": "X", "--forbid": "WORDS", "--shortlist": "FILE"}
"""The values of `SHORT` options in the help; N where none is named."""


def add_search_options(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """Adds some of the `SHORT` options to the help, and those for what is printed."""
    parser.add_argument("--n-best", type=int, default=1, metavar="N", help="print the N best: number, score, text")
    parser.add_argument("--scores", action="store_true", help="print the score before each text")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line, with scores of each token")
    group = parser.add_argument_group("search")
    for name in names:
        kind: dict[str, Any] = {"nargs": 0} if name == "--sample" else {"metavar": _VALUES.get(name, "N")}
        group.add_argument(name, action=_Split, help=SHORT[name], **kind)


def add_ensemble_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option that `load_ensemble` reads."""
    parser.add_argument(
        "--ensemble",
        nargs="+",
        type=local_path,
        default=[],
        metavar="RUN",
        help="further runs, whose models choose tokens together",
    )


class _Split(argparse.Action):
    """Rejects an option that `split_settings` should have consumed, such as an abbreviated one."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: object, **options: object) -> None:
        parser.error("search options must be written in full")


def split_settings(arguments: Sequence[str], short: Collection[str] = ()) -> tuple[list[str], list[str]]:
    """Separates the settings of the search, ``--decode.x 1`` or ``--decode.x=1``; returns the other arguments first.

    Args:
      short: the options of `SHORT` that the command has.
    """
    rest: list[str] = []
    settings: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name in short:
            word = f"--decode.{name[2:].replace('-', '_')}{equals}{value}"
            if name == "--sample" and not equals:
                settings += [word, "True"]
                continue
            if not equals and not words:
                raise ConfigError(f"{name} needs a value")
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
      ConfigError: the folder is not a run, a setting is wrong, or the command would ignore a setting.
    """
    from jaxformer.cli.arguments import override
    from jaxformer.cli.search_settings import placed
    from jaxformer.tasks.attention_setting import replaced
    from jaxformer.tasks.registry import read_config

    config, is_ensemble = read_config(options.run), bool(getattr(options, "ensemble", ()))
    config = override(config, placed(config, settings, command=options.command, is_ensemble=is_ensemble))
    return replaced(config, getattr(options, "attention", None), options.run)


def load(options: argparse.Namespace, config: TaskConfig) -> Predictor:
    """Returns the predictor of a run, with the configuration from `configured`.

    Raises:
      ConfigError: the command cannot use a predictor of this run's task.
    """
    from jaxformer.cli import runtime
    from jaxformer.tasks import registry, runner

    task, command = registry.task_of(config), options.command
    if command != "evaluate" and command not in task.commands:
        others = ", ".join(("evaluate", *task.commands))
        raise ConfigError(
            f"{options.run} is a run of {task.name}, which `{command}` cannot use; its own commands are {others}"
        )
    runtime.start()
    return runner.predictor(options.run, config, checkpoint=options.checkpoint, mesh=options.mesh)


def load_ensemble(options: argparse.Namespace, config: TaskConfig) -> Predictor:
    """Returns the predictor of a run, or of an ensemble of it and the runs of ``--ensemble``.

    Raises:
      ConfigError: see `load`; or the runs are not compatible, or their task does not support ensembles.
    """
    from jaxformer.tasks.attention_setting import are_same, replaced

    first: Any = load(options, config)
    if options.ensemble and not hasattr(first, "ensemble_with"):
        raise ConfigError(f"{options.run} is a run of {config.task}, which has no ensembles; leave out --ensemble")
    others = []
    for run in options.ensemble:
        given = argparse.Namespace(**{**vars(options), "run": run, "attention": None})
        other = configured(given, ())  # the first run's search applies to all
        if are_same(other.attention, config.attention):
            other = replaced(other, config.attention, run)
        if other.task != config.task:
            raise ConfigError(f"{run} is a run of {other.task}, but {options.run} is one of {config.task}")
        others.append(load(given, other))
    return first.ensemble_with(others) if others else first
