"""``jaxformer train``."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from jaxformer.cli.command import Options, Run, Word, command, option, word
from jaxformer.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Train(Options):
    """Trains a configuration in a run directory, or resumes the run in it.

    examples:
      jaxformer train demo --out runs/demo
      jaxformer train translation --data.source my.en --data.target my.fr --out run
      jaxformer train language_model --data.text my.txt --out run
      jaxformer train multi30k:en_de --data-dir /corpora --out runs/en-de --train.steps 8000
      jaxformer train experiments/translation/multi30k.py:de_en --out runs/de-en
      jaxformer train runs/en-de/config.json --seed 1 --out runs/en-de-1
      jaxformer train multi30k:en_de --init-from runs/demo:last --out runs/warm
      jaxformer train language_model:base --data.text my.txt --model.compute_dtype bfloat16 --mesh fsdp=8 --out run
      jaxformer train demo --optimizer muon --optimizer.learning_rate 2e-3 --train.log-to wandb --out run
      jaxformer train translation --settings  # every setting and its default

    Run the same command again to resume where it stopped.
    """

    usage = ("--out RUN",)
    setting_prefix = "--"

    config: Annotated[str, Word("CONFIG")] = word("A name from `jaxformer configs`, a file, or a saved config.json.")
    out: Run | None = option("The run directory.")
    data_dir: str | None = option("The folder of the corpora; default: the working directory, then $JAXFORMER_DATA.")
    devices: int | None = option("Stop unless all hosts together have N devices.")
    settings: bool = option("Print every setting of CONFIG and exit.", False)
    no_compile_cache: bool = option("Compile every program again.", False)
    profile: str = option("Trace steps FIRST:LAST, or a number of steps, to RUN/profile.", "")


@command
def main(args: Train, settings: list[str]) -> int:
    """Trains; returns 0 when done, 85 after SIGTERM or a time limit, 130 after Ctrl-C, in all cases after saving."""
    from jaxformer.cli.arguments import resolved, settings_help

    if args.data_dir is not None:
        if not args.data_dir:
            raise ConfigError("the path of --data-dir is empty")
        settings = ["--data.directory", args.data_dir, *settings]
    config = resolved(args.config, settings, args.out)
    if args.settings:
        print(settings_help(config))
        return 0
    if args.out is None:
        raise ConfigError("--out RUN is missing")
    from jaxformer.cli import STARTED, runtime
    from jaxformer.tasks import runner

    runtime.join(config, args.out, devices=args.devices)
    runtime.start(compile_cache=not args.no_compile_cache)
    hooks, console = [runtime.KeepCode()], runtime.console()
    result = runner.train(config, args.out, began=STARTED, console=console, profile=args.profile, hooks=hooks)
    return runtime.EXIT_CODES.get(result.reason, 0)
