"""Sentences of several corpora, each once; and pairs without given sentences."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Iterator, Sequence, Set

import numpy as np

from jaxformer.data.pairs import FilePairs, Pairs, Parallel
from jaxformer.digests import short_digest

LEFT_OUT = 253
"""The code of lines that `without` leaves out: see `pairs.KEPT`."""


@dataclasses.dataclass(frozen=True, eq=False)
class DistinctSentences(Pairs):
    """Different sentences of several corpora: sources, and targets that are no sources. The sides are not aligned.

    If there are more than `most`, those whose text has the smallest hashes are taken, and about twice as many are in
    memory. They are read when they are first asked for.
    """

    corpora: tuple[Pairs, ...]
    most: int

    def _fingerprint(self) -> str:
        return short_digest(f"{text}\n" for text in (*(pairs.fingerprint for pairs in self.corpora), self.most))

    def __len__(self) -> int:
        return len(self.load())

    @property
    def num_lines(self) -> int:
        return self.load().num_lines

    def blocks(self) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
        return self.load().blocks()

    def side(self, number: int) -> Iterator[Sequence[str]]:
        return self.load().side(number)

    def skipped(self, code: int) -> tuple[int, list[str]]:
        return 0, []

    def load(self) -> Parallel:
        return self._found

    @functools.cached_property
    def _found(self) -> Parallel:
        kept, limit = dict[bytes, tuple[int, str]](), b"\xff" * 9
        for side, pairs in itertools.product((0, 1), self.corpora):
            for block in pairs.side(side):
                for text in block:
                    if (key := hashlib.blake2b(text.encode(), digest_size=8).digest()) < limit:
                        kept.setdefault(key, (side, text))
                if len(kept) > 2 * self.most:
                    limit = sorted(kept)[self.most]
                    kept = {key: kept[key] for key in kept if key < limit}
        chosen = [kept[key] for key in sorted(kept)[: self.most]]
        sources, targets = (tuple(text for which, text in chosen if which == side) for side in (0, 1))
        return Parallel(sources, targets)


def without(pairs: Pairs, texts: Set[str]) -> Pairs:
    """Returns the pairs that have none of these texts on either side; those of files stay in them."""
    if not texts:
        return pairs
    parts = [
        np.fromiter((s not in texts and t not in texts for s, t in zip(*block, strict=True)), bool)
        for block in pairs.blocks()
    ]
    kept = np.concatenate([*parts, np.zeros(0, bool)])
    if kept.all():
        return pairs
    if isinstance(pairs, FilePairs):
        codes = pairs.codes.copy()
        codes[np.flatnonzero(codes == pairs.part)[~kept]] = LEFT_OUT
        return dataclasses.replace(pairs, codes=codes, known="")
    loaded = pairs.load()
    source, target = (tuple(itertools.compress(side, kept.tolist())) for side in (loaded.source, loaded.target))
    return Parallel(source, target, loaded.empty, loaded.overlong)
