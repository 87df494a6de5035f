"""Longer sentence pairs, made by joining 2 to 5 pairs of a corpus of short ones."""

from __future__ import annotations

import itertools
import pathlib
import random
from collections.abc import Sequence

from jaxformer import demo
from jaxformer.data.pairs import Parallel, read_parallel
from jaxformer.files import write_text

SIZES = (2, 3, 4, 5)
"""The numbers of pairs that are joined."""


def join(pairs: Parallel, sizes: Sequence[int]) -> Parallel:
    """Joins the first ``sizes[0]`` pairs into one, the next ``sizes[1]`` into another, and so on.

    >>> join(Parallel(("a", "b", "c"), ("A", "B", "C")), [1, 2])
    Parallel(source=('a', 'b c'), target=('A', 'B C'), empty=(), overlong=())

    Raises:
      ValueError: there are fewer pairs.
    """
    if sum(sizes) > len(pairs):
        raise ValueError(f"sizes must sum to at most {len(pairs)}, the number of pairs, got {sum(sizes)}")
    ends = list(itertools.accumulate(sizes, initial=0))
    source, target = (
        tuple(" ".join(side[start:end]) for start, end in itertools.pairwise(ends))
        for side in (pairs.source, pairs.target)
    )
    return Parallel(source, target)


def with_joined(pairs: Parallel, *, seed: int) -> Parallel:
    """Returns every pair, and after them every pair once more, in random order and joined by 2 to 5."""
    pick = random.Random(seed)  # noqa: S311 - a corpus, not a secret
    order = list(range(len(pairs)))
    pick.shuffle(order)
    shuffled = Parallel(tuple(pairs.source[i] for i in order), tuple(pairs.target[i] for i in order))
    sizes: list[int] = []
    while sum(sizes) < len(pairs):
        sizes.append(min(pick.choice(SIZES), len(pairs) - sum(sizes)))
    joined = join(shuffled, sizes)
    return Parallel(pairs.source + joined.source, pairs.target + joined.target)


def by_size(pairs: Parallel, number: int) -> tuple[Parallel, list[int]]:
    """Returns the first `number` pairs as they are, then joined by 2, by 3, ..., and how many each row joins.

    All sizes hold the same sentences, so a difference between them is one of length. A remainder is left out.
    """
    parts, sizes = [], []
    for size in (1, *SIZES):
        count = min(number, len(pairs)) // size
        parts.append(join(pairs, [size] * count))
        sizes += [size] * count
    source, target = (tuple(text for part in parts for text in getattr(part, side)) for side in ("source", "target"))
    return Parallel(source, target), sizes


def write(
    out: pathlib.Path, train: Parallel, validation: Parallel, test: Parallel, *, number: int, seed: int = 0
) -> list[int]:
    """Writes ``train.source``, ``train.target`` and so on, all with joined pairs.

    Returns how many pairs each row of the test joins: see `by_size`.

    Args:
      number: pairs of validation and of test to use.
    """
    few = Parallel(validation.source[:number], validation.target[:number])
    joined, sizes = by_size(test, number)
    for name, pairs in (
        ("train", with_joined(train, seed=seed)),
        ("validation", with_joined(few, seed=seed)),
        ("test", joined),
    ):
        for side, texts in (("source", pairs.source), ("target", pairs.target)):
            write_text(out / f"{name}.{side}", "".join(f"{text}\n" for text in texts))
    return sizes


def write_multi30k(directory: pathlib.Path, out: pathlib.Path, *, number: int) -> list[int]:
    """Writes Multi30k en-de: see `write`.

    Args:
      directory: the folder that holds ``multi30k/train.en`` and so on.

    Raises:
      DataError: a file is missing or malformed.
    """
    parts = ("train", "val", "test_2016")
    read = lambda part: read_parallel(*(directory / "multi30k" / f"{part}.{side}" for side in ("en", "de")))
    return write(out, *map(read, parts), number=number)


def write_grammar(out: pathlib.Path, *, train: int, number: int) -> list[int]:
    """Writes the built-in grammar's pairs, `train` of them for training: see `write`."""
    splits = demo.splits()
    parts = splits.train[:train], splits.validation, splits.seen
    return write(
        out, *(Parallel(*zip(*((x.english, x.french) for x in part), strict=True)) for part in parts), number=number
    )
