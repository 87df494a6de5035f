"""Functions that tasks with several corpora share: tokens of each for the log, and the means of scores."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.errors import DataError
from jaxformer.evaluation.resampling import Sample
from jaxformer.evaluation.scores import Score
from jaxformer.functional.tokens import Tokens
from jaxformer.tasks.base import CorpusScores


def check_different(fingerprints: Mapping[str, str]) -> None:
    """Checks the hashes of corpora by name."""
    seen: dict[str, str] = {}
    for name, fingerprint in fingerprints.items():
        if fingerprint in seen:
            raise DataError(
                f"data.corpora.{seen[fingerprint]} and data.corpora.{name} hold the same text; give one more weight"
            )
        seen[fingerprint] = name


def tokens_by_corpus(
    tokens: Tokens[jax.Array], corpora: jax.Array | None, names: Sequence[str]
) -> dict[str, jax.Array]:
    """Returns the number of tokens of each corpus in a batch, as "tokens/NAME"; nothing for a batch of one corpus."""
    if corpora is None:
        return {}
    assert tokens.valid is not None
    numbers = tokens.valid.sum(1).astype(jnp.float32)
    return {f"tokens/{name}": jnp.where(corpora == i, numbers, 0).sum() for i, name in enumerate(names)}


def mean_scores(found: Sequence[CorpusScores]) -> CorpusScores:
    """Returns the mean of each score that all corpora have.

    >>> one, two = (CorpusScores(name, [Score("BLEU", x, "...")]) for name, x in (("a", 30.0), ("b", 31.0)))
    >>> print(mean_scores([one, two]).scores[0])
    BLEU 30.50  [mean of 2 corpora]
    """
    by_name = [{score.name: score for score in scored.scores} for scored in found]
    means = []
    for name, first in by_name[0].items():
        each = [scores[name].value for scores in by_name if name in scores]
        if len(each) == len(by_name):
            means.append(Score(name, sum(each) / len(each), f"mean of {len(each)} corpora", first.decimals))
    return CorpusScores("mean", means)


def with_samples(losses: np.ndarray, nats: Score, perplexity: Score) -> list[Score]:
    """Returns the scores of a language model with their samples: parts of the text.

    Args:
      losses: the sum of ``-log p`` of each part and its number of tokens, ``[parts, 2]``.
    """
    mean = lambda sums: float(sums[0]) / float(sums[1])
    samples = Sample(lambda: losses, mean), Sample(lambda: losses, lambda sums: math.exp(min(mean(sums), 700)))
    return [dataclasses.replace(score, sample=x) for score, x in zip((nats, perplexity), samples, strict=True)]
