"""The translation task: its batches, its network with the loss, and its scores."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import functional, models
from jaxformer.axes import AxisName
from jaxformer.caches import data_cache
from jaxformer.config import to_data
from jaxformer.data.batch import Batch
from jaxformer.data.batch_plan import make_batch_plan, replan
from jaxformer.data.batch_plan import num_rows as rows_of_budget
from jaxformer.data.languages import UNSPACED
from jaxformer.data.normalization import TextNormalizer
from jaxformer.data.pipeline import PlannedPairs, prepare
from jaxformer.data.sources import Parallel
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.errors import ConfigError, DataError
from jaxformer.evaluation.scores import Score, bleu, bleu_words, chrf, moses_bleu, sentence_scores
from jaxformer.functional.tokens import Tokens
from jaxformer.modules import AttentionFunction
from jaxformer.modules.pure import Params, pure
from jaxformer.tasks.base import Network, OnExamples, PlannedData, Say, Task, Trained
from jaxformer.tasks.search import Net
from jaxformer.tasks.tokenizers import make_run_tokenizer, run_tokenizer
from jaxformer.tasks.translation.config import LossConfig, TranslationConfig
from jaxformer.tasks.translation.corpora import Corpora, load_corpora, load_test
from jaxformer.tasks.translation.translator import Translator
from jaxformer.training.progress import Count

DeviceBatch = Batch[jax.Array]


@dataclasses.dataclass(frozen=True)
class TranslationData(PlannedData[Tokenizer]):
    """Tokenized pairs with their batch plans."""

    corpora: Corpora
    vocabulary: Tokenizer
    train: PlannedPairs
    validation: PlannedPairs

    @property
    def report(self) -> Sequence[str]:
        tokens, plan = self.train.tokens, self.train.plan
        shapes = ", ".join(f"{rows}x{length}" for rows, length, _ in plan.shapes)
        return (
            f"training data: {self.corpora.train.report()}; validation: {self.corpora.validation.report()}",
            f"{self.vocabulary.vocab_size:,} pieces; {plan.steps_per_epoch:,} batches an epoch in shapes {shapes}, "
            f"{plan.fill(*tokens.lengths()):.0%} full; {len(plan.skipped):,} pairs too long, "
            f"{len(self.validation.plan.skipped):,} of validation",
        )

    @property
    def lengths(self) -> Sequence[int]:
        return [length for _, length, _ in self.train.plan.shapes]

    def validation_pairs(self, number: int) -> Parallel:
        """Returns the first `number` validation pairs that fit the batch shapes of training."""
        pairs, plan = self.corpora.validation, self.validation.plan
        chosen = np.setdiff1d(np.arange(len(pairs)), plan.skipped)[:number]
        return Parallel(tuple(pairs.source[i] for i in chosen), tuple(pairs.target[i] for i in chosen))


@dataclasses.dataclass(frozen=True)
class TranslationNetwork(Network[DeviceBatch]):
    """An encoder-decoder with label-smoothed cross entropy of the next target token, in one pass or two (R-Drop)."""

    net: Net
    objective: LossConfig
    largest_batch: tuple[int, int]

    @property
    def sharded_axes(self) -> tuple[AxisName, ...]:
        recurrent = isinstance(self.net.config, models.Seq2SeqConfig)  # a step depends on the previous one
        return ("batch",) if recurrent else super().sharded_axes

    def loss(self, params: Params, batch: DeviceBatch, key: jax.Array | None):
        model, loss = self.bound(params, batch), training_loss(self.objective)
        if loss.passes == 2:
            batch = jax.tree.map(functional.duplicate_rows, batch)
        return *model.loss(batch.source, batch.target, labels=batch.labels, loss=loss, key=key), {}

    def validation_loss(self, params: Params, batch: DeviceBatch):
        return *self.bound(params, batch).loss(batch.source, batch.target, labels=batch.labels), {}

    def abstract_batch(self, shape: tuple[int, ...], rows: jax.sharding.Sharding) -> Batch[jax.ShapeDtypeStruct]:
        num_rows, source, target = shape
        place = functools.partial(jax.ShapeDtypeStruct, sharding=rows)
        padded = lambda shape: Tokens(place(shape, jnp.int32), place(shape, jnp.bool_), right_padded=True)
        return Batch(padded((num_rows, source)), padded((num_rows, target)), place((num_rows, target), jnp.int32))

    def shape(self, batch: DeviceBatch) -> tuple[int, ...]:
        num_rows, source = batch.source.shape
        return num_rows, source, batch.target.shape[1]

    def planned_shape(self, num_rows: int, length: int) -> tuple[int, ...]:
        return num_rows, length, length

    def describe(self, shape: tuple[int, ...]) -> str:
        num_rows, source, target = shape
        return f"{num_rows} x {source} source and {num_rows} x {target} target tokens"


def training_loss(config: LossConfig) -> functional.LogitLoss:
    """Returns the loss of a training step."""
    if config.r_drop:
        return functional.RDrop(config.r_drop, config.label_smoothing, config.z_loss)
    return functional.CrossEntropy(config.label_smoothing, config.z_loss)


class Translation(Task[TranslationConfig, Corpora, DeviceBatch, Tokenizer, Translator]):
    """Translation between two languages."""

    name = "translation"
    commands = ("translate", "inspect", "score")
    config = TranslationConfig
    metrics: ClassVar[Mapping[str, bool]] = {"bleu": True}

    def check(self, config: TranslationConfig) -> None:
        if config.train.metric == "bleu" and not config.decode.validation_sentences:
            raise ConfigError("train.metric is bleu, but decode.validation_sentences is 0: nothing is translated")
        if config.decode.validation_sentences:
            bleu_words("", config.data.target_language)  # refuses a language whose package is missing
        if config.decode.coverage_penalty and not config.model.has_attention:
            raise ConfigError("decode.coverage_penalty needs attention, but the model has model.attention none")
        rates = [rate for name, rate in to_data(config.model).items() if name.endswith("dropout")]
        if config.loss.r_drop and not any(rates):
            raise ConfigError(
                f"loss.r_drop {config.loss.r_drop} compares two passes with different dropout, but model.dropout is 0; "
                "raise model.dropout or set loss.r_drop to 0"
            )

    def read(self, config: TranslationConfig) -> Corpora:
        return load_corpora(config.data)

    def read_test(self, config: TranslationConfig, files: Sequence[str | os.PathLike[str]]) -> Corpora:
        return load_test(config.data, files)

    def prepare(self, config: TranslationConfig, corpus: Corpora, run: pathlib.Path) -> TranslationData:
        data, cache = config.data, data_cache(config.data.cache)
        tokenizer = self._tokenizer(config, corpus, run, cache)
        tokens = prepare(
            corpus.train,
            tokenizer,
            cache,
            num_segmentations=data.num_segmentations,
            alpha=data.segmentation_alpha,
            seed=config.seed,
        )
        plan = make_batch_plan(
            *tokens.lengths(),
            seed=config.seed,
            tokens_per_batch=data.tokens_per_batch,
            num_shapes=data.num_shapes,
            max_length=data.max_length,
            length_multiple=data.length_multiple,
        )
        longest, limit = max(length for _, length, _ in plan.shapes), config.model.length_limit
        if limit is not None and longest > limit:
            raise DataError(
                f"batches hold sentences of up to {longest} tokens, but model.max_positions is {limit}; "
                f"lower data.max_length to {limit - limit % data.length_multiple} or raise model.max_positions"
            )
        held_out = prepare(corpus.validation, tokenizer, cache)
        validation = PlannedPairs(held_out, replan(plan, *held_out.lengths()))
        if validation.steps_per_epoch == 0:
            raise DataError("no validation pair is as short as the longest training pair")
        return TranslationData(corpus, tokenizer, PlannedPairs(tokens, plan), validation)

    def _tokenizer(
        self, config: TranslationConfig, corpus: Corpora, run: pathlib.Path, cache: pathlib.Path | None
    ) -> Tokenizer:
        """Returns the run's tokenizer: the saved one, or else one trained on both sides of the training data."""
        data = config.data
        languages = (data.source_language, data.target_language) if data.pretokenize == "moses" else ("", "")
        normalizer = TextNormalizer(data.lowercase, data.pretokenize, *languages)
        size = {"kind": data.tokenizer, "vocab_size": data.vocab_size}
        return make_run_tokenizer(run, corpus.train, cache, **size, normalizer=normalizer)

    def vocabulary(self, run: pathlib.Path) -> Tokenizer:
        return run_tokenizer(run)

    def planned_vocab_size(self, config: TranslationConfig) -> int:
        return config.model.target_vocab_size or config.data.vocab_size

    def smaller_batch(self, config: TranslationConfig, num_rows: int) -> str:
        length = _longest(config)
        return f"--data.tokens_per_batch {num_rows * length}" if num_rows >= rows_of_budget(0, length) else ""

    def network(
        self, config: TranslationConfig, vocab_size: int, attention: AttentionFunction = functional.attention
    ) -> TranslationNetwork:
        for name in ("source_vocab_size", "target_vocab_size"):
            if (size := getattr(config.model, name)) not in (0, vocab_size):
                raise DataError(f"model.{name} is {size}, but the tokenizer has {vocab_size} pieces")
        shape = dataclasses.replace(config.model, source_vocab_size=vocab_size, target_vocab_size=vocab_size)
        if isinstance(shape, models.Seq2SeqConfig):
            net = pure(models.Seq2Seq, shape)
        else:
            net = pure(models.EncoderDecoder, shape, attention=attention)
        length = _longest(config)
        return TranslationNetwork(net, config.loss, (rows_of_budget(config.data.tokens_per_batch, length), length))

    def predictor(self, config: TranslationConfig, vocabulary: Tokenizer, trained: Trained) -> Translator:
        language = config.data.target_language
        return Translator(
            trained.net, trained.params, vocabulary, config.decode, trained.placement, trained.steps, language=language
        )

    def validation_metrics(
        self, config: TranslationConfig, corpus: Corpora, data: TranslationData, predictor: Translator, sums: Any
    ) -> Mapping[str, float]:
        if not config.decode.validation_sentences:
            return {}
        pairs = data.validation_pairs(config.decode.validation_sentences)
        greedy = dataclasses.replace(predictor, decode=config.decode.greedy)
        how = {"lowercase": data.vocabulary.normalizer.lowercase, "language": config.data.target_language}
        return {"bleu": bleu(greedy.translate(pairs.source), pairs.target, **how).value}

    def evaluate(
        self,
        config: TranslationConfig,
        corpus: Corpora,
        predictor: Translator,
        *,
        split: str,
        say: Say,
        on_examples: OnExamples,
    ) -> dict[str, list[Score]]:
        parts = {"validation": corpus.validation} if split == "validation" else corpus.tests
        if not all(map(len, parts.values())):
            raise DataError(f"no {split} data: the run's data.held_out is 0, and it names no files for them")
        tokenizer, scores = predictor.tokenizer, {}
        normalizer = tokenizer.normalizer
        lowercase, language = normalizer.lowercase, config.data.target_language
        bleu_words("", language)  # rejects a language whose package is missing before anything is translated
        if not language:
            say("Moses BLEU is left out: the run's data.target_language is not set")
        elif language in UNSPACED:
            say(f"Moses BLEU is left out: {language}, the run's data.target_language, is written without spaces")
        for name, part in parts.items():
            if part.empty or part.overlong:
                say(f"{name}: {part.report()}")
            began = time.perf_counter()
            progress = Count(len(part), f"sentences of {name}", say)
            warn = lambda message, name=name: say(f"{name}: {message}")
            found = predictor.candidates(part.source, warn=warn, progress=progress)
            best = [candidates[0] for candidates in found]
            translations = [candidate.text for candidate in best]
            say(f"{name}: {len(part):,} sentences translated in {time.perf_counter() - began:.1f} s")
            own = sentence_scores(translations, part.target, lowercase=lowercase, language=language)
            rows = zip(best, part.source, part.target, own, strict=True)
            on_examples(
                name,
                [
                    {"source": source, "reference": target, "hypothesis": c.text, "score": c.score, **own}
                    for c, source, target, own in rows
                ],
            )
            scores[name] = [
                bleu(translations, part.target, lowercase=lowercase, language=language),
                chrf(translations, part.target, lowercase=lowercase),
            ]
            if language and language not in UNSPACED:
                words = [tokenizer.normalized(c.tokens) for c in best] if normalizer.pretokenize == "moses" else None
                how = {"words": words, "cased": words is not None and not lowercase}
                scores[name].append(moses_bleu(translations, part.target, language=language, **how))
        return scores


def _longest(config: TranslationConfig) -> int:
    """Returns the padded length of the longest sentences."""
    return config.data.max_length + -config.data.max_length % config.data.length_multiple


TASK = Translation()
