"""A stream of batches: sentence pairs are tokenized once; batches are gathered and prefetched."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import importlib.metadata
import itertools
import logging
import os
import pathlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Literal, TypeVar

import grain
import numpy as np

from jaxformer import locks
from jaxformer.data.batch import Batch, Rows
from jaxformer.data.batch_plan import BatchPlan, Planned
from jaxformer.data.pairs import Pairs
from jaxformer.data.permutation import permuted
from jaxformer.data.text import Text, Texts
from jaxformer.data.token_cache import Ragged, cached_sequences, kept_sequences
from jaxformer.data.units import ALONE, SIDES, UNIT, Share, Units
from jaxformer.digests import short_digest, unsealed
from jaxformer.errors import ConfigError
from jaxformer.files import replacing
from jaxformer.tokenizers import moses
from jaxformer.tokenizers.base import Tokenizer, cache_key, encode_texts
from jaxformer.tokenizers.characters import CharacterTokenizer
from jaxformer.tokenizers.normalization import TextNormalizer
from jaxformer.tokenizers.special_tokens import SpecialTokens
from jaxformer.tokenizers.subwords import SubwordTokenizer

logger = logging.getLogger(__name__)

B = TypeVar("B")

PLANNED = 4
"""The number of sampled segmentations per sentence that determine the maximum length of those drawn in each epoch. """

SMALL = 8 * UNIT
"""The number of pairs up to which a corpus is tokenized by this process alone, and not in units."""

TRIES = 8
"""The largest number of draws for a sentence whose segmentations do not fit its batch."""


@dataclasses.dataclass(frozen=True)
class Redrawn:
    """Segmentations that are drawn in each epoch, as pure functions of the seed, the epoch and the sentence."""

    tokenizer: SubwordTokenizer
    alpha: float
    seed: int

    def __call__(self, ids: np.ndarray, *, epoch: int, sentence: int, limit: int) -> np.ndarray:
        """Returns a segmentation of at most `limit` tokens of the sentence with these tokens.

        Longer ones are drawn again, so the results follow the sampler's distribution, given that they fit. If `TRIES`
        draws do not fit, the sentence keeps its tokens.
        """
        key = (self.seed << 64 | epoch) << 64 | sentence
        draw = random.Random(key).random  # noqa: S311 - data, not a secret
        for _ in range(TRIES):
            drawn = self.tokenizer.resample(ids, draw, alpha=self.alpha)
            if len(drawn) <= limit:
                return drawn
        return ids


@dataclasses.dataclass(frozen=True)
class TokenizedPairs:
    """A tokenized corpus: the source and target of every pair, in one or more segmentations; and its special tokens.

    With `redrawn`, batches draw new segmentations, and those stored here determine how long they may be.
    """

    source: tuple[Ragged, ...]
    target: tuple[Ragged, ...]
    special: SpecialTokens
    redrawn: Redrawn | None = None

    def __len__(self) -> int:
        return len(self.source[0])

    @property
    def num_segmentations(self) -> int:
        """The number of segmentations of each sentence."""
        return len(self.source)

    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the lengths of each source and target in the longest segmentation: a batch must hold any of them."""
        longest = lambda side: functools.reduce(np.maximum, (ragged.small_lengths for ragged in side))
        return longest(self.source), longest(self.target)


def prepare_tokenizer(
    text: Pairs | Text | Texts,
    cache: str | os.PathLike[str] | None,
    *,
    kind: Literal["unigram", "bpe", "characters"],
    vocab_size: int = 0,
    normalizer: TextNormalizer | None = None,
    languages: Sequence[str] = (),
    num_sentences: int | None = None,
    waiting: Callable[[str], None] = lambda holder: None,
) -> Tokenizer:
    """Trains a tokenizer on the lines of a text, or reads it from `cache` if an earlier call saved it.

    Of several processes with one cache, the first trains and the others wait; if it dies, the next one trains.

    The file ends with the fingerprint of the tokenizer, which is compared whenever it is read: a flipped bit in a score
    would make another vocabulary. A damaged file, or one without a fingerprint, as of earlier versions, is replaced,
    with a warning; a file that cannot be written also causes a warning.

    Args:
      vocab_size: the vocabulary size of a subword tokenizer; a character tokenizer's follows from the text.
      normalizer: the normalization of sentence pairs for a subword tokenizer; it is saved with the tokenizer.
      languages: the languages that get a token in a subword vocabulary; see `SubwordTokenizer.tags`.
      num_sentences: the largest number of sentences of pairs that a subword tokenizer is trained on. If there are more,
        a hash of the number of each chooses them; all by default.
      waiting: is called with the name of another process, again and again while that one trains the same tokenizer.

    Raises:
      ConfigError: the text cannot fill the vocabulary.
    """
    if kind == "characters":
        return CharacterTokenizer.train(text.lines())  # training is as fast as reading
    normalizer = normalizer or TextNormalizer()
    version = importlib.metadata.version("sentencepiece")
    if normalizer != TextNormalizer():
        version += f"-{short_digest([repr(normalizer), moses.version()])}"
    version += f"-{short_digest(f'{language} ' for language in languages)}" if languages else ""
    if isinstance(text, Pairs) and num_sentences is not None and num_sentences < text.num_lines:
        version += f"-{num_sentences}"
    options = {"vocab_size": vocab_size, "normalizer": normalizer, "languages": languages}

    def train() -> SubwordTokenizer:
        lines = _sentences(text, normalizer, num_sentences) if isinstance(text, Pairs) else text.lines()
        return SubwordTokenizer.train(lines, kind=kind, **options)

    if cache is None:
        return train()
    path = pathlib.Path(cache) / f"{text.fingerprint}-{kind}-{vocab_size}-{version}.model"
    if found := _cached_tokenizer(path):
        return found
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # it cannot be kept, which is said below
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locks.held(path.with_suffix(".lock"), waiting=waiting))
        if found := _cached_tokenizer(path):  # another process has trained it in the meantime
            return found
        tokenizer = train()
        try:
            with replacing(path) as temporary:
                tokenizer.save(temporary)
                with temporary.open("ab") as file:
                    file.write(tokenizer.fingerprint.encode())
        except OSError as error:
            logger.warning("the tokenizer is not kept for later runs: %s", error)
        return tokenizer


def _sentences(pairs: Pairs, normalizer: TextNormalizer, most: int | None) -> Iterator[str]:
    """Yields all normalized sources, then all targets; at most `most` of them, chosen by their numbers."""
    number, total = 0, pairs.num_lines
    for i, side in enumerate(SIDES):
        for block in pairs.side(i):
            if most is not None and most < total:
                numbers = np.arange(number, number + len(block))
                number += len(block)
                block = list(itertools.compress(block, (permuted(numbers, total) < most).tolist()))
            yield from normalizer(block, side)


def _cached_tokenizer(path: pathlib.Path) -> SubwordTokenizer | None:
    """Returns a tokenizer that `prepare_tokenizer` saved; a damaged one is removed, with a warning."""
    if not os.path.lexists(path):
        return None
    try:
        return SubwordTokenizer(unsealed(path.read_bytes()))
    except (OSError, ValueError) as error:
        logger.warning("%s is damaged, or of an earlier version (%s); training it again", path, error)
        with contextlib.suppress(OSError):
            path.unlink()
        return None


def prepare(
    corpus: Pairs,
    tokenizer: Tokenizer,
    cache: str | os.PathLike[str] | None,
    *,
    num_segmentations: int = 1,
    alpha: float = 0.2,
    seed: int = 0,
    share: Share = ALONE,
) -> TokenizedPairs:
    """Tokenizes a corpus, or reads its tokens from `cache` if an earlier call saved them; see `cached_sequences`.

    A corpus of more than `SMALL` pairs is tokenized in units, which are kept if the process ends: see `Units`. The
    result is the same for any `share`.

    Args:
      num_segmentations: the number for each sentence; the first is the best one, the others are sampled. With 0, each
        epoch draws its own: see `PlannedPairs.batch`.
      share: the processes that tokenize; if it has several parts, `cache` is a folder that all of them share.

    Raises:
      ConfigError: `num_segmentations` is not 1, but the tokenizer has only one segmentation.
      DataError, JaxformerError: see `Units.make` and `Units.wait`.
    """
    work, redrawn = _work(corpus, tokenizer, cache, num_segmentations, alpha, seed)
    if not work.is_large:
        arrays = work.save()
    else:
        arrays = work.find() or work.in_units(share)
    source, target = (tuple(arrays[f"{s}-{v}"] for v in range(work.num_segmentations)) for s in SIDES)
    return TokenizedPairs(source, target, tokenizer.special, redrawn)


def prepare_part(
    corpus: Pairs,
    tokenizer: Tokenizer,
    cache: str | os.PathLike[str],
    *,
    num_segmentations: int = 1,
    alpha: float = 0.2,
    seed: int = 0,
    share: Share = ALONE,
) -> int:
    """Does a share of `prepare` without waiting for others; returns the number of units that are still missing.

    The process that finds none missing joins them.

    Raises:
      ConfigError, DataError, JaxformerError: see `prepare`.
      OSError: the folder cannot be written; what is finished stays.
    """
    work, _ = _work(corpus, tokenizer, cache, num_segmentations, alpha, seed)
    if not work.is_large or work.find():
        work.save()
    else:
        work.units.make(share)
        missing = len(work.units.missing())
        pathlib.Path(cache).mkdir(parents=True, exist_ok=True)
        with locks.held(pathlib.Path(cache) / f"{work.key}.lock", waiting=lambda holder: None):
            if work.find() is None:  # otherwise another process has joined them, and removed the units
                if missing:
                    return missing
                work.in_units(dataclasses.replace(share, part=0, parts=1))
    if work.find() is None:
        raise OSError(errno.ENOSPC, "the tokens could not be kept", str(pathlib.Path(cache) / work.key))
    return 0


def _work(
    corpus: Pairs,
    tokenizer: Tokenizer,
    cache: str | os.PathLike[str] | None,
    num_segmentations: int,
    alpha: float,
    seed: int,
) -> tuple[_Work, Redrawn | None]:
    redrawn = None
    if num_segmentations != 1:
        if not isinstance(tokenizer, SubwordTokenizer):
            raise ConfigError(f"num_segmentations must be 1 for tokens with one segmentation, got {num_segmentations}")
        if num_segmentations == 0:
            redrawn, num_segmentations = Redrawn(tokenizer, alpha, seed), PLANNED
    return _Work(corpus, tokenizer, cache, num_segmentations, alpha, seed), redrawn


@dataclasses.dataclass(frozen=True)
class _Work:
    """The tokenization of a corpus, with a number of segmentations of each sentence, into arrays of the cache."""

    corpus: Pairs
    tokenizer: Tokenizer
    cache: str | os.PathLike[str] | None
    num_segmentations: int
    alpha: float
    seed: int

    @property
    def names(self) -> list[str]:
        return [f"{side}-{variant}" for side in SIDES for variant in range(self.num_segmentations)]

    @functools.cached_property
    def key(self) -> str:
        """The name of everything that the tokens depend on."""
        key = f"{self.corpus.fingerprint}-{cache_key(self.tokenizer)}"
        drawn = f"-drawn-{self.num_segmentations}-{self.alpha}-{self.seed}"
        return key + drawn * (self.num_segmentations > 1)

    @property
    def is_large(self) -> bool:
        """True if the corpus is tokenized in units."""
        return self.cache is not None and len(self.corpus) > SMALL

    @functools.cached_property
    def units(self) -> Units:
        """The units of the best segmentation; those that are sampled depend on all before them."""
        assert self.cache is not None
        key = f"{self.corpus.fingerprint}-{cache_key(self.tokenizer)}"
        return Units(pathlib.Path(self.cache) / f"{key}.units", key, self.corpus, self.tokenizer)

    def find(self) -> dict[str, Ragged] | None:
        """Returns the arrays, if they are kept."""
        assert self.cache is not None
        return kept_sequences(self.cache, self.key, self.names, len(self.corpus))

    def save(self, *, from_units: bool = False) -> dict[str, Ragged]:
        """Returns the arrays, after making them in this process or joining the units."""
        make = functools.partial(self._blocks, from_units=from_units)
        options = {"num_sequences": len(self.corpus), "vocab_size": self.tokenizer.vocab_size}
        return cached_sequences(self.cache, self.key, self.names, make, **options)

    def in_units(self, share: Share) -> dict[str, Ragged]:
        """Makes the units of a share, waits for the others, and joins all of them.

        A process that is alone holds the tokens in memory if units cannot be kept.
        """
        units = self.units
        try:
            units.make(share)
        except OSError as error:
            if share.parts > 1:
                raise
            logger.warning("units of tokens cannot be kept in %s (%s)", units.folder, error.strerror)
            return self.save()
        if share.parts > 1:
            units.wait(share, until=lambda: not units.missing() or self.find() is not None)
            if share.part:
                units.wait(share, until=lambda: self.find() is not None)
        arrays = self.find() or self.save(from_units=True)
        if self.find() is not None:
            units.remove()
        return arrays

    def _blocks(self, name: str, *, from_units: bool) -> Iterator[Sequence[np.ndarray] | Ragged]:
        """Yields the tokens of one side in one segmentation."""
        variant, number = name.partition("-")[2], int(name.startswith("target"))
        side = SIDES[number]
        if variant != "0" and isinstance(self.tokenizer, SubwordTokenizer):
            draws = random.Random(int(variant) * 2 + number + self.seed * 1009)  # noqa: S311 - data, not a secret
            for block in self.corpus.side(number):
                yield self.tokenizer.sample(block, side, seed=draws, alpha=self.alpha)
        elif from_units:
            yield from self.units.blocks(side)
        else:
            for block in self.corpus.side(number):
                yield encode_texts(self.tokenizer, block, side)


@dataclasses.dataclass(frozen=True)
class PlannedPairs(Planned):
    """Tokenized pairs and the plan of their batches. Batch i is a pure function of both and of i."""

    tokens: TokenizedPairs
    plan: BatchPlan

    def batch(self, step: int, *, rows: Rows | None = None) -> Batch[np.ndarray]:
        """Makes batch number `step`; `rows` selects the rows to make, by default all.

        With several segmentations, each epoch chooses one of them for each sentence. With segmentations that are
        `redrawn`, each epoch draws another one that fits the batch. The plan stays the same: a sentence is planned for
        the longest of `PLANNED` segmentations, so few draws are too long, and no more shapes are compiled.
        """
        tokens, (shape, pairs, epoch) = self.tokens, self.plan.batch(step, rows=rows)
        if tokens.redrawn is not None:
            draw = functools.partial(tokens.redrawn, epoch=epoch, limit=shape[1] - 1)
            sources = [draw(tokens.source[0][i], sentence=2 * int(i)) for i in pairs]
            targets = [draw(tokens.target[0][i], sentence=2 * int(i) + 1) for i in pairs]
        elif tokens.num_segmentations == 1:
            sources, targets = tokens.source[0].take(pairs), tokens.target[0].take(pairs)
        else:
            whole = self.plan.batch(step)[1]  # draws are for all its pairs, and some of them are made here
            generator = np.random.default_rng((self.plan.seed, epoch, step, 2))
            variants = generator.integers(tokens.num_segmentations, size=(2, len(whole)))[:, np.isin(whole, pairs)]
            sources = [tokens.source[v][i] for v, i in zip(variants[0], pairs, strict=True)]
            targets = [tokens.target[v][i] for v, i in zip(variants[1], pairs, strict=True)]
        return Batch.from_tokens(sources, targets, shape, tokens.special)


class _Steps(grain.sources.RandomAccessDataSource, Generic[B]):
    """Batch numbers ``start, start + 1, ...`` as a data source: Grain reads any of them at random."""

    def __init__(self, make: Callable[[int], B], start: int, stop: int):
        self.make, self.start, self.stop = make, start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, index: int) -> B:
        return self.make(self.start + index)

    def __repr__(self) -> str:
        return f"batches {self.start} to {self.stop}"


def batches(
    make: Callable[[int], B], *, start: int = 0, stop: int | None = None, read_ahead: int = 16, num_threads: int = 1
) -> Iterator[B]:
    """Iterates over ``make(start), make(start + 1), ...``, prefetched by Grain's threads; endless without `stop`."""
    read_options = grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=read_ahead)
    steps = _Steps(make, start, 2**62 if stop is None else stop)
    return iter(grain.MapDataset.source(steps).to_iter_dataset(read_options))
