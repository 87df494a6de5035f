"""The commands that list or write what comes with the library, ``configs`` and ``data``, and ``data prepare``."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import re
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Literal

from jaxformer.cli.command import (
    REQUIRED,
    Name,
    Options,
    OutputFolder,
    Positive,
    Word,
    command,
    located,
    option,
    refuse,
    word,
)
from jaxformer.files import write_text


@dataclasses.dataclass(frozen=True)
class Configs(Options):
    """Lists the built-in configurations and those below ./experiments (a clone of jaxformer has some), without
    running their code.

    examples:
      jaxformer configs
      jaxformer train multi30k:en_de --settings
    """


@command
def configs(args: Configs) -> int:
    """Lists configurations with the first lines of their docstrings."""
    from jaxformer.tasks.registry import catalog

    entries = catalog()
    longest = max(len(name) for name, _ in entries)
    for name, summary in entries:
        print(f"{name:{longest}}  {summary}")
    return 0


@dataclasses.dataclass(frozen=True)
class Data(Options):
    """Downloads a known corpus and checks it, writes the built-in one to files, or tokenizes a large one.

    examples:
      jaxformer data list
      jaxformer data fetch multi30k --out data
      jaxformer data grammar --out data/grammar  # the built-in corpus: four parts, two aligned files each
      jaxformer train tagging:tiny --data.train data/grammar/train.tags.tsv --out tagger  # parts of speech
      jaxformer data prepare CONFIG --out cache --workers 8  # see `jaxformer data prepare --help`
    """

    action: Literal["list", "fetch", "grammar"] = word("List the corpora, fetch one, or write the built-in one.")
    name: Name = word("The corpus to fetch.", "")
    out: OutputFolder = option("The folder (default: data).", pathlib.Path("data"))


def data(words: Sequence[str]) -> int:
    """Downloads a known corpus, writes the built-in one, or tokenizes one."""
    if words[:1] == ["prepare"]:
        return prepare(words[1:])
    return _data(words)


@command
def _data(args: Data) -> int:
    has_name = f"{args.action} takes no name, got {args.name!r}; a folder is given by --out"
    has_none = "fetch needs the name of a corpus; `jaxformer data list` shows them"
    refuse((args.name and args.action != "fetch", has_name), (not args.name and args.action == "fetch", has_none))
    if args.action == "grammar":
        return _write_grammar(args.out)
    from jaxformer.data import fetch

    if args.action == "list":
        for name, corpus in fetch.CATALOG.items():
            print(f"{name:12} {corpus.about}")
        return 0
    for path in fetch.fetch(args.name, args.out, say=print):
        print(path)
    return 0


def _write_grammar(out: pathlib.Path) -> int:
    """Writes the built-in corpus, without overwriting the user's own texts, whose names may be the same."""
    from jaxformer import demo

    parts = demo.splits()
    pairs = {name: getattr(parts, name) for name in ("train", "validation", "seen", "unseen")}
    forms = {"en": "{0.english}\n".format, "fr": "{0.french}\n".format, "tags.tsv": demo.tagged}
    texts = {out / f"{name}.{end}": "".join(map(form, of)) for end, form in forms.items() for name, of in pairs.items()}
    for path, text in texts.items():
        is_other = path.exists() and path.read_bytes() != text.encode()
        refuse((is_other, f"{path} exists and holds another text; name another folder with --out"))
    for path, text in texts.items():
        write_text(path, text)
    for name, of in pairs.items():
        print(f"{out / name}.en, .fr, .tags.tsv: {len(of):,} pairs")
    return 0


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
    out: OutputFolder = option("The folder of tokens, which a training names as --data.cache.", REQUIRED)
    data_dir: str | None = option("The folder of the corpora; default: the working directory, then $JAXFORMER_DATA.")
    workers: Positive | None = option("The number of processes that tokenize; default: that of the cores.")
    part: Annotated[str, Word("I/N")] = option("Tokenize only part I of N, from 1.", "1/1")

    @classmethod
    def command(cls) -> str:
        """Returns the words of the command."""
        return "data prepare"


@command
def prepare(args: Prepare, settings: list[str]) -> int:
    """Prepares; returns 0 if the corpus or the part is complete."""
    part, parts = _part(args.part)
    from jaxformer.cli.arguments import resolved

    config = resolved(args.config, [*located(args.data_dir, settings), "--data.cache", str(args.out)])
    from jaxformer import hardware
    from jaxformer.data.units import Share
    from jaxformer.tasks.translation import TranslationConfig
    from jaxformer.tasks.translation import task as translation
    from jaxformer.tasks.translation.corpora import Mixture
    from jaxformer.training.progress import Count

    other = f"prepare is for translation; the data of {config.task} are prepared by `jaxformer train`"
    refuse((not isinstance(config, TranslationConfig), other))
    assert isinstance(config, TranslationConfig)
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
    part, parts = map(int, match.groups() if match else (0, 0))
    refuse((not 1 <= part <= parts, f"--part must be I/N, such as 3/8, with I from 1 to N, got {text!r}"))
    return part, parts
