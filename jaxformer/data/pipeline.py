"""From sentences to a stream of batches: tokenized once, kept as memory-mapped arrays, gathered batch by batch."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import logging
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Literal

import grain
import numpy as np

from jaxformer.data.batch import Batch
from jaxformer.data.batch_plan import BatchPlan
from jaxformer.data.sources import Parallel
from jaxformer.data.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

Rows = Callable[[int], np.ndarray]
"""From the number of rows of a planned batch to the indices, in order, of those to make; beyond it they are empty."""


@dataclasses.dataclass(frozen=True)
class Ragged:
    """Token sequences end to end: sequence i is ``tokens[offsets[i]:offsets[i + 1]]``."""

    tokens: np.ndarray
    offsets: np.ndarray

    def __getitem__(self, i: int) -> np.ndarray:
        return self.tokens[self.offsets[i] : self.offsets[i + 1]]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sequence."""
        return np.diff(self.offsets)


@dataclasses.dataclass(frozen=True)
class Tokens:
    """A tokenized corpus: for each of `num_segmentations` segmentations, the source and target of every pair."""

    source: tuple[Ragged, ...]
    target: tuple[Ragged, ...]

    def __len__(self) -> int:
        return len(self.source[0])

    @property
    def num_segmentations(self) -> int:
        """Segmentations of each sentence."""
        return len(self.source)

    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of each source and target, of the longest segmentation: a batch shape must hold any of them."""
        source, target = ([ragged.lengths for ragged in side] for side in (self.source, self.target))
        return np.max(source, axis=0), np.max(target, axis=0)


def prepare_tokenizer(
    corpus: Parallel, cache: str | os.PathLike[str], *, vocab_size: int, kind: Literal["unigram", "bpe"]
) -> Tokenizer:
    """A tokenizer trained on both sides of the corpus, read from `cache` where an earlier call left it undamaged.

    Raises:
      ValueError: the corpus cannot fill the vocabulary.
    """
    version = importlib.metadata.version("sentencepiece")
    path = pathlib.Path(cache) / f"{corpus.fingerprint}-{kind}-{vocab_size}-{version}.model"
    if path.exists():
        try:
            return Tokenizer.load(path)
        except ValueError as error:
            logger.warning("%s; training it anew", error)
    path.parent.mkdir(parents=True, exist_ok=True)
    Tokenizer.train((*corpus.source, *corpus.target), vocab_size=vocab_size, kind=kind).save(path)
    return Tokenizer.load(path)


def prepare(
    corpus: Parallel,
    tokenizer: Tokenizer,
    cache: str | os.PathLike[str],
    *,
    num_segmentations: int = 1,
    alpha: float = 0.2,
    seed: int = 0,
) -> Tokens:
    """The corpus as tokens, read from `cache` where an earlier call left them.

    The folder's name is a hash of the text, the tokenizer and the options.  It appears by one rename when it is
    whole, so a process that dies here, or another that prepares the same, does no harm.  One that is damaged all the
    same is made anew, with a warning.

    Args:
      num_segmentations: segmentations a sentence; the first is the best one, the others are sampled.
    """
    key = f"{corpus.fingerprint}-{tokenizer.fingerprint}" + (
        f"-{num_segmentations}-{alpha}-{seed}" if num_segmentations > 1 else ""
    )
    folder = pathlib.Path(cache) / key
    if folder.exists():
        try:
            return _read(folder, {"pairs": len(corpus), "num_segmentations": num_segmentations})
        except (FileNotFoundError, EOFError, ValueError) as error:
            logger.warning("%s is damaged (%s); making it anew", folder, error)
            _remove(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = pathlib.Path(tempfile.mkdtemp(prefix=f".{key}.", dir=folder.parent))
    for side, text in (("source", corpus.source), ("target", corpus.target)):
        for variant in range(num_segmentations):
            one = variant * 2 + (side == "target") + seed * 1009
            ids = tokenizer.sample(text, seed=one, alpha=alpha) if variant else tokenizer.encode(text)
            dtype = np.uint16 if tokenizer.vocab_size <= 2**16 else np.int32
            flat = np.concatenate(ids) if ids else np.zeros(0)
            np.save(temporary / f"{side}-{variant}.npy", flat.astype(dtype))
            offsets = np.concatenate([[0], np.cumsum([len(i) for i in ids])]).astype(np.int64)
            np.save(temporary / f"{side}-{variant}-offsets.npy", offsets)
    about = {"pairs": len(corpus), "num_segmentations": num_segmentations}
    (temporary / "about.json").write_text(json.dumps(about))
    try:
        temporary.rename(folder)
    except OSError:  # another process was first; its arrays are the same
        shutil.rmtree(temporary)
        if not folder.exists():
            raise
    return _read(folder, about)


def _read(folder: pathlib.Path, about: dict[str, int]) -> Tokens:
    """The arrays of a folder, as long as `about` and they themselves say.

    Raises:
      FileNotFoundError, EOFError, ValueError: it is damaged.
    """
    if (found := json.loads((folder / "about.json").read_text())) != about:
        raise ValueError(f"about.json says {found}, expected {about}")

    def load(side: str, variant: int) -> Ragged:
        tokens = np.load(folder / f"{side}-{variant}.npy", mmap_mode="r")
        offsets = np.load(folder / f"{side}-{variant}-offsets.npy")
        if len(offsets) != about["pairs"] + 1 or offsets[-1] != len(tokens):
            raise ValueError(f"{side}-{variant}.npy has {len(tokens)} tokens, which are not those of its offsets")
        return Ragged(tokens, offsets)

    source, target = (tuple(load(side, i) for i in range(about["num_segmentations"])) for side in ("source", "target"))
    return Tokens(source, target)


def _remove(folder: pathlib.Path) -> None:
    """By a rename first, so that no other process meets half of it, or finds its name taken."""
    aside = pathlib.Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    with contextlib.suppress(FileNotFoundError):  # another process was first
        folder.rename(aside)
    shutil.rmtree(aside)


def make_batch(tokens: Tokens, plan: BatchPlan, step: int, *, rows: Rows | None = None) -> Batch:
    """Batch number `step` of the plan: a pure function of its arguments.

    With several segmentations, each pair's is drawn afresh in every epoch.

    Args:
      rows: those to make; all by default.
    """
    shape, pairs, epoch = plan.batch(step)
    if tokens.num_segmentations == 1:
        chosen = np.zeros((2, len(pairs)), np.int64)
    else:
        random = np.random.default_rng((plan.seed, epoch, step, 2))
        chosen = random.integers(tokens.num_segmentations, size=(2, len(pairs)))
    wanted = rows(shape[0]) if rows else np.arange(shape[0])
    there = wanted[wanted < len(pairs)]
    chosen, pairs = chosen[:, there], pairs[there]
    sources = [tokens.source[v][i] for v, i in zip(chosen[0], pairs, strict=True)]
    targets = [tokens.target[v][i] for v, i in zip(chosen[1], pairs, strict=True)]
    return Batch.from_tokens(sources, targets, (len(wanted), *shape[1:]))


class _Steps(grain.sources.RandomAccessDataSource):
    """Batch numbers ``start, start + 1, ...`` as a data source: Grain reads any of them at random."""

    def __init__(self, make: Callable[[int], Batch], start: int, stop: int):
        self.make, self.start, self.stop = make, start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, index: int) -> Batch:
        return self.make(self.start + index)

    def __repr__(self) -> str:
        return f"batches {self.start} to {self.stop}"


def batches(
    tokens: Tokens,
    plan: BatchPlan,
    *,
    start: int = 0,
    stop: int | None = None,
    rows: Rows | None = None,
    read_ahead: int = 16,
) -> Iterator[Batch]:
    """Batches ``start, start + 1, ...`` of the plan, made ahead of time by Grain's threads; endless without `stop`."""
    stop = 2**62 if stop is None else stop
    source = _Steps(lambda step: make_batch(tokens, plan, step, rows=rows), start, stop)
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=read_ahead)
    return iter(grain.MapDataset.source(source).to_iter_dataset(options))
