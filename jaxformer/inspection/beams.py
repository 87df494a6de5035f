"""Beam search as text and as a tree, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from jaxformer.decoding import BeamTrace


class Node(NamedTuple):
    """A hypothesis that a step of a beam search considered."""

    parent: int
    """The place, in the step before, of the hypothesis that it continues; -1 in the first step."""
    piece: str
    """Its last token."""
    log_prob: float
    score: float
    """The log-probability with the length penalty, by which hypotheses are ranked."""
    fate: str
    """Its fate: live, finished or pruned."""


Tree = tuple[tuple[Node, ...], ...]
"""The hypotheses of each step, best first."""


def tree(trace: BeamTrace, word: Callable[[int], str], *, sentence: int = 0) -> Tree:
    """Returns the hypotheses that each step considered, each with the one that it continues."""
    steps = [step[sentence] for step in trace.steps if step[sentence]]
    places = [{one.tokens: place for place, one in enumerate(step)} for step in steps]
    return tuple(
        tuple(Node(before.get(x.tokens[:-1], -1), word(x.tokens[-1]), x.log_prob, x.score, x.fate) for x in step)
        for before, step in zip([{}, *places], steps, strict=False)
    )


def as_text(trace: BeamTrace, word: Callable[[int], str], *, sentence: int = 0) -> str:
    """Writes what each step considered, best first: probability, log-probability, score, outcome, words.

    Args:
      trace: a trace that `decoding.beam_search` has filled.
      word: function from a token to its text.

    >>> import jax.numpy as jnp
    >>> from jaxformer import decoding
    >>> count_up = lambda tokens, state: (2 * jnp.eye(5)[tokens + 1], state)
    >>> state, trace = decoding.TreeState(jnp.zeros((1, 1))), BeamTrace()
    >>> limits = decoding.Limits(max_length=3, bos=1, eos=4, pad=0)
    >>> best = decoding.beam_search(count_up, state, limits, beam_size=1, trace=trace)
    >>> print(as_text(trace, "_^ab$".__getitem__))
    step 1
      0.6488   -0.4327   -0.4327  live      a
      0.0878   -2.4327   -2.4327  pruned    b
    step 2
      0.4209   -0.8653   -0.4327  live      a b
      0.0570   -2.8653   -1.4327  pruned    a a
    step 3
      0.2731   -1.2980   -0.4327  finished  a b $
    """
    lines = []
    for number, step in enumerate((step[sentence] for step in trace.steps), 1):
        if step:
            lines.append(f"step {number}")
        for one in step:
            numbers = f"{math.exp(one.log_prob):8.4f}  {one.log_prob:8.4f}  {one.score:8.4f}  {one.fate:<8}"
            lines.append(f"{numbers}  {' '.join(map(word, one.tokens))}")
    return "\n".join(lines)
