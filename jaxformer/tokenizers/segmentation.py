"""Random segmentations of text into subwords, reproducible on every machine.

sentencepiece can sample too, but it salts its generator differently in each process, even with a fixed seed.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import heapq
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from jaxformer.errors import ConfigError

SPACE = "\u2581"
"""The character that sentencepiece writes for a space; in a piece, it can only come first."""

Draw = Callable[[], float]
"""A source of random numbers in [0, 1), such as ``random.Random(seed).random``."""

Sampler = Callable[[str, Draw], list[int]]
"""Draws the tokens of a line with `SPACE` for spaces."""

_WORD = re.compile(f"{SPACE}[^{SPACE}]*|[^{SPACE}]+")
_SHORT = 24  # longer words, such as whole sentences in Chinese, rarely come again, and their lattices are large
_UNKNOWN = 10.0  # sentencepiece's penalty, below the lowest score, of a character outside the vocabulary


@dataclasses.dataclass(frozen=True)
class Subwords:
    """A vocabulary of subwords.

    Attributes:
      scores: the log-probability of each piece (unigram), or the negative rank of its merge (BPE).
      ids: the token of each piece.
      spell: the tokens of a character that is not a piece.
    """

    scores: Mapping[str, float]
    ids: Mapping[str, int]
    spell: Callable[[str], Sequence[int]]

    @functools.cached_property
    def longest(self) -> int:
        """The number of characters of the longest piece."""
        return max(map(len, self.scores), default=1)

    @functools.cached_property
    def lowest(self) -> float:
        """The lowest score of a piece."""
        return min(self.scores.values(), default=0.0)

    def tokens(self, pieces: Iterable[str]) -> list[int]:
        """Returns the tokens of pieces and of characters outside the vocabulary."""
        tokens: list[int] = []
        for piece in pieces:
            if piece in self.ids:
                tokens.append(self.ids[piece])
            else:
                tokens += self.spell(piece)
        return tokens


def segmentations(subwords: Subwords, line: str, *, most: int) -> list[tuple[int, ...]]:
    """Returns the tokens of every segmentation of a line; a character that is not a piece is spelled in bytes.

    Raises:
      ConfigError: there are more than `most`.
    """
    ways: list[list[tuple[int, ...]]] = [[()]]  # ways[i] has the segmentations of the first i characters
    for end in range(1, len(line) + 1):
        ends = [(start, line[start:end]) for start in range(max(0, end - subwords.longest), end)]
        ways.append(
            [
                (*head, *subwords.tokens([piece]))
                for start, piece in ends
                if piece in subwords.ids or len(piece) == 1
                for head in ways[start]
            ]
        )
        if len(ways[-1]) > most:
            text = line.replace(SPACE, " ")
            raise ConfigError(f"{text!r} can be segmented in more than {most:,} ways; give a shorter text")
    return ways[-1]


def unigram_sampler(subwords: Subwords, alpha: float) -> Sampler:
    """Returns a sampler of segmentations x with ``p(x)**alpha``, normalized over all segmentations (Kudo 2018)."""
    lattice = functools.partial(_lattice, subwords, alpha=alpha)
    kept_lattice = functools.lru_cache(maxsize=1 << 16)(lattice)

    def pieces(word: str, draw: Draw) -> list[str]:
        starts, stop, chosen = (kept_lattice if len(word) <= _SHORT else lattice)(word), len(word), []
        while stop:
            cumulative, start_of = starts[stop]
            start = start_of[min(bisect.bisect(cumulative, draw()), len(start_of) - 1)]
            chosen.append(word[start:stop])
            stop = start
        return chosen[::-1]

    return lambda line, draw: subwords.tokens(piece for word in _WORD.findall(line) for piece in pieces(word, draw))


def bpe_sampler(subwords: Subwords, alpha: float) -> Sampler:
    """Returns a sampler that drops each merge with probability `alpha` (BPE-dropout, Provilkov et al. 2020)."""
    pieces = functools.partial(_merge, subwords, alpha)
    return lambda line, draw: subwords.tokens(piece for word in _WORD.findall(line) for piece in pieces(word, draw))


def _lattice(subwords: Subwords, word: str, *, alpha: float) -> list[tuple[list[float], list[int]]]:
    """Returns, for each position, the cumulative probabilities and the starts of the pieces that may end there."""
    forward, starts = [0.0], [([1.0], [0])]
    for stop in range(1, len(word) + 1):
        weights, start_of = [], []
        for start in range(max(0, stop - subwords.longest), stop):
            score = subwords.scores.get(word[start:stop])
            if score is None and stop - start == 1:
                score = subwords.lowest - _UNKNOWN
            if score is not None:
                weights.append(forward[start] + alpha * score)
                start_of.append(start)
        top = max(weights)
        total = math.fsum(math.exp(weight - top) for weight in weights)
        forward.append(top + math.log(total))
        starts.append((list(itertools.accumulate(math.exp(weight - top) / total for weight in weights)), start_of))
    return starts


def _merge(subwords: Subwords, alpha: float, word: str, draw: Draw) -> list[str]:
    """Returns the pieces of a word after its best merges, in order, except for dropped ones."""
    size = len(word)
    before, after = [*range(-1, size)], [*range(1, size + 2)]  # the neighbors of each edge between pieces
    candidates: list[tuple[float, tuple[int, int, int]]] = []

    def offer(start: int) -> None:
        middle = after[start]
        if start >= 0 and middle < size:
            score = subwords.scores.get(word[start : after[middle]])
            if score is not None:
                heapq.heappush(candidates, (-score, (start, middle, after[middle])))

    for start in range(size):
        offer(start)
    while candidates:
        _, (start, middle, stop) = heapq.heappop(candidates)
        if after[start] != middle or after[middle] != stop or draw() < alpha:  # gone, or dropped
            continue
        after[start], before[stop], after[middle] = stop, start, -1
        offer(before[start])
        offer(start)
    edges = [0]
    while edges[-1] < size:
        edges.append(after[edges[-1]])
    return [word[start:stop] for start, stop in itertools.pairwise(edges)]
