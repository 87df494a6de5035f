"""The text classification task: its batches, its network with the loss, and its scores."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Iterator
from typing import TypeVar

import jax
import numpy as np

from jaxformer import functional, models
from jaxformer.caches import data_cache
from jaxformer.data.batch_plan import BatchPlan, num_rows, plan_texts
from jaxformer.data.examples import Examples, LabeledBatch, PlannedTexts, read_examples, tokenize_examples, with_types
from jaxformer.data.packing import tokenize_lines
from jaxformer.data.text import Text
from jaxformer.modules import AttentionFunction
from jaxformer.modules.pure import pure
from jaxformer.tasks import classes, text
from jaxformer.tasks.base import CorpusScores, Data, LossSums, Network, Say, Task, Trained
from jaxformer.tasks.classes import LabeledCorpus
from jaxformer.tasks.classification.config import ClassificationConfig, LabelingConfig
from jaxformer.tasks.classification.predictor import ClassVocabulary, TextClassifier
from jaxformer.tokenizers.special_tokens import SpecialTokens
from jaxformer.training.progress import Count

DeviceBatch = LabeledBatch[jax.Array]
ShapeT = TypeVar("ShapeT", models.ClassifierConfig, models.TokenClassifierConfig)


def read(config: ClassificationConfig) -> LabeledCorpus[Examples]:
    """Reads the examples; a part of those for training is held out for validation if no other is named."""
    return classes.read_tables(config.data, read_examples, what="examples")


def prepare(config: ClassificationConfig, corpus: LabeledCorpus[Examples], run: pathlib.Path) -> Data[PlannedTexts]:
    """Tokenizes the texts and plans their batches."""
    data, cache = config.data, data_cache(config.data.cache)
    lines = Text("\n".join(corpus.train.texts).replace("\t", "\n" if data.has_pairs else "\t"))
    tokenizer = text.make_run_tokenizer(run, lines, cache, kind=data.tokenizer, vocab_size=data.vocab_size)
    classes.save(run, corpus.classes)
    encode, most = functools.partial(tokenize_lines, tokenizer=tokenizer, cache=cache), data.max_length - 2
    (tokens, lengths), (held_out, others) = (
        tokenize_examples(part.texts, encode, tokenizer.special, most=most, has_pairs=data.has_pairs)
        for part in (corpus.train, corpus.validation)
    )
    plan, ordered = plan_batches(config, lengths, others)
    num_cut = sum(int((each > most).sum()) for each in (lengths, others))
    in_shapes = ", ".join(f"{rows}x{length}" for rows, length, _ in plan.shapes)
    report = (
        f"{len(corpus.train):,} training examples ({corpus.counts()}), {len(corpus.validation):,} for validation; "
        f"{num_cut:,} texts are cut to {'' if data.has_pairs else 'their first '}{most} tokens",
        f"{len(tokens.tokens):,} tokens, a vocabulary of {tokenizer.vocab_size:,}; "
        f"{plan.steps_per_epoch:,} batches an epoch in shapes {in_shapes}",
        *corpus.warnings(),
    )
    return Data(
        PlannedTexts(tokens, corpus.indices(corpus.train), tokenizer.special, plan, has_types(config)),
        PlannedTexts(held_out, corpus.indices(corpus.validation), tokenizer.special, ordered, has_types(config)),
        ClassVocabulary(tokenizer, corpus.classes),
        report,
        [length for _, length, _ in plan.shapes],
    )


def plan_batches(config: LabelingConfig, lengths: np.ndarray, others: np.ndarray) -> tuple[BatchPlan, BatchPlan]:
    """Plans the batches of training and validation texts of these numbers of tokens, without the first and the last."""
    data = config.data
    return plan_texts(
        lengths + 2,
        others + 2,
        seed=config.seed,
        tokens_per_batch=data.tokens_per_batch,
        num_shapes=data.num_shapes,
        max_length=data.max_length,
    )


def vocabulary(run: pathlib.Path) -> ClassVocabulary:
    """Loads the tokenizer and the names of the classes of a run."""
    return ClassVocabulary(text.run_tokenizer(run), classes.load(run))


def vocab_size(config: LabelingConfig) -> tuple[int, int]:
    """Returns the numbers of tokens and of classes that settings determine."""
    model = config.model
    num_classes = classes.num_classes(model.num_classes, config.data.class_names, (model.vocab_size or 1, 2))
    return text.planned_vocab_size(config, smallest=(1, num_classes)), num_classes


def sized(model: ShapeT, size: tuple[int, int]) -> ShapeT:
    """Returns the settings of an encoder for the numbers of tokens and of classes."""
    num_tokens, num_classes = size
    text.check_vocab_size("vocab_size", model.vocab_size, num_tokens, "data have")
    text.check_vocab_size("num_classes", model.num_classes, num_classes, "data have")
    return dataclasses.replace(model, vocab_size=text.table_size(num_tokens), num_classes=num_classes)


def network(
    config: ClassificationConfig, size: tuple[int, int], attention: AttentionFunction = functional.attention
) -> Network[models.Classifier, DeviceBatch]:
    """Returns a classifier with the cross entropy of the correct class."""
    shape = sized(config.model, size)

    def row(length: int) -> LabeledBatch[np.ndarray]:
        tokens = text.empty_row(length)
        return LabeledBatch(with_types(tokens, SpecialTokens()) if has_types(config) else tokens, np.zeros(1, np.int32))

    net, length = pure(models.Classifier, shape, attention=attention), config.data.max_length
    largest = num_rows(config.data.tokens_per_batch, length), length
    return Network(net, loss, row, largest, validation_loss, unit="texts", has_term_per_row=True)


def has_types(config: ClassificationConfig) -> bool:
    """Returns True if the texts of a pair have different token types."""
    return config.data.has_pairs and config.model.num_token_types > 1


def loss(model: models.Classifier, batch: DeviceBatch, key: jax.Array | None) -> LossSums:
    """Returns the cross entropy of the correct classes and, with experts, the loss that balances them."""
    logits, balance = model.training_logits(batch.tokens, key=key)
    total, count, sums = classes.losses(logits, batch.labels, _has_text(batch))
    return total + count * balance, count, {"correct": sums["correct"]}


def validation_loss(model: models.Classifier, batch: DeviceBatch) -> LossSums:
    """Returns the cross entropy of the correct classes, and the sums for accuracy."""
    return classes.losses(model(batch.tokens), batch.labels, _has_text(batch))


def _has_text(batch: DeviceBatch) -> jax.Array:
    """Returns True for the rows that do not only fill up the batch."""
    assert batch.tokens.valid is not None
    return batch.tokens.valid[:, 0]


def predictor(config: ClassificationConfig, vocabulary: ClassVocabulary, trained: Trained) -> TextClassifier:
    """Returns the classifier of a run."""
    has_pairs, length = config.data.has_pairs, config.data.max_length
    return TextClassifier(trained.net, trained.params, vocabulary, length, trained.steps, has_pairs)


def score(
    config: ClassificationConfig, corpus: LabeledCorpus[Examples], classifier: TextClassifier, split: str, say: Say
) -> Iterator[CorpusScores]:
    """Classifies the texts of a split."""
    examples, cut = corpus.part(split), list[str]()
    progress = Count(len(examples), "texts", say)
    probabilities = classifier.probabilities(examples.texts, warn=cut.append, progress=progress)
    if cut:
        say(f"{len(cut):,} of {len(examples):,} texts are cut to their first {classifier.max_length - 2} tokens")
    texts = ({"text": example} for example in examples.texts)
    yield classes.corpus_scores(split, corpus, corpus.indices(examples), probabilities, texts)


TASK = Task(
    config=ClassificationConfig,
    read=read,
    prepare=prepare,
    vocabulary=vocabulary,
    vocab_size=vocab_size,
    network=network,
    predictor=predictor,
    metrics=classes.METRICS,
    measure=classes.measure,
    score=score,
    renamed=classes.renamed,
    commands=("classify", "inspect"),
    vocabulary_files=(*text.FILES, classes.FILE),
)
