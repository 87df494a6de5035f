"""Measures how a corpus of any size is read and tokenized: seconds, lines a second, memory, start with a warm cache.

python -m benchmarks.data_preparation --data-dir data --pairs 100000 1000000 --out results.json
python -m benchmarks.data_preparation --data-dir data --pairs 5000000 --folder corpora --only-make  # the corpus alone

Corpora are made from Tatoeba (data/tatoeba/eng-fra.tsv) with a seed: each pair joins one to eight random pairs. Each
measurement is a new process, whose memory is sampled: that of files that are mapped does not count, and that of imports
is subtracted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from benchmarks import command
from experiments.command import count
from jaxformer.data.pairs import read_table
from jaxformer.files import replacing

SEED = 0
CHILD = 18_000_000
"""The memory of a process that has imported what tokenizes, without mapped files."""

JOINED = 8
"""The largest number of pairs of Tatoeba that are joined."""


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("data_preparation", __doc__)
    parser.add_argument("--data-dir", type=pathlib.Path, required=True, help="the folder that holds tatoeba")
    parser.add_argument("--pairs", type=count, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--workers", type=count, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=count, default=1, help="measurements of each kind; the median counts")
    parser.add_argument("--vocab-size", type=count, default=8000)
    parser.add_argument("--sentences", type=count, default=50_000, help="sentences that the vocabulary is learned from")
    parser.add_argument("--folder", type=pathlib.Path, help="where corpora are made and kept; by default nowhere")
    parser.add_argument("--only-make", action="store_true", help="make the corpora, and measure nothing")
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Makes each corpus, measures it, and writes the results after each."""
    results: dict[str, object] = {"vocabulary": {"size": args.vocab_size, "sentences": args.sentences}}
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or pathlib.Path(temporary)
        for number in args.pairs:
            began = time.perf_counter()
            paths = make_pairs(args.data_dir, folder, number)
            size = sum(path.stat().st_size for path in paths)
            print(f"{number:,} pairs, {size / 1e6:,.0f} MB, made in {time.perf_counter() - began:.0f} s", flush=True)
            if not args.only_make:
                results[f"{number} pairs"] = {"bytes": size, **measure(args, paths, number)}
                command.write(args.out, results)


def make_pairs(data: pathlib.Path, folder: pathlib.Path, number: int) -> list[pathlib.Path]:
    """Returns the files of a number of pairs, which are made unless they are there."""
    paths = [folder / f"pairs-{number}.{side}" for side in ("en", "fr")]
    if not all(path.exists() for path in paths):
        pairs, draw = read_table(data / "tatoeba" / "eng-fra.tsv"), random.Random(SEED)
        sides = pairs.source, pairs.target
        with contextlib.ExitStack() as stack:
            temporary = [stack.enter_context(replacing(path)) for path in paths]
            files = [stack.enter_context(path.open("w", encoding="utf-8")) for path in temporary]
            for _ in range(number):
                rows = [draw.randrange(len(pairs)) for _ in range(draw.randint(1, JOINED))]
                for file, side in zip(files, sides, strict=True):
                    file.write(" ".join(side[row] for row in rows) + "\n")
    return paths


def measure(args: argparse.Namespace, paths: list[pathlib.Path], number: int) -> dict[str, object]:
    """Returns the measurements of a corpus."""
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory(dir=paths[0].parent) as temporary:
        work = pathlib.Path(temporary)
        base = {"files": [str(path) for path in paths], "sentences": args.sentences, "vocab_size": args.vocab_size}
        base |= {"tokenizer": str(work / "tokenizer")}
        found["vocabulary"] = show("vocabulary", child({**base, "do": "vocabulary"}), args.sentences)
        found["reading"] = show("reading", child({**base, "do": "read"}), 2 * number)
        kinds = {"bare sentencepiece": {"do": "bare"}}
        kinds |= {f"{n} workers": {"do": "tokenize", "workers": n} for n in args.workers}
        times: dict[str, list[dict[str, float]]] = {name: [] for name in kinds}
        for turn in command.rounds(args.rounds):
            for name, options in kinds.items():
                cache = work / f"{name.partition(' ')[0]}-{turn}"
                times[name].append(child({**base, **options, "cache": str(cache)}))
        for name, each in times.items():
            middle = sorted(each, key=lambda one: one["seconds"])[len(each) // 2]
            lines = min(2 * number, 100_000) if kinds[name]["do"] == "bare" else 2 * number
            found[name] = show(name, middle, lines) | {"all seconds": [one["seconds"] for one in each]}
        warm = child({**base, "do": "warm", "cache": str(work / f"{args.workers[0]}-0")})
        found["warm start"] = show("warm start", warm, 2 * number)
        files = (work / f"{args.workers[0]}-0").rglob("*")
        found["bytes of tokens"] = sum(path.stat().st_size for path in files if path.is_file())
    return found


def show(name: str, found: dict[str, float], lines: int) -> dict[str, object]:
    """Prints and returns a measurement, with the lines a second of processor time."""
    rate = lines / found["processor seconds"]
    more = f", {found['batches a second']:,.0f} batches/s" if "batches a second" in found else ""
    print(
        f"  {name:20} {found['seconds']:8.1f} s, {found['processor seconds']:8.1f} s of processors, "
        f"{rate:9,.0f} lines/s and core, {found['memory'] / 1e6:6,.0f} MB above imports{more}",
        flush=True,
    )
    return {**found, "lines a second and core": rate}


def child(options: dict[str, object]) -> dict[str, float]:
    """Runs one measurement in a new process."""
    code = [sys.executable, "-c", f"from benchmarks import data_preparation as b; b.in_child({json.dumps(options)!r})"]
    return json.loads(subprocess.run(code, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])


def in_child(text: str) -> None:
    """Does one measurement and prints it: the work itself, without imports."""
    from jaxformer.data.batch_plan import make_batch_plan
    from jaxformer.data.pairs import PairFiles
    from jaxformer.data.pipeline import PlannedPairs, prepare, prepare_tokenizer
    from jaxformer.data.reading import read_split
    from jaxformer.data.units import Share
    from jaxformer.tokenizers.loading import load_tokenizer

    options = json.loads(text)
    source, target = map(pathlib.Path, options["files"])
    tokenizer: Any = options["do"] not in ("vocabulary", "read") and load_tokenizer(options["tokenizer"])
    files = PairFiles(((source, target),))
    more: dict[str, float] = {}
    if options["do"] == "tokenize":
        corpus, *_ = read_split(
            files, held_out=1000, parts=2, cache=pathlib.Path(options["cache"])
        )  # measured elsewhere
        corpus.fingerprint  # noqa: B018
    with sampled() as found:
        if options["do"] == "bare":
            lines = [line for side in (source, target) for line in first_lines(side, 50_000)]
            found["began"], found["processor"] = time.perf_counter(), time.process_time()
            for start in range(0, len(lines), 1024):
                tokenizer._processor.encode(lines[start : start + 1024])
        elif options["do"] == "tokenize":
            prepare(corpus, tokenizer, options["cache"], share=Share(workers=options["workers"]))
        else:
            kept = pathlib.Path(options["cache"]) if "cache" in options else None
            corpus, *held_out = read_split(files, held_out=1000, parts=2, cache=kept)
            assert [part.fingerprint for part in (corpus, *held_out)]
        if options["do"] == "vocabulary":
            sizes = {"vocab_size": options["vocab_size"], "num_sentences": options["sentences"]}
            prepare_tokenizer(corpus, None, kind="unigram", **sizes).save(options["tokenizer"])
        if options["do"] == "warm":
            tokens = prepare(corpus, tokenizer, options["cache"])
            planned = PlannedPairs(tokens, make_batch_plan(*tokens.lengths()))
            planned.batch(0)
    if options["do"] == "warm":
        began = time.perf_counter()
        for step in range(1, 401):
            planned.batch(step)
        more["batches a second"] = 400 / (time.perf_counter() - began)
    print(json.dumps({**found, **more}))


def first_lines(path: pathlib.Path, number: int) -> Iterator[str]:
    with path.open(encoding="utf-8") as file:
        yield from (line.rstrip("\n") for line, _ in zip(file, range(number), strict=False))


@contextlib.contextmanager
def sampled() -> Iterator[dict[str, float]]:
    """Yields a dictionary that holds the seconds, those of processors, and the memory of a block when it has ended.

    The memory is the largest sum of this process and its children, without mapped files, above that at the beginning;
    children are counted from `CHILD`, which their imports take.
    """
    done, found = threading.Event(), {"began": time.perf_counter(), "processor": time.process_time()}
    before, most = anonymous_memory(), [0]

    def watch() -> None:
        while not done.wait(0.02):
            most[0] = max(most[0], anonymous_memory())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        yield found
    finally:
        done.set()
        thread.join()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    ours = time.process_time() - found.pop("processor")
    theirs = after.ru_utime + after.ru_stime - children.ru_utime - children.ru_stime
    found |= {"seconds": time.perf_counter() - found.pop("began"), "processor seconds": ours + theirs}
    found["memory"] = max(0, most[0] - before)


def anonymous_memory() -> int:
    """Returns the bytes of memory of this process and its children, without mapped files."""
    here = os.getpid()
    total = 0
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            about = dict(line.split(":", 1) for line in (path / "status").read_text().splitlines())
            if int(path.name) == here:
                total += int(about["RssAnon"].split()[0]) * 1024
            elif int(about["PPid"]) == here:
                total += max(0, int(about["RssAnon"].split()[0]) * 1024 - CHILD)
    return total


if __name__ == "__main__":
    command.script(main)
