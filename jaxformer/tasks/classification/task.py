"""The text classification task: its batches, its network with the loss, and its scores."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import functional, models
from jaxformer.caches import data_cache
from jaxformer.data.batch_plan import make_batch_plan, num_rows, replan
from jaxformer.data.examples import Examples, LabeledBatch, PlannedTexts, read_examples
from jaxformer.data.packing import tokenize_lines
from jaxformer.data.sources import locate
from jaxformer.data.text import Text
from jaxformer.errors import ConfigError, DataError
from jaxformer.evaluation.scores import Score
from jaxformer.functional.tokens import Tokens
from jaxformer.models.config import EncoderConfig
from jaxformer.modules import AttentionFunction
from jaxformer.modules.pure import Params, Pure, pure
from jaxformer.tasks import classes, tokenizers
from jaxformer.tasks.base import Network, OnExamples, PlannedData, Say, Trained
from jaxformer.tasks.classes import ClassTask, LabeledCorpus
from jaxformer.tasks.classification.config import SHAPE, ClassificationConfig
from jaxformer.tasks.classification.predictor import ClassVocabulary, TextClassifier
from jaxformer.tasks.config import TaskConfig
from jaxformer.training.progress import Count

DeviceBatch = LabeledBatch[jax.Array]


@dataclasses.dataclass(frozen=True)
class ClassificationData(PlannedData[ClassVocabulary]):
    """The tokenized texts with their batch plans."""

    corpus: LabeledCorpus[Examples]
    vocabulary: ClassVocabulary
    train: PlannedTexts
    validation: PlannedTexts
    max_length: int

    @property
    def report(self) -> Sequence[str]:
        tokens, plan, corpus = self.train.tokens, self.train.plan, self.corpus
        cut = sum(int((part.tokens.lengths > self.max_length - 2).sum()) for part in (self.train, self.validation))
        shapes = ", ".join(f"{rows}x{length}" for rows, length, _ in plan.shapes)
        return (
            f"{len(corpus.train):,} training examples ({corpus.counts()}), {len(corpus.validation):,} for validation; "
            f"{cut:,} texts are cut to their first {self.max_length - 2} tokens",
            f"{len(tokens.tokens):,} tokens, a vocabulary of {self.vocabulary.tokenizer.vocab_size:,}; "
            f"{plan.steps_per_epoch:,} batches an epoch in shapes {shapes}",
            *corpus.warnings(),
        )

    @property
    def lengths(self) -> Sequence[int]:
        return [shape[1] for shape in self.train.plan.shapes]


@dataclasses.dataclass(frozen=True)
class ClassifierNetwork(Network[DeviceBatch]):
    """A classifier with the cross entropy of the correct class."""

    net: Pure[models.Classifier, models.ClassifierConfig]
    largest_batch: tuple[int, int]
    unit: ClassVar[str] = "texts"

    def loss(self, params: Params, batch: DeviceBatch, key: jax.Array | None):
        logits, balance = self.net.bind(params).training_logits(batch.tokens, key=key)
        total, count, sums = classes.losses(logits, batch.labels, _has_text(batch))
        return total + count * balance, count, {"correct": sums["correct"]}

    def validation_loss(self, params: Params, batch: DeviceBatch):
        return classes.losses(self.net.apply(params, batch.tokens), batch.labels, _has_text(batch))

    def abstract_batch(self, shape: tuple[int, ...], rows: jax.sharding.Sharding) -> LabeledBatch[jax.ShapeDtypeStruct]:
        make = functools.partial(jax.ShapeDtypeStruct, sharding=rows)
        tokens = Tokens(make(shape, jnp.int32), make(shape, jnp.bool_), right_padded=True)
        return LabeledBatch(tokens, make(shape[:1], jnp.int32))

    def num_terms(self, shape: tuple[int, ...]) -> int:
        return shape[0]


def _has_text(batch: DeviceBatch) -> jax.Array:
    """Returns True for the rows that do not only fill up the batch."""
    assert batch.tokens.valid is not None
    return batch.tokens.valid[:, 0]


class Classification(ClassTask[ClassificationConfig, Examples, DeviceBatch, ClassVocabulary, TextClassifier]):
    """Classification of texts."""

    name = "classification"
    commands = ("classify",)
    vocabulary_files = (*tokenizers.FILES, classes.FILE)
    config = ClassificationConfig

    def check(self, config: ClassificationConfig) -> None:
        longest, limit = config.data.max_length, config.model.length_limit
        if limit is not None and longest > limit:
            raise ConfigError(f"data.max_length is {longest}, but model.max_positions is {limit}")
        classes.check_names(config.data.classes)

    def check_init(self, config: ClassificationConfig, source: TaskConfig) -> None:
        model, data = getattr(source, "model", None), getattr(source, "data", None)
        if not isinstance(model, EncoderConfig) or data is None or not hasattr(data, "tokenizer"):  # as with images
            raise ConfigError(
                f"init_from {config.init_from} is a run of {type(source).task}; a classifier starts from one of "
                "masked_language_model or classification"
            )
        fixed = [name for name in SHAPE if name != "max_positions"]  # see init_positions
        pairs = [(f"model.{name}", getattr(model, name), getattr(config.model, name)) for name in fixed]
        names = ["tokenizer"] if data.tokenizer == "characters" else ["tokenizer", "vocab_size"]
        pairs += [(f"data.{name}", getattr(data, name), getattr(config.data, name)) for name in names]
        if different := [(name, there, here) for name, there, here in pairs if there != here]:
            what = ", ".join(
                f"{name} is {there} in that run and {here} in these settings" for name, there, here in different
            )
            options = " ".join(f"--{name} {there}" for name, there, _ in different)
            raise ConfigError(f"init_from {config.init_from} has another encoder or vocabulary: {what}; add {options}")

    def read(self, config: ClassificationConfig) -> LabeledCorpus[Examples]:
        data = config.data
        if not data.train:
            raise DataError("no examples: give --data.train FILE")
        separator = {"tab": "\t", "space": " "}[data.separator]
        options = {"columns": data.columns, "separator": separator, "label_end": data.label_end}
        read = lambda name, known: read_examples(locate(name, data.directory), **options, classes=known)
        train = read(data.train, data.class_names)
        names = classes.choose(train, data.class_names, train.file)
        test = read(data.test, names) if data.test else None
        train, validation = (train, read(data.validation, names)) if data.validation else train.split(data.held_out)
        return LabeledCorpus(train.first(data.max_examples or len(train)), validation, test, names)

    def prepare(
        self, config: ClassificationConfig, corpus: LabeledCorpus[Examples], run: pathlib.Path
    ) -> ClassificationData:
        data, cache = config.data, data_cache(config.data.cache)
        text = Text("\n".join(corpus.train.texts))
        tokenizer = tokenizers.make_run_tokenizer(run, text, cache, kind=data.tokenizer, vocab_size=data.vocab_size)
        classes.save(run, corpus.classes)
        tokens, validation = (tokenize_lines(x.texts, tokenizer, cache) for x in (corpus.train, corpus.validation))
        # The plan adds an end token but no class token.
        lengths = lambda ragged: np.minimum(ragged.lengths + 2, data.max_length) - 1
        plan = make_batch_plan(
            lengths(tokens),
            np.zeros(len(tokens), np.int64),
            seed=config.seed,
            tokens_per_batch=data.tokens_per_batch,
            num_shapes=data.num_shapes,
            max_length=data.max_length,
        )
        shapes, longest = plan.shapes, int(lengths(validation).max()) + 1
        if longest > shapes[-1][1]:  # than all training texts
            shapes += ((num_rows(data.tokens_per_batch, longest), longest, longest),)
        known = dataclasses.replace(plan, shapes=shapes)
        ordered = replan(known, lengths(validation), np.zeros(len(validation), np.int64))
        vocabulary, special = ClassVocabulary(tokenizer, corpus.classes), tokenizer.special
        return ClassificationData(
            corpus,
            vocabulary,
            PlannedTexts(tokens, corpus.indices(corpus.train), special, plan),
            PlannedTexts(validation, corpus.indices(corpus.validation), special, ordered),
            data.max_length,
        )

    def vocabulary(self, run: pathlib.Path) -> ClassVocabulary:
        return ClassVocabulary(tokenizers.run_tokenizer(run), classes.load(run))

    def min_vocab_size(self, config: ClassificationConfig) -> tuple[int, int]:
        return config.model.vocab_size or 1, config.model.num_classes or 2

    def planned_vocab_size(self, config: ClassificationConfig) -> tuple[int, int]:
        num_classes = config.model.num_classes or len(config.data.class_names)
        if not num_classes:
            raise ConfigError("the number of classes is not known without the data: give --model.num_classes N")
        return tokenizers.planned_vocab_size(config), num_classes

    def network(
        self,
        config: ClassificationConfig,
        vocab_size: tuple[int, int],
        attention: AttentionFunction = functional.attention,
    ) -> ClassifierNetwork:
        num_tokens, num_classes = vocab_size
        for name, given, found in (
            ("vocab_size", config.model.vocab_size, num_tokens),
            ("num_classes", config.model.num_classes, num_classes),
        ):
            if given not in (0, found):
                raise DataError(f"model.{name} is {given}, but the data have {found}")
        shape = dataclasses.replace(config.model, vocab_size=tokenizers.table_size(num_tokens), num_classes=num_classes)
        net = pure(models.Classifier, shape, attention=attention)
        length = config.data.max_length
        return ClassifierNetwork(net, (num_rows(config.data.tokens_per_batch, length), length))

    def predictor(self, config: ClassificationConfig, vocabulary: ClassVocabulary, trained: Trained) -> TextClassifier:
        return TextClassifier(trained.net, trained.params, vocabulary, config.data.max_length, trained.steps)

    def evaluate(
        self,
        config: ClassificationConfig,
        corpus: LabeledCorpus[Examples],
        predictor: TextClassifier,
        *,
        split: str,
        say: Say,
        on_examples: OnExamples,
    ) -> dict[str, list[Score]]:
        examples = corpus.part(split)
        labels = corpus.indices(examples)
        cut = list[str]()
        progress = Count(len(examples), "texts", say)
        probabilities = predictor.probabilities(examples.texts, warn=cut.append, progress=progress)
        if cut:
            say(f"{len(cut):,} of {len(examples):,} texts are cut to their first {predictor.max_length - 2} tokens")
        guesses = probabilities.argmax(1)
        on_examples(
            split,
            [
                {"text": text, "label": label, "guess": corpus.classes[guess], "probability": round(float(p), 4)}
                for text, label, guess, p in zip(
                    examples.texts, examples.labels, guesses, probabilities[np.arange(len(labels)), labels], strict=True
                )
            ],
        )
        return {split: classes.scores(labels, probabilities)}


TASK = Classification()
