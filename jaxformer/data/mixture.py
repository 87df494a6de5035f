"""Mixtures of corpora: batch i is a pure function of the corpora, their weights, the seed and i.

It is the same on any number of hosts, a run resumes it exactly, and other weights from a step on leave all batches
before that step as they were. Nothing has to be remembered between batches: all draws of `BLOCK` batches come from one
counter-based generator, and each corpus is an endless stream of its own pairs, whose position is the number of rows
that it has given so far.

`grain.MapDataset.mix` is not used: its elements are pure functions of their index, too, but its interleaving depends on
the weights alone and not on a seed, other weights change it from the beginning, and it ends with its first exhausted
part.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from jaxformer.data.batch import Batch, BatchShape, Rows
from jaxformer.data.batch_plan import BatchPlan, Planned
from jaxformer.data.permutation import permuted
from jaxformer.data.pipeline import TokenizedPairs
from jaxformer.data.token_cache import Ragged
from jaxformer.data.weights import Phases
from jaxformer.data.windows import RandomWindows, TextBatch
from jaxformer.errors import ConfigError
from jaxformer.reprs import brief

BLOCK = 4096
"""The number of batches whose draws come from one generator."""

STRATA = 64
"""The number of consecutive batches that have each part of the unit interval once, so that shapes come evenly."""

_ONE = 1 << 32
"""The integer that stands for 1: draws and shares are exact in it, on every platform."""


class Picked(NamedTuple):
    """The rows of a batch, in the order of their corpora."""

    shape: BatchShape
    corpora: np.ndarray  # int64 [N]
    pairs: np.ndarray  # int64 [N], indices into the corpus of each row
    passes: np.ndarray  # int64 [N], how often the corpus has been read before, in pairs of this length

    __repr__ = brief


class _Block(NamedTuple):
    """The contents of the batches of a block."""

    buckets: np.ndarray  # int64 [BLOCK]
    counts: np.ndarray  # int64 [C, BLOCK], the rows of each corpus
    starts: np.ndarray  # int64 [C, BLOCK], the rows that each has given to earlier batches of the same shape


@dataclasses.dataclass(frozen=True, eq=False)
class MixturePlan:
    """The batches of several corpora, made by `make_mixture_plan`.

    A batch has one shape, and all its rows are full. Shapes and corpora are chosen so that the expected share of each
    corpus, among all pairs, is its share of the weights; a corpus gives its own pairs of each length in equal parts.
    A batch of mixed corpora takes from each corpus its share in that shape, rounded up or down at random.

    Attributes:
      shapes: the batch shapes, shortest first.
      streams: for each corpus and shape, the pairs that go into batches of the shape.
      skipped: for each corpus, the pairs that are longer than the largest shape.
      phases: the weights of the corpora.
      mixed: True if a batch may hold several corpora, False if it holds one.
    """

    shapes: tuple[BatchShape, ...]
    streams: tuple[tuple[np.ndarray, ...], ...]
    skipped: tuple[np.ndarray, ...]
    phases: Phases
    seed: int
    mixed: bool
    _given: dict[int, np.ndarray] = dataclasses.field(default_factory=dict, init=False, repr=False)
    """The rows ``[C, shapes]`` given before each block that was asked for."""

    __repr__ = brief

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        """The number of pairs by corpus and shape, ``int64 [C, shapes]``."""
        return np.array([[len(pairs) for pairs in stream] for stream in self.streams], np.int64)

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches with room for every pair of every corpus once."""
        return sum(-(-int(size) // shape[0]) for size, shape in zip(self.sizes.sum(0), self.shapes, strict=True))

    def batch(self, step: int, *, rows: Rows | None = None) -> Picked:
        """Returns batch `step`, for any ``step >= 0``, or some of its rows."""
        block, position = divmod(step, BLOCK)
        drawn = self._block(block)
        bucket = int(drawn.buckets[position])
        num_rows, source, target = self.shapes[bucket]
        counts, starts = drawn.counts[:, position], drawn.starts[:, position]
        indices = (rows or np.arange)(num_rows)
        own = indices[indices < num_rows]
        corpora = np.repeat(np.arange(len(counts)), counts)[own]
        positions = (starts + counts - np.cumsum(counts))[corpora] + own
        passes, places = np.divmod(positions, self.sizes[corpora, bucket])
        pairs = np.empty(len(own), np.int64)
        for corpus, number in np.unique(np.stack([corpora, passes]), axis=1).T.tolist():
            where, stream = (corpora == corpus) & (passes == number), self.streams[corpus][bucket]
            pairs[where] = stream[permuted(places[where], len(stream), self.seed, corpus, bucket, number)]
        return Picked((len(indices), source, target), corpora, pairs, passes)

    def given(self, stop: int) -> np.ndarray:
        """Returns the number of rows of each corpus in the batches before `stop`, ``int64 [C]``."""
        block, position = divmod(stop, BLOCK)
        return self._before(block).sum(1) + self._block(block).counts[:, :position].sum(1)

    def _before(self, block: int) -> np.ndarray:
        """Returns the rows ``[C, shapes]`` that the corpora have given before a block."""
        given = self._given  # several threads may write the same values
        given.setdefault(0, np.zeros((len(self.streams), len(self.shapes)), np.int64))
        for earlier in range(max(n for n in tuple(given) if n <= block), block):
            buckets, counts = self._drawn(earlier)
            sums = [np.bincount(buckets, weights=one, minlength=len(self.shapes)) for one in counts]
            given[earlier + 1] = given[earlier] + np.array(sums, np.int64)
        return given[block]

    @functools.lru_cache(maxsize=4)  # noqa: B019 - plans live as long as a run
    def _block(self, block: int) -> _Block:
        (buckets, counts), starts = self._drawn(block), self._before(block)[:, :, None]
        of_each = np.where(buckets == np.arange(len(self.shapes))[:, None], counts[:, None], 0)  # [C, shapes, BLOCK]
        earlier = starts + np.cumsum(of_each, axis=2) - of_each
        return _Block(buckets, counts, np.take_along_axis(earlier, buckets[None, None], axis=1)[:, 0])

    def _drawn(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the shape of each batch of a block ``[BLOCK]``, and the rows of each corpus ``[C, BLOCK]``."""
        chance, offset = draws(self.seed, block)
        steps = block * BLOCK + np.arange(BLOCK)
        phase = np.searchsorted(self.phases.starts, steps, side="right") - 1
        chosen = (chance >= self._choices[:, phase]).sum(0)
        if self.mixed:
            edges = self._edges[:, phase, chosen] + offset >> 32
            return chosen, np.diff(edges, axis=0, prepend=0)
        corpus, buckets = np.divmod(chosen, len(self.shapes))
        rows = np.array([shape[0] for shape in self.shapes])[buckets]
        return buckets, np.where(np.arange(len(self.streams))[:, None] == corpus, rows, 0)

    @functools.cached_property
    def _mass(self) -> np.ndarray:
        """The share of all pairs by phase, corpus and shape, ``[P, C, shapes]``."""
        return np.array(self.phases.shares)[:, :, None] * (self.sizes / self.sizes.sum(1, keepdims=True))

    @functools.cached_property
    def _choices(self) -> np.ndarray:
        """The upper ends of the intervals in which a draw chooses a shape, or with corpora kept apart a corpus and a
        shape: integers ``[choices, P]``."""
        mass = self._mass / np.array([shape[0] for shape in self.shapes])  # a batch of fewer rows comes more often
        return _rising(mass.sum(1).T if self.mixed else mass.reshape(len(mass), -1).T, _ONE)

    @functools.cached_property
    def _edges(self) -> np.ndarray:
        """The upper ends of the rows of each corpus in a batch, not rounded: integers ``[C, P, shapes]``."""
        return _rising(self._mass.swapaxes(0, 1), np.array([shape[0] for shape in self.shapes]) * _ONE)


def _rising(parts: np.ndarray, whole: np.ndarray | int) -> np.ndarray:
    """Returns running sums over dimension 0, scaled to integers that end with `whole`, as all without parts do."""
    sums = np.cumsum(parts, axis=0)
    return np.rint(np.where(sums[-1] > 0, sums / np.where(sums[-1] > 0, sums[-1], 1), 1) * whole).astype(np.int64)


@functools.lru_cache(maxsize=8)
def draws(seed: int, block: int, size: int = BLOCK) -> tuple[np.ndarray, np.ndarray]:
    """Returns two draws for each batch of a block, integers below 2**32; those of the first kind come in strata.

    >>> first, second = draws(0, 7, 128)
    >>> np.bincount(first >> 26, minlength=64).tolist() == [2] * 64
    True
    """
    raw = np.random.Philox(np.random.SeedSequence((seed, block))).random_raw(3 * size).reshape(3, size)
    strata = np.argsort(raw[0].reshape(-1, STRATA), axis=1, kind="stable").ravel()
    return strata * (_ONE // STRATA) + (raw[1] >> 38).astype(np.int64), (raw[2] >> 32).astype(np.int64)


def keyed(*parts: np.ndarray | int) -> np.ndarray:
    """Returns a hash of integers as ``uint64``, element by element: that of MurmurHash3's end, part by part."""
    key = np.zeros(1, np.uint64)
    for part in parts:
        key = (key ^ np.asarray(part).astype(np.uint64)) * np.uint64(0xFF51AFD7ED558CCD)
        key = (key ^ key >> np.uint64(33)) * np.uint64(0xC4CEB9FE1A85EC53)
        key = (key ^ key >> np.uint64(33)) + np.uint64(1)
    return key


@dataclasses.dataclass(frozen=True)
class TaggedPairs:
    """A tokenized corpus, and the tokens that are put before each of its sources and targets, such as a language."""

    tokens: TokenizedPairs
    source_start: tuple[int, ...] = ()
    target_start: tuple[int, ...] = ()

    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the lengths of each source and target in the longest segmentation, with the tokens before it."""
        source, target = self.tokens.lengths()
        return source + len(self.source_start), target + len(self.target_start)

    def take(self, pairs: np.ndarray, passes: np.ndarray, most: int) -> tuple[Ragged, Ragged]:
        """Returns the sources and targets of some pairs, in segmentations that are functions of the pair and its pass.

        Args:
          most: the largest length of a side, for segmentations that are drawn.
        """
        tokens, starts = self.tokens, (self.source_start, self.target_start)
        sides = []
        for side, (segmentations, start) in enumerate(zip((tokens.source, tokens.target), starts, strict=True)):
            if tokens.redrawn is not None:
                draw = functools.partial(tokens.redrawn, limit=most - len(start))
                rows = zip(pairs.tolist(), passes.tolist(), strict=True)
                found = Ragged.join(
                    [draw(segmentations[0][i], epoch=epoch, sentence=2 * i + side) for i, epoch in rows]
                )
            else:
                number = keyed(len(segmentations), side, pairs, passes) % np.uint64(len(segmentations))
                found = Ragged.concatenate(
                    [segmentations[n].take(pairs[number == n]) for n in range(len(segmentations))]
                )
                if len(segmentations) > 1:
                    found = found.take(np.argsort(np.argsort(number, kind="stable"), kind="stable"))
            sides.append(_after(start, found))
        return sides[0], sides[1]


def _after(start: tuple[int, ...], sequences: Ragged) -> Ragged:
    """Returns each sequence after these tokens."""
    if not start:
        return sequences
    starts = np.repeat(sequences.offsets[:-1], len(start))
    tokens = np.insert(sequences.tokens, starts, np.tile(start, len(sequences)))
    return Ragged(tokens, sequences.offsets + len(start) * np.arange(len(sequences) + 1))


@dataclasses.dataclass(frozen=True)
class PlannedTagged(Planned):
    """One tokenized corpus with its tags, and the plan of its batches, as for validation."""

    tokens: TaggedPairs
    plan: BatchPlan

    def batch(self, step: int, *, rows: Rows | None = None) -> Batch[np.ndarray]:
        """Makes batch number `step`; `rows` selects the rows to make, by default all."""
        shape, pairs, epoch = self.plan.batch(step, rows=rows)
        sides = self.tokens.take(pairs, np.full(len(pairs), epoch), shape[1] - 1)
        return Batch.from_tokens(*sides, shape, self.tokens.tokens.special)


@dataclasses.dataclass(frozen=True)
class PlannedMixture(Planned):
    """Tokenized corpora and the plan of their batches. Batch i is a pure function of both and of i."""

    parts: tuple[TaggedPairs, ...]
    plan: MixturePlan  # pyright: ignore[reportIncompatibleVariableOverride]

    def batch(self, step: int, *, rows: Rows | None = None) -> Batch[np.ndarray]:
        """Makes batch number `step`, with the corpus of each row; `rows` selects the rows to make, by default all."""
        shape, corpora, pairs, passes = self.plan.batch(step, rows=rows)
        taken = []
        for corpus in np.unique(corpora):  # rows are in the order of their corpora
            where = corpora == corpus
            taken.append(self.parts[corpus].take(pairs[where], passes[where], shape[1] - 1))
        sources, targets = (Ragged.concatenate([one[side] for one in taken]) if taken else [] for side in (0, 1))
        batch = Batch.from_tokens(sources, targets, shape, self.parts[0].tokens.special)
        return dataclasses.replace(batch, corpora=np.pad(corpora, (0, shape[0] - len(corpora))).astype(np.int32))


@dataclasses.dataclass(frozen=True)
class MixedWindows:
    """Training batches of several texts: windows that begin anywhere in a text, and never span two.

    The number of windows from each text is its share of the weights, rounded up or down at random. A pure function of
    the texts, their weights, the seed and the step.
    """

    parts: tuple[RandomWindows, ...]
    phases: Phases
    seed: int

    __repr__ = brief

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches that hold as many tokens as all texts."""
        one = self.parts[0]
        return -(-sum(part.stream.num_labels for part in self.parts) // (one.batch_size * one.length))

    def corpora(self, step: int) -> np.ndarray:
        """Returns the number of the text of each row, ``int64 [B]``."""
        block, position = divmod(step, BLOCK)
        offset = int(draws(self.seed, block)[1][position])
        edges = _rising(np.array(self.phases.shares[self.phases.at(step)]), self.parts[0].batch_size * _ONE)
        return np.repeat(np.arange(len(self.parts)), np.diff(edges + offset >> 32, prepend=0))

    def batch(self, step: int, *, rows: Rows | None = None) -> TextBatch[np.ndarray]:
        """Makes batch number `step`, for any ``step >= 0``, or some of its rows."""
        one, corpora = self.parts[0], self.corpora(step)
        indices = (rows or np.arange)(one.batch_size)
        of_row = np.append(corpora, 0)[np.minimum(indices, one.batch_size)]
        own = [indices[of_row == number] for number in range(len(self.parts))]
        made = [part.batch(step, rows=lambda _, own=own: own) for part, own in zip(self.parts, own, strict=True)]
        places = np.argsort(
            np.argsort(of_row, kind="stable")
        )  # of each row among those of the texts, one after another
        chosen = jax.tree.map(lambda *leaves: np.concatenate(leaves)[places], *made)
        return dataclasses.replace(chosen, corpora=of_row.astype(np.int32))


def make_mixture_plan(
    numbers: Sequence[int],
    plan: BatchPlan,
    phases: Callable[[Sequence[int]], Phases],
    *,
    names: Sequence[str],
    mixed: bool = True,
) -> MixturePlan:
    """Plans batches of several corpora in the shapes of `plan`, a plan of all their pairs, one corpus after another.

    Args:
      numbers: the number of pairs of each corpus.
      phases: returns the weights of corpora with these numbers of usable pairs.
      names: the names of the corpora, for errors.

    Raises:
      ConfigError: no pair of a corpus is short enough, or its weight is too small to have an effect.
    """
    ends = [*itertools.accumulate(numbers)]
    starts = [0, *ends[:-1]]
    within = lambda pairs, start, end: pairs[np.searchsorted(pairs, start) : np.searchsorted(pairs, end)] - start
    streams = tuple(
        tuple(within(bucket, start, end) for bucket in plan.buckets) for start, end in zip(starts, ends, strict=True)
    )
    skipped = tuple(within(plan.skipped, start, end) for start, end in zip(starts, ends, strict=True))
    for name, stream, left_out in zip(names, streams, skipped, strict=True):
        if not any(map(len, stream)):
            raise ConfigError(f"{name} has no usable pair: all {len(left_out):,} are longer than max_length")
    weights = phases([sum(map(len, stream)) for stream in streams])
    most = np.max(weights.shares, axis=0)
    if (small := np.flatnonzero(most < 1 / _ONE)).size:
        raise ConfigError(f"the weight of {names[small[0]]} is too small to have an effect: below 2**-32 of the sum")
    return MixturePlan(plan.shapes, streams, skipped, weights, plan.seed, mixed)
