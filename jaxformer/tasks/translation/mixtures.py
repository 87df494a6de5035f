"""Translation with several corpora: their batches, and scores by corpus with the mean."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxformer.caches import data_cache
from jaxformer.data.batch_plan import BatchPlan, make_batch_plan, replan
from jaxformer.data.mixture import MixturePlan, PlannedMixture, PlannedTagged, TaggedPairs, make_mixture_plan
from jaxformer.data.pairs import Pairs
from jaxformer.data.pipeline import SMALL, prepare
from jaxformer.data.units import Share
from jaxformer.data.weights import make_phases
from jaxformer.errors import ConfigError, DataError
from jaxformer.tasks import sharing
from jaxformer.tasks.base import CorpusScores, Data, InTurn
from jaxformer.tasks.mixtures import mean_scores
from jaxformer.tasks.translation.config import DataConfig, TranslationConfig
from jaxformer.tasks.translation.corpora import Corpora, Mixture
from jaxformer.tasks.translation.translator import Translator
from jaxformer.tokenizers.base import Tokenizer


def plan_batches(config: TranslationConfig, sources: np.ndarray, targets: np.ndarray) -> BatchPlan:
    """Plans the batches of training pairs with these lengths."""
    data = config.data
    return make_batch_plan(
        sources,
        targets,
        seed=config.seed,
        tokens_per_batch=data.tokens_per_batch,
        num_shapes=data.num_shapes,
        max_length=data.max_length,
        length_multiple=data.length_multiple,
    )


def starts(data: DataConfig, tokenizer: Tokenizer, languages: tuple[str, str]) -> tuple[tuple[int, ...], ...]:
    """Returns the tokens for languages that each source and each target begins with.

    Raises:
      ConfigError: a language is not set.
    """
    if data.tags == "none":
        return (), ()
    if data.tags == "both" and not all(languages):
        missing = "target_language" if languages[0] else "source_language"
        raise ConfigError(f"data.tags both needs the languages of the pairs: set data.{missing}")
    source, target = (tuple(tokenizer.tags[x] for x in [code] if x in tokenizer.tags) for code in languages)
    return {"source": (target, ()), "target": ((), target), "both": (source, target)}[data.tags]


def prepare_mixture(
    config: TranslationConfig, corpus: Mixture, tokenizer: Tokenizer, about: Sequence[str], **drawn: Any
) -> Data[PlannedMixture | PlannedTagged]:
    """Tokenizes the pairs of all corpora with one vocabulary, and plans their batches.

    Args:
      about: lines of the report about the vocabulary.
      drawn: the segmentations of training pairs, for `pipeline.prepare`.

    Raises:
      ConfigError: a corpus has no usable pair, or a weight without an effect.
      DataError: no validation pair of a corpus is short enough.
    """
    data, cache = config.data, data_cache(config.data.cache)

    def tagged(name: str, pairs: Pairs, share: Share, **drawn: Any) -> TaggedPairs:
        tokens = prepare(pairs, tokenizer, cache, **drawn, share=share)
        return TaggedPairs(tokens, *starts(data, tokenizer, data.languages(name)))

    parts, validation = dict[str, TaggedPairs](), dict[str, TaggedPairs]()
    for name, part in corpus.parts.items():
        share = sharing.share_of_run(cache, part.train.num_lines, is_large=len(part.train) > SMALL)
        parts[name] = tagged(name, part.train, share, **drawn)
        validation[name] = tagged(name, part.validation, share)
    plan = plan_batches(config, *_lengths(parts.values()))
    names, numbers = [f"data.corpora.{name}" for name in parts], [len(part.tokens) for part in parts.values()]
    phases = lambda usable: make_phases(data.corpora, sizes=usable, temperature=data.temperature)
    mixture = make_mixture_plan(numbers, plan, phases, names=names, mixed=data.mix_in_batch)
    held_out = dict[str, PlannedTagged]()
    for name, pairs in validation.items():
        held_out[name] = PlannedTagged(pairs, replan(plan, *pairs.lengths()))
        if held_out[name].steps_per_epoch == 0:
            raise DataError(f"data.corpora.{name}: no validation pair is as short as the longest training pair")
    shapes = ", ".join(f"{rows}x{length}" for rows, length, _ in plan.shapes)
    report = (
        *about,
        *_reports(corpus, mixture, config.train.steps),
        f"{tokenizer.vocab_size:,} pieces; batches in shapes {shapes}; {len(plan.skipped):,} pairs too long",
    )
    train = PlannedMixture(tuple(parts.values()), mixture)
    return Data(train, InTurn(held_out), tokenizer, report, [length for _, length, _ in plan.shapes])


def _lengths(parts: Iterable[TaggedPairs]) -> list[np.ndarray]:
    """Returns the lengths of the sources and of the targets of all corpora, one corpus after another."""
    return [np.concatenate(side) for side in zip(*(part.lengths() for part in parts), strict=True)]


def _reports(corpus: Mixture, plan: MixturePlan, steps: int) -> Iterator[str]:
    """Yields one line a corpus, with its share of the pairs of all steps."""
    given = plan.given(steps)
    for (name, part), rows, sizes, skipped in zip(corpus.parts.items(), given, plan.sizes, plan.skipped, strict=True):
        left_out = (
            f", {corpus.left_out[name]:,} left out for the held-out pairs of others" if corpus.left_out[name] else ""
        )
        yield (
            f"{name}: {part.train.report()}{left_out}, {len(skipped):,} of them too long; {rows / given.sum():.1%} of "
            f"the pairs of {steps:,} steps, {rows / sizes.sum():.1f} passes; validation: {part.validation.report()}"
        )


def only(config: TranslationConfig, name: str) -> TranslationConfig:
    """Returns the configuration of one of the corpora alone."""
    return dataclasses.replace(config, data=config.data.only(name))


def into(translator: Translator, data: DataConfig, name: str) -> Translator:
    """Returns the translator between the languages of a corpus."""
    source, target = data.languages(name)
    return dataclasses.replace(translator, language=target, source_language=source)


def measure_each(
    config: TranslationConfig,
    corpus: Mixture,
    data: Data[Any],
    translator: Translator,
    measure: Callable[[TranslationConfig, Corpora, Data[Any], Translator], Mapping[str, float]],
) -> dict[str, float]:
    """Returns the metrics of each corpus, as "bleu/NAME", and their means."""
    assert isinstance(data.validation, InTurn)
    found = {
        name: measure(
            only(config, name),
            part,
            dataclasses.replace(data, validation=data.validation.parts[name]),
            into(translator, config.data, name),
        )
        for name, part in corpus.parts.items()
    }
    metrics = next(iter(found.values()))
    means = {metric: sum(values[metric] for values in found.values()) / len(found) for metric in metrics}
    return means | {f"{metric}/{name}": values[metric] for name, values in found.items() for metric in metrics}


def score_each(
    config: TranslationConfig,
    corpus: Mixture,
    translator: Translator,
    score: Callable[[TranslationConfig, Corpora, Translator], Iterator[CorpusScores]],
) -> Iterator[CorpusScores]:
    """Yields the scores of each corpus, by its name, and then the means of those that all corpora have."""
    found: list[CorpusScores] = []
    for name, part in corpus.parts.items():
        for scored in score(only(config, name), part, into(translator, config.data, name)):
            found.append(dataclasses.replace(scored, corpus=name))
            yield found[-1]
    yield mean_scores(found)
