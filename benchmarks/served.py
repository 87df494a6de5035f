"""Compares the translations of a run with those of its folders for CTranslate2, in float32 and int8; times nothing.

With the same search and the same limit of lengths, texts in float32 should be equal but for near ties, whose scores
differ by less than 1e-4, and texts that reach the limit; both are counted. With a reference, BLEU says what int8
changes.

    python -m benchmarks.served runs/en-de --source test_2016.en --reference test_2016.de
    python -m benchmarks.served runs/en-de --source test.en --sentences 200 --out benchmarks/results/served.json
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

import jaxformer
from benchmarks import command
from benchmarks.decode import processor
from experiments.command import count
from jaxformer.data.lines import read_lines
from jaxformer.evaluation.scores import bleu
from jaxformer.interop.ctranslate2 import Quantization
from jaxformer.tasks import pretrained
from jaxformer.tasks.translation import Translator

TIE = 1e-4
TYPES: dict[str, Quantization] = {"float32": "", "int8": "int8"}


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("served", __doc__)
    parser.add_argument("run", type=pathlib.Path, help="a translator")
    parser.add_argument("--source", type=pathlib.Path, required=True, help="sentences, one a line")
    parser.add_argument("--reference", type=pathlib.Path, help="their translations, one a line, for BLEU")
    parser.add_argument("--sentences", type=count, help="the number of sentences; by default all")
    about = "the most tokens of a translation, instead of the run's limits, which CTranslate2 lacks (default 100)"
    parser.add_argument("--longest", type=count, default=100, help=about)
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Prints a line for each type, and writes the results."""
    texts = read_lines(args.source)[: args.sentences]
    references = [(line,) for line in read_lines(args.reference)[: len(texts)]] if args.reference else None
    translator = jaxformer.load(args.run, decode={"max_extra": args.longest, "max_length": args.longest})
    own = [best for best, *_ in translator.candidates(texts)]
    results: dict[str, Any] = {"processor": processor(), "ctranslate2": importlib.metadata.version("ctranslate2")}
    results |= {"sentences": len(texts)}
    if references:
        results["bleu"] = bleu([one.text for one in own], references).value
        print(f"jaxformer: BLEU {results['bleu']:.2f} of {len(texts):,} sentences")
    for kind, quantization in TYPES.items():
        with tempfile.TemporaryDirectory() as folder:
            pretrained.export_ctranslate2(args.run, pathlib.Path(folder) / "served", quantization=quantization)
            theirs = translated(pathlib.Path(folder) / "served", kind, translator, texts, args.longest)
        results[kind] = compared(own, theirs, args.longest)
        line = ", ".join(f"{value} {name}" for name, value in results[kind].items())
        if references:
            found = bleu([translator.tokenizer.decode(ids) for ids, _ in theirs], references).value
            results[kind]["bleu"] = found
            line += f", BLEU {found:.2f}"
        print(f"CTranslate2 {kind}: {line}", flush=True)
        command.write(args.out, results)


def translated(
    folder: pathlib.Path, kind: str, translator: Translator, texts: Sequence[str], longest: int
) -> list[tuple[list[int], float]]:
    """Returns the tokens and the score of each translation by the written folder."""
    import ctranslate2

    read = lambda name: json.loads((folder / name).read_text(encoding="utf-8"))
    search, pieces = read("search.json"), read("shared_vocabulary.json")
    ids, end = {piece: token for token, piece in enumerate(pieces)}, [translator.tokenizer.special.eos]
    model = ctranslate2.Translator(str(folder), device="cpu", compute_type=kind)
    sources = [[pieces[token] for token in (*tokens, *end)] for tokens in translator.tokenizer.encode(texts)]
    prefix = [search["target_prefix"]] * len(texts) if search["target_prefix"] else None
    options = {"target_prefix": prefix, **search["translate_batch"], "max_decoding_length": longest}
    found = model.translate_batch(sources, max_batch_size=64, return_scores=True, **options)
    return [([ids[piece] for piece in one.hypotheses[0]], one.scores[0]) for one in found]


def compared(own: Sequence[Any], theirs: Sequence[tuple[list[int], float]], longest: int) -> dict[str, Any]:
    """Returns the numbers of texts that are equal, near ties, at the limit and different, and what scores differ by."""
    result: dict[str, Any] = {"equal": 0, "near ties": 0, "at the limit": 0, "different": 0}
    largest = 0.0
    for one, (tokens, score) in zip(own, theirs, strict=True):
        if [*one.tokens] == tokens:
            result["equal"] += 1
            largest = max(largest, abs(one.score - score))
        elif len(tokens) >= longest:
            result["at the limit"] += 1
        else:
            result["near ties" if abs(one.score - score) < TIE else "different"] += 1
    return result | {"largest difference of scores of equal texts": float(f"{largest:.2g}")}


if __name__ == "__main__":
    command.script(main)
