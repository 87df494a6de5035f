"""``jaxformer translate``."""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Iterator, Sequence

from jaxformer.cli.paths import local_path, sentence

EXAMPLES = """examples:
  jaxformer translate runs/demo "The old man does not see the white house."
  jaxformer translate runs/en-de --file test.en --out test.de
  jaxformer translate runs/en-de --n-best 3 "A dog runs."
  echo "A dog runs." | jaxformer translate runs/en-de         line by line, as they come
"""


def main(arguments: Sequence[str]) -> int:
    """Translates arguments, else a file, else standard input."""
    from jaxformer.cli.evaluate import add_run_options, load

    parser = argparse.ArgumentParser(
        prog="jaxformer translate",
        description="Translates sentences: arguments, a file, or standard input line by line.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run_options(parser)
    parser.add_argument("sentences", nargs="*", type=sentence, metavar="SENTENCE", help="what to translate")
    parser.add_argument("--file", type=pathlib.Path, help="a file of sentences, one a line")
    parser.add_argument("--out", type=local_path, help="write translations here instead of printing them")
    parser.add_argument("--n-best", type=int, default=1, help="print so many candidates, score and text, by tabs")
    known = parser.parse_intermixed_args(arguments)  # options may stand between the run and the sentences
    if known.sentences and known.file:
        parser.error("give sentences or --file, not both")
    from jaxformer.data.sources import read_lines
    from jaxformer.errors import DataError

    _, _, translator = load(known)

    def lines(sentences: Sequence[str], first: int = 1) -> list[str]:
        if known.n_best == 1:
            return translator.translate(sentences, first=first)
        found = translator.candidates(sentences, n_best=known.n_best, first=first)
        return [f"{c.score:.4f}\t{c.text}" for candidates in found for c in candidates]

    def from_standard_input() -> Iterator[str]:
        # Bytes, because how strict text from standard input is depends on the locale.
        for number, line in enumerate(sys.stdin.buffer, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                byte = error.object[error.start]
                raise DataError(f"standard input, line {number}: not UTF-8 (byte 0x{byte:02x})") from error
            yield from lines([text], number)

    given = known.sentences or (read_lines(known.file) if known.file else None)
    translated = from_standard_input() if given is None else lines(given)
    if known.out:
        from jaxformer.tasks.rundir import write_text

        write_text(known.out, "".join(f"{line}\n" for line in translated))
        return 0
    for line in translated:
        print(line, flush=True)
    return 0
