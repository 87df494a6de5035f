"""``jaxformer data``."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Sequence

from jaxformer.cli.paths import output_folder
from jaxformer.errors import ConfigError

EXAMPLES = """examples:
  jaxformer data list
  jaxformer data fetch multi30k --out data
  jaxformer data grammar --out data/grammar  # the built-in corpus: four parts, two aligned files each
"""


def main(arguments: Sequence[str]) -> int:
    """Downloads a known corpus, or writes the built-in one."""
    parser = argparse.ArgumentParser(
        prog="jaxformer data",
        usage="jaxformer data {list,fetch NAME,grammar} [--out DIR]",
        description="Downloads a known corpus and checks it, or writes the built-in one to files.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=("list", "fetch", "grammar"))
    parser.add_argument("name", nargs="?", help="the corpus to fetch")
    parser.add_argument("--out", type=output_folder, default=pathlib.Path("data"), help="the folder (default: data)")
    options = parser.parse_args(arguments)
    if options.name and options.action != "fetch":
        parser.error(f"{options.action} takes no name, got {options.name!r}; a folder is given by --out")
    if options.action == "grammar":
        return _write_grammar(options.out)
    from jaxformer.data import fetch

    if options.action == "list":
        for name, corpus in fetch.CATALOG.items():
            print(f"{name:12} {corpus.about}")
        return 0
    if not options.name:
        parser.error("fetch needs the name of a corpus; `jaxformer data list` shows them")
    for path in fetch.fetch(options.name, options.out, say=print):
        print(path)
    return 0


def _write_grammar(out: pathlib.Path) -> int:
    """Writes the built-in corpus, without overwriting the user's own texts, whose names may be the same.

    Raises:
      ConfigError: a file exists, and holds another text.
    """
    from jaxformer import demo
    from jaxformer.files import write_text

    parts = demo.splits()
    pairs = {name: getattr(parts, name) for name in ("train", "validation", "seen", "unseen")}
    texts = {out / f"{name}.en": "".join(f"{pair.english}\n" for pair in of) for name, of in pairs.items()}
    texts |= {out / f"{name}.fr": "".join(f"{pair.french}\n" for pair in of) for name, of in pairs.items()}
    for path, text in texts.items():
        if path.exists() and path.read_bytes() != text.encode():
            raise ConfigError(f"{path} exists and holds another text; name another folder with --out")
    for path, text in texts.items():
        write_text(path, text)
    for name, of in pairs.items():
        print(f"{out / name}.en, .fr: {len(of):,} pairs")
    return 0
