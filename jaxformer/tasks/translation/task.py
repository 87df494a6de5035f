"""The translation task: its batches, its network with the loss, and its scores."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np

from jaxformer import functional, models
from jaxformer.caches import data_cache
from jaxformer.data.batch import Batch
from jaxformer.data.batch_plan import make_batch_plan, num_rows, replan
from jaxformer.data.pipeline import PlannedPairs, prepare
from jaxformer.data.sources import Parallel
from jaxformer.errors import DataError
from jaxformer.evaluation.scores import (
    Score,
    bleu,
    bleu_words,
    chrf,
    moses_bleu,
    rouge,
    sentence_rouge,
    sentence_scores,
)
from jaxformer.modules import AttentionFunction
from jaxformer.modules.pure import pure
from jaxformer.tasks.base import CorpusScores, Data, LossSums, Network, Say, Sums, Task, Trained
from jaxformer.tasks.search import Candidate
from jaxformer.tasks.text import check_vocab_size, make_run_tokenizer, run_tokenizer
from jaxformer.tasks.translation.config import LossConfig, TranslationConfig
from jaxformer.tasks.translation.corpora import Corpora, load_corpora, load_test
from jaxformer.tasks.translation.translator import Translator
from jaxformer.tokenizers.base import Tokenizer
from jaxformer.tokenizers.moses import UNSPACED
from jaxformer.tokenizers.normalization import TextNormalizer
from jaxformer.tokenizers.special_tokens import SpecialTokens
from jaxformer.training.progress import Count

Model = models.EncoderDecoder | models.Seq2Seq
TranslationData = Data[PlannedPairs]
TranslationNetwork = Network[Model, Batch[jax.Array]]


def read(config: TranslationConfig) -> Corpora:
    """Reads or generates the corpora; refuses a language without a package for its BLEU before that."""
    bleu_words("", config.data.target_language)
    return load_corpora(config.data)


def read_test(config: TranslationConfig, files: Sequence[str | os.PathLike[str]]) -> Corpora:
    """Reads other test data: see `load_test`."""
    bleu_words("", config.data.target_language)
    return load_test(config.data, files)


def prepare_pairs(config: TranslationConfig, corpus: Corpora, run: pathlib.Path) -> TranslationData:
    """Tokenizes the pairs and plans their batches, with the tokenizer of the run, trained on both sides of the data."""
    data, cache = config.data, data_cache(config.data.cache)
    languages = (data.source_language, data.target_language) if data.pretokenize == "moses" else ("", "")
    normalizer = TextNormalizer(data.lowercase, data.pretokenize, *languages)
    tokenizer = make_run_tokenizer(
        run, corpus.train, cache, kind=data.tokenizer, vocab_size=data.vocab_size, normalizer=normalizer
    )
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
    lengths, limit = [length for _, length, _ in plan.shapes], config.model.length_limit
    if limit is not None and max(lengths) > limit:
        raise DataError(
            f"batches hold sentences of up to {max(lengths)} tokens, but model.max_positions is {limit}; "
            f"lower data.max_length to {limit - limit % data.length_multiple} or raise model.max_positions"
        )
    held_out = prepare(corpus.validation, tokenizer, cache)
    validation = PlannedPairs(held_out, replan(plan, *held_out.lengths()))
    if validation.steps_per_epoch == 0:
        raise DataError("no validation pair is as short as the longest training pair")
    shapes = ", ".join(f"{rows}x{length}" for rows, length, _ in plan.shapes)
    report = (
        f"training data: {corpus.train.report()}; validation: {corpus.validation.report()}",
        f"{tokenizer.vocab_size:,} pieces; {plan.steps_per_epoch:,} batches an epoch in shapes {shapes}, "
        f"{plan.fill(*tokens.lengths()):.0%} full; {len(plan.skipped):,} pairs too long, "
        f"{len(validation.plan.skipped):,} of validation",
    )
    return Data(PlannedPairs(tokens, plan), validation, tokenizer, report, lengths)


def network(
    config: TranslationConfig, vocab_size: int, attention: AttentionFunction = functional.attention
) -> TranslationNetwork:
    """Returns an encoder-decoder with label-smoothed cross entropy of the next target token."""
    check_vocab_size("source_vocab_size", config.model.source_vocab_size, vocab_size)
    check_vocab_size("target_vocab_size", config.model.target_vocab_size, vocab_size)
    shape = dataclasses.replace(config.model, source_vocab_size=vocab_size, target_vocab_size=vocab_size)
    length = config.data.max_length + -config.data.max_length % config.data.length_multiple  # padded
    loss = training_loss(config.loss)

    def training(model: Model, batch: Batch[jax.Array], key: jax.Array | None) -> LossSums:
        if loss.passes == 2:
            batch = jax.tree.map(functional.duplicate_rows, batch)
        return *model.loss(batch.source, batch.target, labels=batch.labels, loss=loss, key=key), {}

    def validation(model: Model, batch: Batch[jax.Array]) -> LossSums:
        return *model.loss(batch.source, batch.target, labels=batch.labels), {}

    def row(length: int) -> Batch[np.ndarray]:
        return Batch.from_tokens([], [], (1, length, length), SpecialTokens())

    largest = num_rows(config.data.tokens_per_batch, length), length
    if isinstance(shape, models.Seq2SeqConfig):  # a step depends on the previous one
        net = pure(models.Seq2Seq, shape)
        return Network(net, training, row, largest, validation, sharded_axes=("batch",))
    return Network(pure(models.EncoderDecoder, shape, attention=attention), training, row, largest, validation)


def training_loss(config: LossConfig) -> functional.LogitLoss:
    """Returns the loss of a training step, which has one pass, or two with R-Drop."""
    if config.r_drop:
        return functional.RDrop(config.r_drop, config.label_smoothing, config.z_loss)
    return functional.CrossEntropy(config.label_smoothing, config.z_loss)


def predictor(config: TranslationConfig, vocabulary: Tokenizer, trained: Trained) -> Translator:
    """Returns the translator of a run."""
    language = config.data.target_language
    return Translator(
        trained.net, trained.params, vocabulary, config.decode, trained.placement, trained.steps, language=language
    )


def validation_pairs(corpus: Corpora, data: TranslationData, number: int) -> Parallel:
    """Returns the first `number` validation pairs that fit the batch shapes of training."""
    pairs = corpus.validation
    chosen = np.setdiff1d(np.arange(len(pairs)), data.validation.plan.skipped)[:number]
    return Parallel(tuple(pairs.source[i] for i in chosen), tuple(pairs.target[i] for i in chosen))


def measure(
    config: TranslationConfig, corpus: Corpora, data: TranslationData, translator: Translator, sums: Sums
) -> Mapping[str, float]:
    """Returns the BLEU, and with `decode.rouge` the ROUGE-L, of greedy translations of some validation pairs."""
    if not config.decode.validation_sentences:
        return {}
    pairs = validation_pairs(corpus, data, config.decode.validation_sentences)
    found = dataclasses.replace(translator, decode=config.decode.greedy).translate(pairs.source)
    lowercase, language = translator.tokenizer.normalizer.lowercase, config.data.target_language
    metrics = {"bleu": bleu(found, pairs.target, lowercase=lowercase, language=language).value}
    if config.decode.rouge:
        metrics["rouge_l"] = rouge(found, pairs.target, language=language)[-1].value
    return metrics


def score(
    config: TranslationConfig, corpus: Corpora, translator: Translator, split: str, say: Say
) -> Iterator[CorpusScores]:
    """Translates and scores each test corpus, or the validation pairs."""
    parts = {"validation": corpus.validation} if split == "validation" else corpus.tests
    if not all(map(len, parts.values())):
        raise DataError(f"no {split} data: the run's data.held_out is 0, and it names no files for them")
    language = config.data.target_language
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
        best = [first for first, *_ in translator.candidates(part.source, warn=warn, progress=progress)]
        say(f"{name}: {len(part):,} sentences translated in {time.perf_counter() - began:.1f} s")
        yield _scored(name, best, part, translator, language)


def _scored(name: str, best: list[Candidate], part: Parallel, translator: Translator, language: str) -> CorpusScores:
    """Returns the scores of translations and, for each of them, its own."""
    normalizer, texts = translator.tokenizer.normalizer, [candidate.text for candidate in best]
    lowercase = normalizer.lowercase
    scores: list[Score] = [
        bleu(texts, part.target, lowercase=lowercase, language=language),
        chrf(texts, part.target, lowercase=lowercase),
    ]
    if language and language not in UNSPACED:
        moses = normalizer.pretokenize == "moses"
        words = [translator.tokenizer.normalized(candidate.tokens) for candidate in best] if moses else None
        scores.append(moses_bleu(texts, part.target, language=language, words=words, cased=moses and not lowercase))
    by_sentence = sentence_scores(texts, part.target, lowercase=lowercase, language=language)
    if translator.decode.rouge:
        scores += rouge(texts, part.target, language=language)
        each = sentence_rouge(texts, part.target, language=language)
        by_sentence = [
            row | {key: round(value, 2) for key, value in own.items()}
            for row, own in zip(by_sentence, each, strict=True)
        ]
    examples = [
        {"source": source, "reference": target, "hypothesis": candidate.text, "score": candidate.score, **values}
        for candidate, source, target, values in zip(best, part.source, part.target, by_sentence, strict=True)
    ]
    return CorpusScores(name, scores, examples)


TASK = Task(
    config=TranslationConfig,
    read=read,
    read_test=read_test,
    prepare=prepare_pairs,
    vocabulary=run_tokenizer,
    vocab_size=lambda config: config.model.target_vocab_size or config.data.vocab_size,
    network=network,
    predictor=predictor,
    metrics={"bleu": True, "rouge_l": True},
    measure=measure,
    score=score,
    commands=("translate", "inspect", "score"),
)
