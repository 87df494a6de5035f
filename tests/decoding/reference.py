"""Plain searches over the tables of `toys.markov`, one sentence and one hypothesis at a time, in float64."""

import dataclasses
from collections.abc import Callable

import numpy as np

from tests.decoding.toys import BEGIN, END, PAD, VOCAB, log_softmax


@dataclasses.dataclass
class Search:
    """The options of a search as a reference understands them."""

    limit: int
    score: Callable[[float, int, bool], float]
    """The score of a hypothesis: of its log-probability, its tokens, and whether it ended."""
    forced_end: str = "scored"
    banned: Callable[[tuple[int, ...]], set[int]] = lambda tokens: set()
    """The tokens that may not follow others."""
    normalized: bool = True
    """True if the probability of banned tokens is lost."""
    prefix: tuple[int, ...] = ()
    ends: tuple[int, ...] = (END,)

    def log_probs(self, table, tokens):
        """The log-probabilities of the next token."""
        last = tokens[-1] if tokens else BEGIN
        row = table[min(len(tokens), len(table) - 1), last].astype(np.float64)
        banned = sorted(self.banned(tokens))
        if not self.normalized:
            row[banned] = -np.inf
        row = log_softmax(row)
        row[[PAD, BEGIN, *banned]] = -np.inf
        if len(tokens) + 1 >= self.limit and self.forced_end != "never":
            only = np.full(VOCAB, -np.inf)
            ends = list(self.ends)
            only[ends] = 0.0 if self.forced_end == "free" else row[ends]
            return only
        return row

    def every(self, table):
        """Every sequence that can be returned, with its score, best first."""
        found, growing = [], [(0.0, self.prefix)]
        while growing:
            total, tokens = growing.pop()
            row = self.log_probs(table, tokens)
            for token in np.flatnonzero(np.isfinite(row)).tolist():
                after = (*tokens, token)
                if token in self.ends or len(after) == self.limit:
                    found.append((self.score(total + row[token], len(after), token in self.ends), after))
                else:
                    growing.append((total + row[token], after))
        return sorted(found, reverse=True)

    def beam(self, table, size, stopping, patience=1.0):
        """Beam search by the rules of Hugging Face and CTranslate2, implemented step by step."""
        live, finished, count = [(0.0, self.prefix)], [], 0
        for number in range(len(self.prefix) + 1, self.limit + 1):
            rows = [(total, tokens, self.log_probs(table, tokens)) for total, tokens in live]
            every = sorted(
                ((total + row[t], (*tokens, t)) for total, tokens, row in rows for t in np.flatnonzero(row > -np.inf)),
                reverse=True,
            )[: (1 + len(self.ends)) * size]
            for total, tokens in every[:size]:
                if tokens[-1] in self.ends or number == self.limit:
                    finished.append((self.score(total, number, tokens[-1] in self.ends), tokens))
                    count += 1
            finished = sorted(finished, reverse=True)[:size]
            live = [pair for pair in every if pair[1][-1] not in self.ends][:size]
            if not live:
                break
            worst = finished[-1][0] if len(finished) == size else -np.inf
            ended_at_limit = self.forced_end != "never"
            if {
                "first": count >= size,
                "patience": count >= round(patience * size),
                "now": self.score(live[0][0], number, False) <= worst,
                "limit": self.score(live[0][0], self.limit, ended_at_limit) <= worst,
            }[stopping]:
                break
        return finished
