"""The base of predictors that search: ensembles, limits on the vocabulary, compiled programs, minimum Bayes risk."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Self

import jax
import numpy as np

from jaxformer import decoding
from jaxformer.data.lines import read_lines
from jaxformer.decoding import Hypotheses
from jaxformer.errors import ConfigError, DataError
from jaxformer.evaluation.scores import bleu_words
from jaxformer.files import local_path
from jaxformer.hardware import num_cores
from jaxformer.inspection import beams
from jaxformer.modules.pure import Params
from jaxformer.reprs import as_html, brief, brief_with_methods
from jaxformer.sharding import Placement
from jaxformer.tasks.batched import batched, in_order
from jaxformer.tasks.config import Beam, GenerationConfig, MinimumRisk, Sample, SearchConfig
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
    traced,
    weights_of,
)
from jaxformer.tokenizers.base import Tokenizer
from jaxformer.tokenizers.moses import two_letters

MOST_THREADS = 8
"""The largest number of batches that are searched at once: each has its own caches."""

_TRACED = ("jax_default_matmul_precision", "jax_default_prng_impl", "jax_enable_x64", "jax_threefry_partitionable")
"""The settings of JAX that a compiled program depends on."""

_SIZES = tuple(2**i for i in range(4, 20))
"""The padded lengths of candidates in characters or words: one program is compiled for each that occurs."""


class Member(NamedTuple):
    """Another model of an ensemble."""

    net: Net
    params: Params

    __repr__ = brief


@dataclasses.dataclass(frozen=True)
class TextPredictor:
    """A predictor that generates text by a search."""

    net: Net
    params: Params
    tokenizer: Tokenizer
    decode: GenerationConfig
    placement: Placement | None = None
    """The mesh whose devices share the inputs; None for one device."""
    steps: tuple[int, ...] = ()
    """The training steps whose parameters these are; several if they were averaged."""
    others: tuple[Member, ...] = ()
    """The other models of an ensemble, with the same tokenizer."""
    language: str = ""
    """The code of the language of the texts, which selects the BLEU tokenizer if BLEU is the utility."""
    programs: dict[object, Any] = dataclasses.field(default_factory=dict, init=False, repr=False, compare=False)
    """The compiled programs, one for each kind of search, number of inputs and padded length."""

    __repr__ = brief_with_methods
    _repr_html_ = as_html

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"programs": {}}  # nothing can copy or pickle a program

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
        return dataclasses.replace(self, others=(*self.others, *members))

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
        trace: decoding.BeamTrace | None = None,
    ) -> Callable[[], Hypotheses]:
        """Returns a function that searches a batch, compiled, for `number` hypotheses of each input.

        Args:
          rounds: folded into the key of the draws, if it is given.
          is_open, ends: see `Options`.
          prepare: a function that the program applies to the inputs before the model encodes them.
          trace: see `decoding.beam_search`; the search is then not compiled as a whole.
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
        if trace is not None:
            return functools.partial(traced, options, trace, self._weights, batch, key)
        given = (self._weights, batch, key)
        if jax.config.jax_disable_jit:  # of this thread, the only one then
            return functools.partial(search, options, self.placement, *given)
        traced_with = (getattr(jax.config, name, None) for name in _TRACED)  # a version of JAX may lack some
        kind = (options, *(x.shape for x in jax.tree.leaves(batch)), *traced_with)
        if kind not in self.programs:
            self.programs[kind] = search.lower(options, self.placement, *given).compile()
        return functools.partial(self.programs[kind], *given)

    def _tree(self, search: Callable[[decoding.BeamTrace], Callable[[], Hypotheses]]) -> beams.Tree:
        """Returns the hypotheses of each step of a beam search; none of another search, or on several devices."""
        if not isinstance(self.decode.finder, Beam) or not on_one_device(self.placement):
            return ()
        trace = decoding.BeamTrace()
        search(trace)()
        return beams.tree(trace, lambda token: self.tokenizer.pieces([token])[0])

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
        most = None if isinstance(self.decode.search, MinimumRisk) else n_best
        texts = lambda found: [candidate(found, rank, self.tokenizer) for rank in range(len(found.lengths))[:most]]
        return self._ranked(in_order((index, texts(found)) for index, found in results), n_best)

    def _ranked(self, candidates: list[list[Candidate]], n_best: int) -> list[list[Candidate]]:
        """Returns the best candidates of each input: by score, or by minimum Bayes risk.

        A beam that has found fewer, such as all texts of one token, has empty slots with a score of minus infinity,
        which are no candidates.
        """
        candidates = [[*own[:1], *(c for c in own[1:] if c.score > -math.inf)] for own in candidates]
        risk = self.decode.search
        if isinstance(risk, MinimumRisk) and candidates:
            candidates = ranked(
                [own[: risk.num_candidates] for own in candidates], risk.utility, two_letters(self.language)
            )
        return [own[:n_best] for own in candidates]


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
) -> list[np.ndarray]:
    """Returns the mean utility of each candidate, ``[K]`` for each of B sentences, whose candidates are the references.

    Utilities are sacrebleu's sentence scores, from 0 to 100: chrF2, or BLEU without the n-gram orders that a text is
    too short for.

    Args:
      texts: the candidates of each of B sentences.
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
    return jax.device_get([_expected(utility, *_numbered(candidates)) for candidates in units])


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
