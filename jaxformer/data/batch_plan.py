"""The batch plan: the pairs of batch i as a pure function of the lengths, a seed and i.

A run that is resumed on any number of hosts sees the same data in the same order. Pairs are grouped by length
into a small number of batch shapes, each holding about the same number of padded tokens, so that a run compiles few
programs and spends little work on padding.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from jaxformer.data.batch import BatchShape, Rows
from jaxformer.data.permutation import permuted
from jaxformer.errors import ConfigError
from jaxformer.reprs import brief

LARGEST_SHUFFLE = 10_000_000
"""The number of pairs up to which an epoch's order is an array; in larger corpora it is a function: see `permuted`."""

CHUNK = 1 << 20
"""The number of pairs that are planned at once, so that a large corpus needs little memory."""


@dataclasses.dataclass(frozen=True, eq=False)
class BatchPlan:
    """The batches of one corpus, made by `make_batch_plan`.

    Attributes:
      shapes: the batch shapes, shortest first.
      buckets: for each shape, the pairs that go into batches of it.
      skipped: pairs that are longer than the largest shape.
      shuffle: True if each epoch has its own order; otherwise every epoch is the same, shortest first.
    """

    shapes: tuple[BatchShape, ...]
    buckets: tuple[np.ndarray, ...]
    skipped: np.ndarray
    seed: int
    shuffle: bool

    __repr__ = brief

    @functools.cached_property
    def steps_per_epoch(self) -> int:
        """The number of batches in one pass over all pairs."""
        return sum(-(-len(bucket) // shape[0]) for bucket, shape in zip(self.buckets, self.shapes, strict=True))

    def batch(self, step: int, *, rows: Rows | None = None) -> tuple[BatchShape, np.ndarray, int]:
        """Returns the shape, the pairs and the epoch of batch `step`, for any ``step >= 0``, or of some of its rows."""
        epoch, position = divmod(step, self.steps_per_epoch)
        bucket, start = self._order(epoch * self.shuffle)[position].tolist()
        num_rows, source, target = self.shapes[bucket]
        pairs = self._pairs(epoch, bucket, start, num_rows)
        indices = (rows or np.arange)(num_rows)
        return (len(indices), source, target), pairs[indices[indices < len(pairs)]], epoch

    def fill(self, source_lengths: np.ndarray, target_lengths: np.ndarray) -> float:
        """Returns the share of an epoch's positions that hold a token; takes the lengths given to `make_batch_plan`."""
        parts = (b[start : start + CHUNK] for b in self.buckets for start in range(0, len(b), CHUNK))
        real = sum(int(source_lengths[p].sum() + target_lengths[p].sum()) + 2 * len(p) for p in parts)
        padded = sum(
            -(-len(b) // rows) * rows * (source + target)
            for b, (rows, source, target) in zip(self.buckets, self.shapes, strict=True)
        )
        return real / padded

    def _pairs(self, epoch: int, bucket: int, start: int, num_rows: int) -> np.ndarray:
        """Returns the pairs of a batch."""
        members = self.buckets[bucket]
        if self.shuffle and sum(map(len, self.buckets)) > LARGEST_SHUFFLE:
            places = np.arange(start, min(start + num_rows, len(members)))
            return members[permuted(places, len(members), self.seed, epoch, bucket)]
        return self._members(epoch * self.shuffle)[bucket][start : start + num_rows]

    @functools.lru_cache(maxsize=2)  # noqa: B019 - two epochs of indices, and plans live as long as a run
    def _members(self, epoch: int) -> tuple[np.ndarray, ...]:
        if not self.shuffle:
            return self.buckets
        random = np.random.default_rng((self.seed, epoch))
        return tuple(random.permutation(bucket) for bucket in self.buckets)

    @functools.lru_cache(maxsize=2)  # noqa: B019
    def _order(self, epoch: int) -> np.ndarray:
        starts = [np.arange(0, len(x), rows) for x, (rows, _, _) in zip(self.buckets, self.shapes, strict=True)]
        numbers = np.repeat(np.arange(len(starts)), [*map(len, starts)])
        order = np.stack([numbers, np.concatenate(starts)], 1)
        if not self.shuffle:
            return order
        return np.random.default_rng((self.seed, epoch, 1)).permutation(order)


class Planned:
    """Batches by a plan: batch i is a pure function of the data, the plan and i."""

    plan: BatchPlan

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in one pass over all data."""
        return self.plan.steps_per_epoch


def make_batch_plan(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    *,
    seed: int = 0,
    tokens_per_batch: int = 4096,
    num_shapes: int = 6,
    max_length: int = 256,
    multiple_of: int = 8,
    length_multiple: int = 1,
    shuffle: bool = True,
) -> BatchPlan:
    """Plans batches of about `tokens_per_batch` padded tokens on each side, in at most `num_shapes` shapes.

    Args:
      source_lengths, target_lengths: tokens of each pair, eos not counted.
      max_length: pairs with a side longer than this, eos included, are skipped.
      multiple_of: rows of a batch are a multiple of this, so that a mesh of that many devices divides them.
      length_multiple: lengths of batches are a multiple of this, for meshes that shard lengths.

    Raises:
      ConfigError: no pair is short enough, or `tokens_per_batch` cannot hold `multiple_of` of the longest pairs.
    """
    longest = max((int(longer.max()) for longer in _longer(source_lengths, target_lengths)), default=0)
    counts = np.zeros(min(longest, max_length) + 1, np.int64)  # of pairs with each number of tokens
    for longer in _longer(source_lengths, target_lengths):
        counts += np.bincount(longer[longer < len(counts)], minlength=len(counts))
    if not counts.any():
        raise ConfigError(f"no pair of {len(source_lengths)} has at most {max_length} tokens a side")
    limits = _limits(counts, num_shapes, length_multiple)
    if multiple_of * limits[-1] > tokens_per_batch:
        raise ConfigError(
            f"tokens_per_batch is {tokens_per_batch}, too few for {multiple_of} rows of {limits[-1]} tokens; "
            f"raise it to {multiple_of * limits[-1]} or lower max_length"
        )
    shapes = [(num_rows(tokens_per_batch, limit, multiple_of), limit, limit) for limit in limits.tolist()]
    *buckets, skipped = _buckets(source_lengths, target_lengths, np.append(limits[:-1], max_length))
    return BatchPlan(tuple(shapes), tuple(buckets), skipped, seed, shuffle)


def num_rows(tokens_per_batch: int, length: int, multiple_of: int = 8) -> int:
    """Returns the number of rows in a batch of sequences of this length."""
    return max(multiple_of, tokens_per_batch // length // multiple_of * multiple_of)


def replan(plan: BatchPlan, source_lengths: np.ndarray, target_lengths: np.ndarray) -> BatchPlan:
    """Plans another corpus, in order, with the shapes of `plan`, so that validation compiles no additional shapes."""
    *buckets, skipped = _buckets(source_lengths, target_lengths, np.array([shape[1] for shape in plan.shapes]))
    return BatchPlan(plan.shapes, tuple(buckets), skipped, plan.seed, shuffle=False)


def plan_texts(
    lengths: np.ndarray, held_out: np.ndarray, *, seed: int, tokens_per_batch: int, num_shapes: int, max_length: int
) -> tuple[BatchPlan, BatchPlan]:
    """Plans single texts for training, and others for validation, in order; a shape for the longest of them is added.

    Args:
      lengths, held_out: tokens of each text, with class token and eos; longer ones are cut to `max_length`.
      seed, tokens_per_batch, num_shapes, max_length: see `make_batch_plan`.
    """
    # The plan adds an end token.
    train, others = (np.minimum(each, max_length) - 1 for each in (lengths, held_out))
    plan = make_batch_plan(
        train,
        np.zeros_like(train),
        seed=seed,
        tokens_per_batch=tokens_per_batch,
        num_shapes=num_shapes,
        max_length=max_length,
    )
    shapes, longest = plan.shapes, int(others.max()) + 1
    if longest > shapes[-1][1]:  # than all training texts
        shapes += ((num_rows(tokens_per_batch, longest), longest, longest),)
    return plan, replan(dataclasses.replace(plan, shapes=shapes), others, np.zeros_like(others))


def _longer(source_lengths: np.ndarray, target_lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the tokens of the longer side of pairs, eos included, `CHUNK` pairs at a time."""
    for start in range(0, len(source_lengths), CHUNK):
        sides = source_lengths[start : start + CHUNK], target_lengths[start : start + CHUNK]
        yield np.maximum(*sides).astype(np.int32) + 1


def _buckets(source_lengths: np.ndarray, target_lengths: np.ndarray, limits: np.ndarray) -> list[np.ndarray]:
    """Returns the pairs up to each length, in order, and those that are longer.

    They are counted first, so that no memory is needed but that of the result.
    """

    def numbers() -> Iterator[np.ndarray]:
        return (np.searchsorted(limits, longer) for longer in _longer(source_lengths, target_lengths))

    sizes = sum((np.bincount(each, minlength=len(limits) + 1) for each in numbers()), np.zeros(len(limits) + 1, int))
    buckets = [np.empty(size, np.int32 if len(source_lengths) < 2**31 else np.int64) for size in sizes]
    start, filled = 0, [0] * len(buckets)
    for each in numbers():
        for number, bucket in enumerate(buckets):
            pairs = np.flatnonzero(each == number)
            bucket[filled[number] : filled[number] + len(pairs)] = pairs + start
            filled[number] += len(pairs)
        start += len(each)
    return buckets


def _limits(counts: np.ndarray, num_shapes: int, multiple: int) -> np.ndarray:
    """Returns at most `num_shapes` upper lengths that leave the least padding, by dynamic programming.

    Only multiples of a step are tried, so the table stays small even for long sequences.
    """
    top = -(-int(np.flatnonzero(counts)[-1]) // multiple) * multiple
    step = multiple * max(1, -(-top // (128 * multiple)))
    edges = np.arange(step, top + step, step)
    edges[-1] = top
    counts = np.diff(np.cumsum(counts)[np.minimum(edges, len(counts) - 1)], prepend=0)
    total = np.concatenate([[0], np.cumsum(counts)])
    # cost[j] is the least number of padded tokens for all pairs up to edge j, with the number of shapes so far.
    cost = np.concatenate([[0.0], edges * np.cumsum(counts)])
    choices = []
    for _ in range(min(num_shapes, len(edges)) - 1):
        trial = cost[None, :] + np.concatenate([[0.0], edges])[:, None] * (total[:, None] - total[None, :])
        trial = np.where(np.tri(len(edges) + 1, k=-1, dtype=bool), trial, np.inf)
        trial[0, 0] = 0.0
        choices.append(trial.argmin(1))
        cost = trial.min(1)
    limits, edge = [top], len(edges)
    for choice in reversed(choices):
        edge = int(choice[edge])
        if edge == 0:
            break
        limits.append(int(edges[edge - 1]))
    return np.array(sorted(set(limits)))
