"""Parts of the predictors of several tasks: the transforms that settings ask for, and the scores of given texts."""

from __future__ import annotations

import dataclasses

from jaxformer import decoding
from jaxformer.tasks.config import SamplingConfig


@dataclasses.dataclass(frozen=True)
class Scored:
    """A given text as a model sees it: its tokens, and the log-probability of each, given those before it."""

    tokens: tuple[str, ...]
    token_log_probs: tuple[float, ...]

    @property
    def log_prob(self) -> float:
        """The log-probability of the text."""
        return sum(self.token_log_probs)

    @property
    def mean(self) -> float:
        """The mean log-probability of a token; 0 for no tokens."""
        return self.log_prob / max(1, len(self.token_log_probs))


def sampling_transforms(decode: SamplingConfig) -> list[decoding.Transform]:
    """Returns the transforms that settings of a distribution ask for, in the order of Hugging Face."""
    asked = (
        (decode.temperature not in (0, 1), lambda: decoding.temperature(decode.temperature)),
        (decode.top_k, lambda: decoding.top_k(decode.top_k)),
        (decode.top_p < 1, lambda: decoding.top_p(decode.top_p)),
        (decode.min_p, lambda: decoding.min_p(decode.min_p)),
    )
    return [make() for wanted, make in asked if wanted]
