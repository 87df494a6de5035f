"""Minimum Bayes risk: the expected utility of candidate texts, computed on the device."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Literal

import jax
import numpy as np

from jaxformer import decoding
from jaxformer.errors import DataError
from jaxformer.evaluation.scores import bleu_words
from jaxformer.tasks.search import Candidate

_SIZES = tuple(2**i for i in range(4, 20))
"""The padded lengths of texts in characters or words: one program is compiled for each that occurs."""


def ranked(
    candidates: Sequence[Sequence[Candidate]], utility: Literal["chrf", "bleu"], language: str = ""
) -> list[list[Candidate]]:
    """Returns the candidates of each input, best first; their expected utilities become their scores."""
    utilities = expected_utilities([[c.text for c in own] for own in candidates], utility, language)
    scored = [
        [dataclasses.replace(c, score=float(value)) for c, value in zip(own, values, strict=True)]
        for own, values in zip(candidates, utilities, strict=True)
    ]
    return [sorted(own, key=lambda c: -c.score) for own in scored]


def expected_utilities(
    texts: Sequence[Sequence[str]], utility: Literal["chrf", "bleu"], language: str = ""
) -> np.ndarray:
    """Returns the mean utility of each candidate, ``[B, K]``, with every candidate of the same row as the reference.

    Utilities are sacrebleu's sentence scores, from 0 to 100: chrF2, or BLEU without the n-gram orders that a text is
    too short for.

    Args:
      texts: K candidates of each of B sentences.
      language: the language of the texts, for the words of BLEU; see `scores.bleu`.

    Raises:
      ConfigError: see `scores.bleu`.
      DataError: a text has more than 524,288 characters (words, for BLEU).
    """
    words = functools.partial(bleu_words, language=language)
    split: Callable[[str], Sequence[str]] = words if utility == "bleu" else lambda text: "".join(text.split())
    units = [[split(text) for text in candidates] for candidates in texts]
    longest = max((len(one) for candidates in units for one in candidates), default=1)
    if longest > _SIZES[-1]:
        raise DataError(f"a candidate has {longest:,} characters or words, but at most {_SIZES[-1]:,} can be compared")
    # One sentence at a time: its n-grams are counted in a table of K x K T entries, and one program suits any B.
    return np.stack(jax.device_get([_expected(utility, *_numbered(candidates)) for candidates in units]))


def _numbered(candidates: Sequence[Sequence[str]]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the units of the candidates of one sentence as numbers, ``[K, T]``, and the lengths, ``[K]``."""
    lengths = np.array([len(one) for one in candidates], np.int32)
    size = next(size for size in _SIZES if size >= lengths.max(initial=1))
    ids, number_of = np.zeros((len(candidates), size), np.int32), dict[str, int]()
    for row, one in zip(ids, candidates, strict=True):
        row[: len(one)] = [number_of.setdefault(unit, len(number_of)) for unit in one]
    return ids, lengths


@functools.partial(jax.jit, static_argnums=0)
def _expected(utility: str, ids: jax.Array, lengths: jax.Array) -> jax.Array:
    compute = decoding.chrf_utilities if utility == "chrf" else decoding.bleu_utilities
    return decoding.minimum_bayes_risk(compute(ids, lengths))
