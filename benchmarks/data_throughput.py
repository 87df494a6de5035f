"""Measures the data pipeline in pairs and target tokens per second.

python -m benchmarks.data_throughput                       # the built-in corpus
python -m benchmarks.data_throughput --config multi30k:en_de --data-dir /corpora
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import tempfile
import time
from collections.abc import Callable

from benchmarks import command
from experiments.command import count
from jaxformer.data.batch_plan import make_batch_plan
from jaxformer.data.packing import PackedTexts
from jaxformer.data.pipeline import PlannedPairs, batches, prepare
from jaxformer.errors import ConfigError
from jaxformer.tasks.registry import resolve
from jaxformer.tasks.translation import TranslationConfig
from jaxformer.tasks.translation.corpora import load_corpora
from jaxformer.tokenizers.subwords import SubwordTokenizer

PACKED = 512, 128
"""The length and the number of rows of a packed batch."""


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("data_throughput", __doc__)
    parser.add_argument("--config", default="demo")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--batches", type=count, default=500)
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Measures and prints everything.

    Raises:
      ConfigError: the configuration is of another task, or its tokenizer is not trained here.
    """
    config = resolve(args.config)
    if not isinstance(config, TranslationConfig):
        raise ConfigError(f"--config must be of the task translation, got {args.config}")
    data = dataclasses.replace(config.data, directory=args.data_dir)
    if data.tokenizer == "pretrained":
        raise ConfigError(f"--config must have a tokenizer that is trained here, got {args.config}")
    corpus = load_corpora(data).train
    tokenizer = SubwordTokenizer.train(corpus.lines(), vocab_size=data.vocab_size, kind=data.tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("tokenized and saved", "read again"):
            began = time.perf_counter()
            tokens = prepare(corpus, tokenizer, folder)
            print(f"{len(corpus):,} pairs {name} in {time.perf_counter() - began:.2f} s")
        plan = make_batch_plan(
            *tokens.lengths(),
            tokens_per_batch=data.tokens_per_batch,
            num_shapes=data.num_shapes,
            max_length=data.max_length,
        )
        pairs = target = 0
        began = time.perf_counter()
        for batch in itertools.islice(batches(PlannedPairs(tokens, plan).batch), args.batches):
            assert batch.source.valid is not None
            assert batch.target.valid is not None
            pairs += int(batch.source.valid[:, 0].sum())
            target += int(batch.target.valid.sum())
        seconds = time.perf_counter() - began
        alone = milliseconds(PlannedPairs(tokens, plan).batch, args.batches)
        packed = PackedTexts(tokens.source[0], tokenizer.special, *PACKED, seed=0)
        packing = milliseconds(packed.batch, min(args.batches, packed.steps_per_epoch))
    print(
        f"a batch of pairs takes {alone:.2f} ms alone, one of {PACKED[1]} packed rows of {PACKED[0]} {packing:.2f} ms"
    )
    print(f"{len(plan.shapes)} shapes, {plan.fill(*tokens.lengths()):.0%} full")
    print(f"{pairs / seconds:,.0f} pairs/s, {target / seconds:,.0f} target tokens/s")
    results = {"milliseconds of a batch": alone, "milliseconds of a packed batch": packing}
    command.write(args.out, results | {"pairs a second": pairs / seconds, "target tokens a second": target / seconds})


def milliseconds(make: Callable[[int], object], count: int) -> float:
    """Returns the mean time of making the first `count` batches, after one that is not counted."""
    make(0)
    began = time.perf_counter()
    for number in range(count):
        make(number)
    return (time.perf_counter() - began) / count * 1e3


if __name__ == "__main__":
    command.script(main)
