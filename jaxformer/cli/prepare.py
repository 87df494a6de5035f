"""``jaxformer data prepare``."""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
import time
from typing import Annotated

from jaxformer.cli.command import Options, OutputFolder, Word, command, option, word
from jaxformer.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Prepare(Options):
    """Learns the vocabulary of a translation corpus and tokenizes its pairs, in several processes, before a training.

    examples:
      jaxformer data prepare wmt14:base_en_fr --data-dir data --out cache --workers 16
      jaxformer data prepare wmt14:base_en_fr --data-dir data --out cache --part 3/8  # one of 8 jobs with one folder
      jaxformer train wmt14:base_en_fr --data-dir data --data.cache cache --out run

    Finished units are kept: run the same command again after a stop. The result is the same for any number of workers
    and parts; the job that ends last joins the parts.
    """

    setting_prefix = "--"

    config: Annotated[str, Word("CONFIG")] = word("A configuration, as for `jaxformer train`.")
    out: OutputFolder | None = option("The folder of tokens, which a training names as --data.cache.")
    data_dir: str | None = option("The folder of the corpora; default: the working directory, then $JAXFORMER_DATA.")
    workers: int | None = option("The number of processes that tokenize; default: that of the cores.")
    part: Annotated[str, Word("I/N")] = option("Tokenize only part I of N, from 1.", "1/1")

    @classmethod
    def command(cls) -> str:
        """Returns the words of the command."""
        return "data prepare"


@command
def prepare(args: Prepare, settings: list[str]) -> int:
    """Prepares; returns 0 if the corpus or the part is complete."""
    part, parts = _part(args.part)
    if args.out is None:
        raise ConfigError("--out FOLDER is missing")
    if args.workers is not None and args.workers < 1:
        raise ConfigError(f"--workers must be at least 1, got {args.workers}")
    from jaxformer.cli.arguments import resolved

    if args.data_dir is not None:
        settings = ["--data.directory", args.data_dir, *settings]
    config = resolved(args.config, [*settings, "--data.cache", str(args.out)])
    from jaxformer import hardware
    from jaxformer.data.units import Share
    from jaxformer.tasks.translation import TranslationConfig
    from jaxformer.tasks.translation import task as translation
    from jaxformer.tasks.translation.corpora import Mixture
    from jaxformer.training.progress import Count

    if not isinstance(config, TranslationConfig):
        raise ConfigError(f"prepare is for translation; the data of {config.task} are prepared by `jaxformer train`")
    say = functools.partial(print, file=sys.stderr, flush=True)
    began = time.perf_counter()
    corpus = translation.read(config)
    found = corpus.parts if isinstance(corpus, Mixture) else {"": corpus}
    for name, one in found.items():
        say(f"{name}: {one.train.report()}".removeprefix(": "))
    say(f"read in {time.perf_counter() - began:.1f} s")
    total = sum(one.train.num_lines for one in found.values())
    progress = Count(-(-total // parts), "sentences tokenized", say, rate=True)
    share = Share(part - 1, parts, args.workers or hardware.num_cores(), progress=progress)
    for line in translation.prepare_part(config, corpus, args.out, share):
        say(line)
    say(f"done in {time.perf_counter() - began:.1f} s")
    return 0


def _part(text: str) -> tuple[int, int]:
    """Returns the number of a part, from 1, and that of all parts."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise ConfigError(f"--part must be I/N, such as 3/8, with I from 1 to N, got {text!r}")
    return int(match[1]), int(match[2])
