"""The image classification task: its batches, its network with the loss, and its scores."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp

from jaxformer import functional, models
from jaxformer.axes import AxisName
from jaxformer.data.image_batches import Augmentation, ImageBatch, PlannedImages, image_plan
from jaxformer.data.images import LabeledImages, label_images, read_images
from jaxformer.data.sources import locate
from jaxformer.errors import ConfigError, DataError
from jaxformer.evaluation.scores import Score
from jaxformer.modules import AttentionFunction
from jaxformer.modules.pure import Params, Pure, pure
from jaxformer.tasks import classes
from jaxformer.tasks.base import Network, OnExamples, PlannedData, Say, Trained
from jaxformer.tasks.classes import Classes, ClassTask, LabeledCorpus
from jaxformer.tasks.config import TaskConfig
from jaxformer.tasks.images import check_images, decode_images, image_shape, normalized
from jaxformer.tasks.vision.config import VisionConfig
from jaxformer.tasks.vision.predictor import ImageClassifier, VisionModel, VisionModelConfig
from jaxformer.training.progress import Count

ImageCorpus = LabeledCorpus[LabeledImages]
DeviceBatch = ImageBatch[jax.Array]


@dataclasses.dataclass(frozen=True)
class VisionData(PlannedData[Classes]):
    """The decoded images with their batch plans."""

    corpus: ImageCorpus
    vocabulary: Classes
    train: PlannedImages
    validation: PlannedImages

    @property
    def report(self) -> Sequence[str]:
        corpus, (height, width, channels) = self.corpus, self.train.images.shape[1:]
        return (
            f"{len(corpus.train):,} training images ({corpus.counts()}), {len(corpus.validation):,} for validation",
            f"{height} x {width} pixels of {channels} channel{'s' if channels > 1 else ''}, "
            f"{self.train.images.nbytes / 1e6:,.1f} MB; {self.train.steps_per_epoch:,} batches an epoch",
            *corpus.warnings(),
        )


@dataclasses.dataclass(frozen=True)
class VisionNetwork(Network[DeviceBatch]):
    """An image network with the cross entropy of the correct class. The length of a batch is 1."""

    net: Pure[VisionModel, VisionModelConfig]
    largest_batch: tuple[int, int]
    unit: ClassVar[str] = "images"

    @property
    def sharded_axes(self) -> tuple[AxisName, ...]:
        config = self.net.config
        patches_alone = isinstance(config, models.VisionTransformerConfig) and not config.has_class_vector
        return ("batch", "length") if patches_alone else ("batch",)

    def loss(self, params: Params, batch: DeviceBatch, key: jax.Array | None):
        model, images = self.net.bind(params), normalized(batch.images)
        if isinstance(model, models.VisionTransformer):
            logits, balance = model.training_logits(images, where=batch.valid, key=key)
        else:
            logits, balance = model(images, key=key), 0.0
        total, count, sums = classes.losses(logits, batch.labels, batch.valid)
        return total + count * balance, count, {"correct": sums["correct"]}

    def validation_loss(self, params: Params, batch: DeviceBatch):
        return classes.losses(self.net.apply(params, normalized(batch.images)), batch.labels, batch.valid)

    def planned_shape(self, num_rows: int, length: int) -> tuple[int, ...]:
        if length != 1:
            raise ConfigError(f"images have no length: a batch is --batch {num_rows}x1, got {num_rows}x{length}")
        return num_rows, 1

    def abstract_batch(self, shape: tuple[int, ...], rows: jax.sharding.Sharding) -> ImageBatch[jax.ShapeDtypeStruct]:
        make = functools.partial(jax.ShapeDtypeStruct, sharding=rows)
        images = make((shape[0], *image_shape(self.net.config)), jnp.uint8)
        return ImageBatch(images, make(shape[:1], jnp.int32), make(shape[:1], jnp.bool_))

    def shape(self, batch: DeviceBatch) -> tuple[int, ...]:
        return batch.images.shape[0], 1

    def describe(self, shape: tuple[int, ...]) -> str:
        height, width = self.net.config.image_size
        return f"{shape[0]} images of {height} x {width} pixels"


class Vision(ClassTask[VisionConfig, LabeledImages, DeviceBatch, Classes, ImageClassifier]):
    """Classification of images."""

    name = "vision"
    commands = ("classify",)
    vocabulary_files = (classes.FILE,)
    config = VisionConfig

    def check(self, config: VisionConfig) -> None:
        classes.check_names(config.data.classes)
        check_images(config)

    def check_init(self, config: VisionConfig, source: TaskConfig) -> None:
        kind = getattr(getattr(source, "model", None), "kind", "")
        if not isinstance(source, VisionConfig) or kind != config.model.kind:
            what = f"of {type(source).task}" + (f" with --model {kind}" if isinstance(source, VisionConfig) else "")
            this = f"a run of vision with --model {config.model.kind}"
            raise ConfigError(f"init_from {config.init_from} is a run {what}; this is {this}")

    def read(self, config: VisionConfig) -> ImageCorpus:
        data = config.data
        if not data.train:
            raise DataError("no images: give --data.train FOLDER, ARCHIVE or IDX-FILE")

        def read(part: str, known: Sequence[str]) -> LabeledImages:
            path, labels = getattr(data, part), getattr(data, f"{part}_labels")
            store = read_images(locate(path, data.directory))
            table = locate(labels, data.directory) if labels else ""
            return label_images(store, table, classes=known, names=data.class_names)

        train = read("train", data.class_names)
        names = classes.choose(train, data.class_names, train.store.place)
        test = read("test", names) if data.test else None
        train, validation = (train, read("validation", names)) if data.validation else train.split(data.held_out)
        return LabeledCorpus(train.first(data.max_images or len(train)), validation, test, names)

    def prepare(self, config: VisionConfig, corpus: ImageCorpus, run: pathlib.Path) -> VisionData:
        data = config.data
        parts = [decode_images(config, part) for part in (corpus.train, corpus.validation)]
        classes.save(run, corpus.classes)
        plans = (
            image_plan(len(part), data.batch_size, seed=config.seed, shuffle=shuffle)
            for part, shuffle in zip(parts, (True, False), strict=True)
        )
        labels = (corpus.indices(part) for part in (corpus.train, corpus.validation))
        augmentations = Augmentation(data.shift, data.flip, data.crop), None
        train, validation = map(PlannedImages, parts, labels, plans, augmentations)
        return VisionData(corpus, Classes(corpus.classes), train, validation)

    def vocabulary(self, run: pathlib.Path) -> Classes:
        return Classes(classes.load(run))

    def min_vocab_size(self, config: VisionConfig) -> int:
        return 2

    def planned_vocab_size(self, config: VisionConfig) -> int:
        num_classes = config.model.num_classes or len(config.data.class_names)
        if not num_classes:
            raise ConfigError("the number of classes is not known without the data: give --model.num_classes N")
        return num_classes

    def network(
        self, config: VisionConfig, vocab_size: int, attention: AttentionFunction = functional.attention
    ) -> VisionNetwork:
        if config.model.num_classes not in (0, vocab_size):
            raise DataError(f"model.num_classes is {config.model.num_classes}, but the data have {vocab_size}")
        shape = dataclasses.replace(config.model, num_classes=vocab_size)
        transformer = isinstance(shape, models.VisionTransformerConfig)
        model = models.VisionTransformer if transformer else models.ResidualNetwork
        return VisionNetwork(pure(model, shape, attention=attention), (config.data.batch_size, 1))

    def smaller_batch(self, config: VisionConfig, num_rows: int) -> str:
        return f"--data.batch_size {num_rows}"

    def predictor(self, config: VisionConfig, vocabulary: Classes, trained: Trained) -> ImageClassifier:
        return ImageClassifier(trained.net, trained.params, vocabulary, trained.steps)

    def evaluate(
        self,
        config: VisionConfig,
        corpus: ImageCorpus,
        predictor: ImageClassifier,
        *,
        split: str,
        say: Say,
        on_examples: OnExamples,
    ) -> dict[str, list[Score]]:
        images = corpus.part(split, source="PATH")
        labels = corpus.indices(images)
        decoded = decode_images(config, images)
        probabilities = predictor.probabilities(decoded, progress=Count(len(images), "images", say))
        rows = zip(labels, probabilities.argmax(1), probabilities, strict=True)
        on_examples(
            split,
            [
                {
                    "image": images.place(number),
                    "label": corpus.classes[label],
                    "guess": corpus.classes[guess],
                    "probability": round(float(probability[label]), 4),
                }
                for number, (label, guess, probability) in enumerate(rows)
            ],
        )
        return {split: classes.scores(labels, probabilities)}


TASK = Vision()
