"""The base of predictors that search: ensembles, limits on the vocabulary, and compiled programs."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import jax

from jaxformer.data.sources import read_lines
from jaxformer.decoding import Hypotheses
from jaxformer.errors import ConfigError, DataError
from jaxformer.files import local_path
from jaxformer.hardware import num_cores
from jaxformer.modules.pure import Params
from jaxformer.reprs import brief
from jaxformer.sharding import Placement
from jaxformer.tasks.batched import batched, in_order
from jaxformer.tasks.config import Beam, GenerationConfig, MinimumRisk, Sample, SearchConfig
from jaxformer.tasks.minimum_bayes_risk import ranked
from jaxformer.tasks.search import (
    Candidate,
    Net,
    Options,
    Prepare,
    Sources,
    VocabularyLimits,
    Weights,
    candidate,
    on_one_device,
    search,
    weights_of,
)
from jaxformer.tokenizers.base import Tokenizer

MOST_THREADS = 8
"""The largest number of batches that are searched at once: each has its own caches."""


class Member(NamedTuple):
    """Another model of an ensemble."""

    net: Net
    params: Params

    __repr__ = brief


class GenerationMixin:
    """A predictor that generates text by a search; a frozen dataclass."""

    net: Net
    params: Params
    tokenizer: Tokenizer
    decode: GenerationConfig
    others: tuple[Member, ...]
    """The other models of an ensemble."""
    programs: set[object]
    """The compiled programs in use, one for each batch shape."""
    placement: Placement | None = None
    language: str = ""
    """The language of the texts, which selects the BLEU tokenizer if BLEU is the utility."""

    def ensemble_with(self, others: Sequence[Self]) -> Self:
        """Returns an ensemble of this model and others; any of them may be an ensemble.

        Raises:
          ConfigError: the tokenizers differ, or the settings of the search need a single model.
        """
        for number, other in enumerate(others, 2):
            if other.tokenizer.fingerprint != self.tokenizer.fingerprint:
                raise ConfigError(f"the models of an ensemble must have one tokenizer; that of model {number} differs")
        if others and self.decode.coverage_penalty:
            raise ConfigError("coverage_penalty needs the attention of a single model; leave it out of an ensemble")
        members = tuple(member for other in others for member in other._models)
        return dataclasses.replace(self, others=(*self.others, *members))  # pyright: ignore[reportArgumentType] - a dataclass

    @property
    def _models(self) -> tuple[Member, ...]:
        """The model, and the others of an ensemble."""
        return (Member(self.net, self.params), *self.others)

    def _shared(self, rows: int) -> int:
        """Returns a number of rows rounded up to a multiple of the devices that share a batch."""
        return rows if self.placement is None else rows + -rows % self.placement.num_batch_shards

    @property
    def _num_threads(self) -> int:
        """The number of batches to search at once: on a CPU, whose cores few small operations can share, one a core."""
        on_cpu = on_one_device(self.placement) and jax.default_backend() == "cpu"
        return min(MOST_THREADS, num_cores()) if on_cpu and not jax.config.jax_disable_jit else 1

    @functools.cached_property
    def _weights(self) -> tuple[Weights, ...]:
        nets, params = zip(*self._models, strict=True)
        return weights_of(nets, params, self.placement)

    @functools.cached_property
    def _limits(self) -> VocabularyLimits:
        return limits_of(self.decode, self.tokenizer)

    def _hypotheses(
        self,
        decode: SearchConfig,
        batch: Sources,
        *,
        number: int,
        max_length: int,
        rounds: int | None = None,
        is_open: bool = False,
        ends: tuple[int, ...] | None = None,
        prepare: Prepare | None = None,
    ) -> Callable[[], Hypotheses]:
        """Returns a function that searches a batch, compiled, for `number` hypotheses of each input.

        Args:
          rounds: folded into the key of the draws, if it is given.
          is_open, ends: see `Options`.
          prepare: a function that the program applies to the inputs before the model encodes them.

        Raises:
          ConfigError: there are too many hypotheses of an input.
        """
        if self.placement is not None:
            here = self.placement.rows_here(len(batch.numbers))
            batch = self.placement.assemble(jax.tree.map(lambda x: x[here], batch))
        vocab_size = self.tokenizer.vocab_size
        if number * vocab_size >= 2**31:
            name = "the beam's size" if isinstance(decode.finder, Beam) else "the number of texts"
            raise ConfigError(f"{name} times the vocabulary must be below 2**31, got {number} x {vocab_size}")
        key = jax.random.key(decode.finder.seed if isinstance(decode.finder, Sample) else 0)
        if rounds is not None:
            key = jax.random.fold_in(key, rounds)
        nets = tuple(model.net for model in self._models)
        special = self.tokenizer.special
        options = Options(nets, decode.static, special, number, max_length, self._limits, is_open, ends, prepare)
        self.programs.add((options, *(x.shape for x in jax.tree.leaves(batch))))
        given = (self._weights, batch, key)
        if jax.config.jax_disable_jit:  # of this thread, the only one then
            return functools.partial(search, options, self.placement, *given)
        return functools.partial(search.lower(options, self.placement, *given).compile(), *given)

    def _best(
        self,
        search: Callable[[list[int]], Callable[[], Hypotheses]],
        lengths: Sequence[int],
        rows: int,
        n_best: int,
        progress: Callable[[int], None] | None,
    ) -> list[list[Candidate]]:
        """Returns the best texts of each input; `search` returns the search of a batch, from the inputs' indices."""
        results = batched(search, lengths, rows, threads=self._num_threads, progress=progress)
        texts = lambda found: [candidate(found, rank, self.tokenizer) for rank in range(len(found.lengths))]
        return self._ranked(in_order((index, texts(found)) for index, found in results), n_best)

    def _ranked(self, candidates: list[list[Candidate]], n_best: int) -> list[list[Candidate]]:
        """Returns the best candidates of each input: by score, or by minimum Bayes risk.

        A beam that has found fewer, such as all texts of one token, has empty slots with a score of minus infinity.
        """
        risk = self.decode.search
        if isinstance(risk, MinimumRisk) and candidates:
            candidates = ranked([own[: risk.num_candidates] for own in candidates], risk.utility, self.language)
        return [[*own[:1], *(c for c in own[1:n_best] if c.score > -math.inf)] for own in candidates]


def limits_of(decode: GenerationConfig, tokenizer: Tokenizer) -> VocabularyLimits:
    """Returns the limits of `decode.forbid`, in every segmentation, and of `decode.shortlist`.

    Raises:
      ConfigError: a phrase can be segmented in too many ways, or the shortlist is a URL.
      DataError: the file of the shortlist is missing, or holds no word.
    """
    both = lambda texts: [x for text in texts for x in (text, f" {text}")]  # at the start of a text and after a space
    phrases = tokenizer.normalizer(decode.forbidden_phrases, "target")
    ways = {way for text in both(phrases) for way in tokenizer.segmentations(text)}
    limits = VocabularyLimits(sequences=tuple(sorted(ways)))
    if not decode.shortlist:
        return limits
    words = [word for line in read_lines(local_path(decode.shortlist)) for word in line.split()]
    if not words:
        raise DataError(f"{decode.shortlist} holds no word")
    words = tokenizer.normalizer(words, "target")
    pieces = {int(token) for ids in tokenizer.encode_normalized(both(words)) for token in ids}
    return limits._replace(allowed=tuple(sorted(pieces | {tokenizer.special.eos})))
