"""The commands that list or write what comes with the library, ``configs`` and ``data``, but for `prepare`."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Literal

from jaxformer.cli.command import Name, Options, OutputFolder, command, option, word
from jaxformer.errors import ConfigError
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
        from jaxformer.cli import prepare

        return prepare.prepare(words[1:])
    return _data(words)


@command
def _data(args: Data) -> int:
    if args.name and args.action != "fetch":
        raise ConfigError(f"{args.action} takes no name, got {args.name!r}; a folder is given by --out")
    if args.action == "grammar":
        return _write_grammar(args.out)
    from jaxformer.data import fetch

    if args.action == "list":
        for name, corpus in fetch.CATALOG.items():
            print(f"{name:12} {corpus.about}")
        return 0
    if not args.name:
        raise ConfigError("fetch needs the name of a corpus; `jaxformer data list` shows them")
    for path in fetch.fetch(args.name, args.out, say=print):
        print(path)
    return 0


def _write_grammar(out: pathlib.Path) -> int:
    """Writes the built-in corpus, without overwriting the user's own texts, whose names may be the same."""
    from jaxformer import demo

    parts = demo.splits()
    pairs = {name: getattr(parts, name) for name in ("train", "validation", "seen", "unseen")}
    texts = {out / f"{name}.en": "".join(f"{pair.english}\n" for pair in of) for name, of in pairs.items()}
    texts |= {out / f"{name}.fr": "".join(f"{pair.french}\n" for pair in of) for name, of in pairs.items()}
    texts |= {out / f"{name}.tags.tsv": "".join(map(demo.tagged, of)) for name, of in pairs.items()}
    for path, text in texts.items():
        if path.exists() and path.read_bytes() != text.encode():
            raise ConfigError(f"{path} exists and holds another text; name another folder with --out")
    for path, text in texts.items():
        write_text(path, text)
    for name, of in pairs.items():
        print(f"{out / name}.en, .fr, .tags.tsv: {len(of):,} pairs")
    return 0
