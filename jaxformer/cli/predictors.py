"""The options of commands that use a trained run, and their predictor."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxformer.cli.command import SHORT, Attention, File, Options, OutputFile, Run, Text, option, refuse, word

if TYPE_CHECKING:
    from jaxformer.tasks.base import Predictor
    from jaxformer.tasks.config import TaskConfig


@dataclasses.dataclass(frozen=True)
class OneRun(Options):
    """A run, and its attention if that is not the library's."""

    run: Run = word("A run directory.")
    attention: Attention | None = option(
        "Your attention, in place of the one that the run remembers, as after a change of its file."
    )


@dataclasses.dataclass(frozen=True)
class RunOptions(OneRun):
    """The run, its checkpoint and the mesh."""

    checkpoint: str = option("The checkpoint: best (default), last, average, or a step.", "best")
    mesh: str = option("The device mesh; each device computes all; fsdp=N or tensor=N divides the parameters.", "")


@dataclasses.dataclass(frozen=True)
class EnsembleOptions(RunOptions):
    """The run, or several."""

    setting_prefix = "--decode."

    ensemble: tuple[Run, ...] = option("Further runs, whose models choose tokens together.", ())


@dataclasses.dataclass(frozen=True)
class Inputs(Options):
    """The texts, or names of images, that a command reads, and where it writes."""

    inputs: tuple[Text, ...] = word("Texts.", ())
    file: File | None = option("A file of them, one per line.")
    out: OutputFile | None = option("The file to write to, instead of printing.")

    def __post_init__(self) -> None:
        refuse((self.inputs and self.file, "give inputs or --file, not both"))

    def place(self, number: int) -> str:
        """Returns the place of an input in messages: its number as an argument, or its line."""
        if self.inputs:
            return f"text {number}"
        return f"{self.file or 'standard input'}, line {number}"


TO = "The target language, for a run of several: also one that no corpus translates this source into."
FROM = "The source language, for a run whose sources begin with its token, such as NLLB; default: the run's."


@dataclasses.dataclass(frozen=True)
class SearchOptions(EnsembleOptions):
    """The runs, and what is printed of a search."""

    short = tuple(SHORT)

    n_best: int = option("Print the N best: number, score, text.", 1)
    scores: bool = option("Print the score before each text.", False)
    json: bool = option("Print one JSON object per line, with scores of each token.", False)


def configured(args: RunOptions, settings: Sequence[str]) -> TaskConfig:
    """Returns the configuration of a run with these settings of its search. It imports neither JAX nor a task.

    Raises:
      ConfigError: the folder is not a run, a setting is wrong, or the command would ignore a setting.
    """
    from jaxformer.cli.arguments import override
    from jaxformer.cli.search_settings import placed
    from jaxformer.tasks.own_files import replaced
    from jaxformer.tasks.registry import read_config

    config, is_ensemble = read_config(args.run), bool(getattr(args, "ensemble", ()))
    config = override(config, placed(config, settings, command=args.command(), is_ensemble=is_ensemble))
    return replaced(config, args.attention, args.run)


def load(args: RunOptions, config: TaskConfig) -> Predictor:
    """Returns the predictor of a run, with the configuration from `configured`.

    Raises:
      ConfigError: the command cannot use a predictor of this run's task.
    """
    from jaxformer.cli import runtime
    from jaxformer.tasks import registry, restore

    task, command = registry.task_of(config), args.command()
    usable = ("evaluate", *task.commands)
    unusable = f"{args.run} is a run of {task.name}, which `{command}` cannot use; its own commands are"
    refuse((command not in usable, f"{unusable} {', '.join(usable)}"))
    runtime.start()
    return restore.predictor(args.run, config, checkpoint=args.checkpoint, mesh=args.mesh)


def load_ensemble(args: EnsembleOptions, config: TaskConfig) -> Predictor:
    """Returns the predictor of a run, or of an ensemble of it and the runs of ``--ensemble``."""
    from jaxformer.tasks.own_files import are_same, replaced

    first = load(args, config)
    combine = getattr(first, "ensemble_with", None)
    alone = f"{args.run} is a run of {config.task}, which has no ensembles; leave out --ensemble"
    refuse((combine is None and args.ensemble, alone))
    others = []
    for run in args.ensemble:
        of_run = dataclasses.replace(args, run=run, attention=None)
        other = configured(of_run, ())  # the first run's search applies to all
        if are_same(other.attention, config.attention):
            other = replaced(other, config.attention, run)
        unlike = f"{run} is a run of {other.task}, but {args.run} is one of {config.task}"
        refuse((other.task != config.task, unlike))
        others.append(load(of_run, other))
    if combine and others:
        return combine(others)
    return first


def directed(predictor: Predictor, language: str, source: str = "") -> Any:
    """Returns a translator into a language and from another one, or the predictor itself if none is given.

    Raises:
      ConfigError: the run does not translate between them, or is not one of translation.
    """
    if not (language or source):
        return predictor
    refuse((not hasattr(predictor, "to"), "--to and --from have no effect: the run does not translate"))
    return predictor.to(language, source)  # pyright: ignore[reportAttributeAccessIssue]
