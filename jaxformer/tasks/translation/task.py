"""The translation task: its batches, its network with the loss, and its scores."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxformer import functional, hardware, models
from jaxformer.caches import data_cache
from jaxformer.data import pipeline
from jaxformer.data.batch import Batch
from jaxformer.data.batch_plan import BatchPlan, num_rows, replan
from jaxformer.data.mixture import PlannedTagged, TaggedPairs
from jaxformer.data.pairs import Parallel
from jaxformer.data.pipeline import SMALL, PlannedPairs, TokenizedPairs, prepare
from jaxformer.data.units import Share
from jaxformer.errors import DataError, plural
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
from jaxformer.functional.dropout import fold_in_name
from jaxformer.modules import AttentionFunction
from jaxformer.modules.pure import pure
from jaxformer.tasks import registry, sharing
from jaxformer.tasks.base import CorpusScores, Data, LossSums, Network, Say, Sums, Task, Trained
from jaxformer.tasks.mixtures import check_different, tokens_by_corpus
from jaxformer.tasks.search import Candidate
from jaxformer.tasks.text import check_vocab_size, make_run_tokenizer, run_tokenizer
from jaxformer.tasks.translation import mixtures
from jaxformer.tasks.translation.config import LossConfig, TranslationConfig
from jaxformer.tasks.translation.corpora import Corpora, Mixture, load_corpora, load_mixture, load_test
from jaxformer.tasks.translation.translator import Translator
from jaxformer.tokenizers.base import Tokenizer
from jaxformer.tokenizers.moses import UNSPACED, two_letters
from jaxformer.tokenizers.normalization import TextNormalizer
from jaxformer.tokenizers.special_tokens import SpecialTokens
from jaxformer.training.progress import Count

Model = models.EncoderDecoder | models.Seq2Seq
TranslationData = Data[PlannedPairs]
SIDES = "source", "target"
TranslationNetwork = Network[Model, Batch[jax.Array]]


def read(config: TranslationConfig) -> Corpora | Mixture:
    """Reads or generates the corpora; refuses a language without a package for its BLEU before that."""
    data = config.data
    for _, language in data.directions:
        bleu_words("", two_letters(language))
    if not data.corpora:
        return load_corpora(data)
    mixture = load_mixture(data)
    check_different({name: part.train.fingerprint for name, part in mixture.parts.items()})
    return mixture


def read_test(config: TranslationConfig, files: Sequence[str | os.PathLike[str]]) -> Corpora:
    """Reads other test data: see `load_test`."""
    return load_test(config.data, files)


def prepare_pairs(config: TranslationConfig, corpus: Corpora | Mixture, run: pathlib.Path) -> Data[Any]:
    """Tokenizes the pairs and plans their batches, with the tokenizer of the run, trained on both sides of the data."""
    cache = data_cache(config.data.cache)
    tokenizer, about = _tokenizer(config, corpus, run)
    if isinstance(corpus, Mixture):
        prepared = mixtures.prepare_mixture(config, corpus, tokenizer, about, **_segmentations(config))
        check_positions(config, prepared.lengths)
        return prepared
    share = sharing.share_of_run(cache, corpus.train.num_lines, is_large=len(corpus.train) > SMALL)
    tokens = prepare(corpus.train, tokenizer, cache, **_segmentations(config), share=share)
    held_out = prepare(corpus.validation, tokenizer, cache, share=share)
    if config.data.tags != "none":
        starts = mixtures.starts(config.data, tokenizer, (config.data.source_language, config.data.target_language))
        tokens, held_out = TaggedPairs(tokens, *starts), TaggedPairs(held_out, *starts)
    plan = mixtures.plan_batches(config, *tokens.lengths())
    lengths = [length for _, length, _ in plan.shapes]
    check_positions(config, lengths)
    validation = _planned(held_out, replan(plan, *held_out.lengths()))
    if validation.steps_per_epoch == 0:
        raise DataError("no validation pair is as short as the longest training pair")
    shapes = ", ".join(f"{rows}x{length}" for rows, length, _ in plan.shapes)
    report = (
        *about,
        f"training data: {corpus.train.report()}; validation: {corpus.validation.report()}",
        f"{tokenizer.vocab_size:,} pieces; {plan.steps_per_epoch:,} batches an epoch in shapes {shapes}, "
        f"{plan.fill(*tokens.lengths()):.0%} full; {len(plan.skipped):,} pairs too long, "
        f"{len(validation.plan.skipped):,} of validation",
    )
    return Data(_planned(tokens, plan), validation, tokenizer, report, lengths)


def _planned(tokens: TokenizedPairs | TaggedPairs, plan: BatchPlan) -> PlannedPairs | PlannedTagged:
    return PlannedTagged(tokens, plan) if isinstance(tokens, TaggedPairs) else PlannedPairs(tokens, plan)


def check_positions(config: TranslationConfig, lengths: Sequence[int]) -> None:
    """Checks that the positions of the model are enough for batches of these lengths."""
    limit, multiple = config.model.length_limit, config.data.length_multiple
    if limit is not None and max(lengths) > limit:
        raise DataError(
            f"batches hold sentences of up to {max(lengths)} tokens, but model.max_positions is {limit}; "
            f"lower data.max_length to {limit - limit % multiple} or raise model.max_positions"
        )


def prepare_part(
    config: TranslationConfig, corpus: Corpora | Mixture, cache: pathlib.Path, share: Share
) -> Iterator[str]:
    """Learns the vocabulary, tokenizes a share of the training pairs, and the validation pairs; yields what is done."""
    with tempfile.TemporaryDirectory() as folder:
        run = registry.split_init(config.init_from)[0] if config.init_from else pathlib.Path(folder)
        tokenizer, about = _tokenizer(config, corpus, run)
    yield from about
    missing = 0
    for part in corpus.parts.values() if isinstance(corpus, Mixture) else [corpus]:
        missing += pipeline.prepare_part(part.train, tokenizer, cache, **_segmentations(config), share=share)
        pipeline.prepare_part(part.validation, tokenizer, cache, share=dataclasses.replace(share, part=0, parts=1))
    if missing:
        yield f"part {share.part + 1} of {share.parts} is done; {plural(missing, 'unit')} of other parts are missing"
    else:
        yield f"all pairs are tokenized: train with --data.cache {cache}"


def _tokenizer(config: TranslationConfig, corpus: Corpora | Mixture, run: pathlib.Path) -> tuple[Tokenizer, list[str]]:
    """Returns the tokenizer of a run, which is learned if it has none; and lines about a large corpus."""
    data = config.data
    languages = (data.source_language, data.target_language) if data.pretokenize == "moses" else ("", "")
    normalizer = TextNormalizer(data.lowercase, data.pretokenize, *languages)
    options = {"kind": data.tokenizer, "vocab_size": data.vocab_size, "languages": data.tagged_languages}
    several = isinstance(corpus, Mixture)
    text = corpus.sentences(data.tokenizer_sentences) if several else corpus.train
    options |= {"num_sentences": None if several else data.tokenizer_sentences}  # `sentences` has chosen them
    began, total = time.perf_counter(), corpus.num_lines if several else corpus.train.num_lines
    tokenizer = make_run_tokenizer(run, text, data_cache(data.cache), normalizer=normalizer, **options)
    if total <= data.tokenizer_sentences or data.tokenizer == "pretrained":
        return tokenizer, []
    seconds, memory = time.perf_counter() - began, hardware.peak_memory()
    what = f"a vocabulary from {data.tokenizer_sentences:,} of {total:,} sentences"
    return tokenizer, [f"{what} in {seconds:,.0f} s; the process has needed {memory / 1e9:.1f} GB so far"]


def _segmentations(config: TranslationConfig) -> dict[str, Any]:
    data = config.data
    return {"num_segmentations": data.num_segmentations, "alpha": data.segmentation_alpha, "seed": config.seed}


def network(
    config: TranslationConfig, vocab_size: int, attention: AttentionFunction = functional.attention
) -> TranslationNetwork:
    """Returns an encoder-decoder with label-smoothed cross entropy of the next target token."""
    check_vocab_size("source_vocab_size", config.model.source_vocab_size, vocab_size)
    check_vocab_size("target_vocab_size", config.model.target_vocab_size, vocab_size)
    shape = dataclasses.replace(config.model, source_vocab_size=vocab_size, target_vocab_size=vocab_size)
    length = config.data.max_length + -config.data.max_length % config.data.length_multiple  # padded
    loss, names = training_loss(config.loss), tuple(config.data.corpora)

    def training(model: Model, batch: Batch[jax.Array], key: jax.Array | None) -> LossSums:
        if loss.passes == 2:
            batch = jax.tree.map(functional.duplicate_rows, batch)
        if isinstance(loss, functional.SimCut):
            cut = {side: loss.inputs(getattr(batch, side), fold_in_name(key, f"cut {side}")) for side in SIDES}
            batch = dataclasses.replace(batch, **cut)
        total, count = model.loss(batch.source, batch.target, labels=batch.labels, loss=loss, key=key)
        return total, count, tokens_by_corpus(batch.target, batch.corpora, names)

    def validation(model: Model, batch: Batch[jax.Array]) -> LossSums:
        return *model.loss(batch.source, batch.target, labels=batch.labels), {}

    def row(length: int) -> Batch[np.ndarray]:
        empty = Batch.from_tokens([], [], (1, length, length), SpecialTokens())
        return dataclasses.replace(empty, corpora=np.zeros(1, np.int32)) if names else empty

    largest = num_rows(config.data.tokens_per_batch, length), length
    if isinstance(shape, models.Seq2SeqConfig):  # a step depends on the previous one
        net = pure(models.Seq2Seq, shape)
        return Network(net, training, row, largest, validation, sharded_axes=("batch",))
    return Network(pure(models.EncoderDecoder, shape, attention=attention), training, row, largest, validation)


def training_loss(config: LossConfig) -> functional.LogitLoss:
    """Returns the loss of a training step, which has one pass, or two with R-Drop or SimCut."""
    if config.r_drop:
        return functional.RDrop(config.r_drop, config.label_smoothing, config.z_loss)
    if config.simcut.weight:
        return functional.SimCut(config.simcut.weight, config.label_smoothing, config.z_loss, config.simcut.cut)
    return functional.CrossEntropy(config.label_smoothing, config.z_loss)


def predictor(config: TranslationConfig, vocabulary: Tokenizer, trained: Trained) -> Translator:
    """Returns the translator of a run, into the language of all its corpora if that is one."""
    sources, languages = map(set, zip(*config.data.directions, strict=True))
    return Translator(
        trained.net,
        trained.params,
        vocabulary,
        config.decode,
        trained.placement,
        trained.steps,
        language=languages.pop() if len(languages) == 1 else "",
        tags=config.data.tags,
        source_language=sources.pop() if len(sources) == 1 else "",
    )


def validation_pairs(corpus: Corpora, data: Data[Any], number: int) -> Parallel:
    """Returns the first `number` validation pairs that fit the batch shapes of training."""
    pairs, held_out = corpus.validation.load(), data.validation
    assert isinstance(held_out, PlannedPairs | PlannedTagged)
    chosen = np.setdiff1d(np.arange(len(pairs)), held_out.plan.skipped)[:number]
    return Parallel(tuple(pairs.source[i] for i in chosen), tuple(pairs.target[i] for i in chosen))


def measure(
    config: TranslationConfig, corpus: Corpora | Mixture, data: Data[Any], translator: Translator, sums: Sums
) -> Mapping[str, float]:
    """Returns the BLEU, and with `decode.rouge` the ROUGE-L, of greedy translations of `decode.validation_sentences`
    pairs, of each corpus if several."""
    if not config.decode.validation_sentences:
        return {}
    if isinstance(corpus, Mixture):
        return mixtures.measure_each(config, corpus, data, translator, functools.partial(measure, sums=sums))
    pairs = validation_pairs(corpus, data, config.decode.validation_sentences)
    found = dataclasses.replace(translator, decode=config.decode.greedy).translate(pairs.source)
    lowercase, language = translator.tokenizer.normalizer.lowercase, two_letters(config.data.target_language)
    metrics = {"bleu": bleu(found, pairs.target, lowercase=lowercase, language=language).value}
    if config.decode.rouge:
        metrics["rouge_l"] = rouge(found, pairs.target, language=language)[-1].value
    return metrics


def score(
    config: TranslationConfig, corpus: Corpora | Mixture, translator: Translator, split: str, say: Say
) -> Iterator[CorpusScores]:
    """Translates and scores each test corpus, or the validation pairs; several corpora of training one by one."""
    if isinstance(corpus, Mixture):
        yield from mixtures.score_each(config, corpus, translator, functools.partial(score, split=split, say=say))
        return
    parts = corpus.part(split)
    language = two_letters(translator.language or config.data.target_language)
    bleu_words("", language)  # refuses one without a package before anything is translated
    if not language:
        say("Moses BLEU is left out: the run's data.target_language is not set")
    elif language in UNSPACED:
        say(f"Moses BLEU is left out: {language}, the language of the translations, is written without spaces")
    for name, part in parts.items():
        if part.num_skipped:
            say(f"{name}: {part.report()}")
        part = part.load()
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
