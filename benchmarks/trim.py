"""Compares a translator with the same one trimmed to a corpus: size, first translation, and the speed of a corpus.

The trimmed run is made and proven first, in a temporary folder. Each side runs in its own process, whole and trimmed in
turn: one that translates a sentence, from loading to the text, with compilation; and one that translates the sentences
again and again.

    python -m benchmarks.trim runs/nllb --corpus my.en my.fr --source my.en --to fra_Latn
    python -m benchmarks.trim runs/en-de --corpus test.en test.de --source test.en --out benchmarks/results/trim.json
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import tempfile
from typing import Any

from benchmarks import command
from benchmarks.decode import processor
from benchmarks.worker import Side
from experiments.command import count
from jaxformer.data.lines import read_lines
from jaxformer.tasks.trim import trim

SIDE = "benchmarks.sides.corpus_ours"


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("trim", __doc__)
    parser.add_argument("run", type=pathlib.Path, help="a translator")
    parser.add_argument("--corpus", type=pathlib.Path, nargs="+", required=True, help="texts of both languages")
    parser.add_argument("--source", type=pathlib.Path, required=True, help="sentences to translate, one a line")
    parser.add_argument("--sentences", type=count, default=200, help="the number of sentences (default 200)")
    parser.add_argument("--to", default="", help="the target language, of a translator of several")
    parser.add_argument("--beam", type=count, default=4, help="the size of the beam (default 4)")
    parser.add_argument("--rounds", type=count, default=3)
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Prints the proof and a line for each side, and writes the results."""
    lines = read_lines(args.source)[: args.sentences]
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        proof = trim(args.run, place / "trimmed", corpus=args.corpus, language=args.to, say=print)
        results: dict[str, Any] = {"processor": processor(), "beam": args.beam, "sentences": len(lines)}
        results["proof"] = dataclasses.asdict(proof)
        runs = {"whole": args.run.resolve(), "trimmed": place / "trimmed"}
        for name, number in (("first", 1), ("corpus", len(lines))):
            (place / name).write_text("\n".join(lines[:number]) + "\n", encoding="utf-8")
        spec = {"beam_size": args.beam, "batch_size": 64, "to": args.to}
        start = lambda name, part: Side(name, SIDE, spec | {"run": str(runs[name]), "source": str(place / part)})
        firsts = [(name, command.take_turns([start(name, "first")], 1, 1)) for name in (*runs, *reversed(runs))]
        sides = [start(name, "corpus") for name in runs]
        for (name, found), size in zip(command.take_turns(sides, args.rounds, 1).items(), proof.sizes, strict=True):
            first = min(row[name]["first"] for side, row in firsts if side == name)
            results[name] = {"bytes": size, "first": first, "fastest": found["fastest"], "memory": found["memory"]}
            print(
                f"{name}: {size / 1e6:,.1f} MB, first translation {first:.2f} s, {len(lines)} sentences "
                f"{found['fastest']:.2f} s, memory {found['memory'] / 1e9:.2f} GB",
                flush=True,
            )
        command.write(args.out, results)


if __name__ == "__main__":
    command.script(main)
