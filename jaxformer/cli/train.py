"""``jaxformer train``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from jaxformer.cli.paths import local_path
from jaxformer.errors import ConfigError

EXAMPLES = """examples:
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


def main(arguments: Sequence[str]) -> int:
    """Trains; returns 0 when done, 85 after SIGTERM or a time limit, 130 after Ctrl-C, in all cases after saving."""
    parser = argparse.ArgumentParser(
        prog="jaxformer train",
        usage="jaxformer train CONFIG --out RUN [--field value ...]",
        description="Trains a configuration in a run directory, or resumes the run in it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "config", metavar="CONFIG", help="a name from `jaxformer configs`, a file, or a saved config.json"
    )
    parser.add_argument("--out", metavar="RUN", type=local_path, help="the run directory")
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="the folder of the corpora; default: the working directory, then $JAXFORMER_DATA",
    )
    parser.add_argument("--devices", type=int, metavar="N", help="stop unless all hosts together have N devices")
    parser.add_argument("--settings", action="store_true", help="print every setting of CONFIG and exit")
    parser.add_argument("--no-compile-cache", action="store_true", help="compile every program again")
    parser.add_argument(
        "--profile",
        default="",
        metavar="STEPS",
        help="trace steps FIRST:LAST, or a number of steps, to RUN/profile",
    )
    options, rest = parser.parse_known_args(arguments)
    from jaxformer.cli.arguments import check_order, resolved, settings_help

    check_order("train", arguments, options.config, rest)
    if options.data_dir is not None:
        if not options.data_dir:
            raise ConfigError("the path of --data-dir is empty")
        rest = ["--data.directory", options.data_dir, *rest]
    config = resolved(options.config, rest, options.out)
    if options.settings:
        print(settings_help(config))
        return 0
    if options.out is None:
        parser.error("--out RUN is missing")
    from jaxformer.cli import STARTED, runtime
    from jaxformer.tasks import runner

    runtime.join(config, options.out, devices=options.devices)
    runtime.start(compile_cache=not options.no_compile_cache)
    output = {"console": runtime.console(), "profile": options.profile, "hooks": [runtime.KeepCode()]}
    result = runner.train(config, options.out, began=STARTED, **output)
    return runtime.EXIT_CODES.get(result.reason, 0)
