"""The image classification task: its batches, its network with the loss, and its scores."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from jaxformer import functional, models
from jaxformer.axes import AxisName
from jaxformer.data.image_batches import Augmentation, ImageBatch, PlannedImages, image_plan
from jaxformer.data.images import LabeledImages, label_images, read_images
from jaxformer.data.sources import locate
from jaxformer.errors import ConfigError, DataError
from jaxformer.modules import AttentionFunction
from jaxformer.modules.pure import pure
from jaxformer.tasks import classes
from jaxformer.tasks.base import CorpusScores, Data, LossSums, Network, Say, Task, Trained
from jaxformer.tasks.classes import Classes, LabeledCorpus
from jaxformer.tasks.images import decode_images, image_shape, normalized, pixel_words
from jaxformer.tasks.text import check_vocab_size
from jaxformer.tasks.vision.config import VisionConfig
from jaxformer.tasks.vision.predictor import ImageClassifier, VisionModel
from jaxformer.training.progress import Count

ImageCorpus = LabeledCorpus[LabeledImages]
DeviceBatch = ImageBatch[jax.Array]


def read(config: VisionConfig) -> ImageCorpus:
    """Reads the names of images and their labels; a part is held out for validation if no other is named."""
    data = config.data
    if not data.train:
        raise DataError("no images: give --data.train FOLDER, ARCHIVE or IDX-FILE")

    def read_part(path: str, labels: str, known: Sequence[str]) -> LabeledImages:
        store = read_images(locate(path, data.directory))
        table = locate(labels, data.directory) if labels else ""
        return label_images(store, table, classes=known, names=data.class_names)

    train = read_part(data.train, data.train_labels, data.class_names)
    names = classes.choose(train, data.class_names, train.store.place)
    test = read_part(data.test, data.test_labels, names) if data.test else None
    if data.validation:
        validation = read_part(data.validation, data.validation_labels, names)
    else:
        train, validation = train.split(data.held_out)
    return LabeledCorpus(train.first(data.max_images or len(train)), validation, test, names)


def prepare(config: VisionConfig, corpus: ImageCorpus, run: pathlib.Path) -> Data[PlannedImages]:
    """Decodes the images and plans their batches."""
    data = config.data

    def planned(part: LabeledImages, shuffle: bool, moved: Augmentation | None) -> PlannedImages:
        plan = image_plan(len(part), data.batch_size, seed=config.seed, shuffle=shuffle)
        return PlannedImages(decode_images(config, part), corpus.indices(part), plan, moved)

    train = planned(corpus.train, True, Augmentation(data.shift, data.flip, data.crop))
    validation = planned(corpus.validation, False, None)
    classes.save(run, corpus.classes)
    report = (
        f"{len(corpus.train):,} training images ({corpus.counts()}), {len(corpus.validation):,} for validation",
        f"{pixel_words(train.images)}, {train.images.nbytes / 1e6:,.1f} MB; {train.steps_per_epoch:,} batches an epoch",
        *corpus.warnings(),
    )
    return Data(train, validation, Classes(corpus.classes), report)


def network(
    config: VisionConfig, num_classes: int, attention: AttentionFunction = functional.attention
) -> Network[VisionModel, DeviceBatch]:
    """Returns an image network with the cross entropy of the correct class. The length of a batch is 1."""
    check_vocab_size("num_classes", config.model.num_classes, num_classes, "data have")
    shape = dataclasses.replace(config.model, num_classes=num_classes)
    axes: tuple[AxisName, ...] = ("batch",)
    if isinstance(shape, models.VisionTransformerConfig):
        net = pure(models.VisionTransformer, shape, attention=attention)
        if not shape.has_class_vector:
            axes = ("batch", "length")
    else:
        net = pure(models.ResidualNetwork, shape, attention=attention)

    def row(length: int) -> ImageBatch[np.ndarray]:
        if length != 1:
            raise ConfigError(f"images have no length: a batch is --batch ROWSx1, got --batch ROWSx{length}")
        return ImageBatch(np.zeros((1, *image_shape(shape)), np.uint8), np.zeros(1, np.int32), np.zeros(1, bool))

    return Network(net, loss, row, (config.data.batch_size, 1), validation_loss, unit="images", sharded_axes=axes)


def loss(model: VisionModel, batch: DeviceBatch, key: jax.Array | None) -> LossSums:
    """Returns the cross entropy of the correct classes and, with experts, the loss that balances them."""
    images = normalized(batch.images)
    if isinstance(model, models.VisionTransformer):
        logits, balance = model.training_logits(images, where=batch.valid, key=key)
    else:
        logits, balance = model(images, key=key), 0.0
    total, count, sums = classes.losses(logits, batch.labels, batch.valid)
    return total + count * balance, count, {"correct": sums["correct"]}


def validation_loss(model: VisionModel, batch: DeviceBatch) -> LossSums:
    """Returns the cross entropy of the correct classes, and the sums for accuracy."""
    return classes.losses(model(normalized(batch.images)), batch.labels, batch.valid)


def predictor(config: VisionConfig, vocabulary: Classes, trained: Trained) -> ImageClassifier:
    """Returns the classifier of a run."""
    return ImageClassifier(trained.net, trained.params, vocabulary, trained.steps)


def score(
    config: VisionConfig, corpus: ImageCorpus, classifier: ImageClassifier, split: str, say: Say
) -> Iterator[CorpusScores]:
    """Classifies the images of a split."""
    images = corpus.part(split, source="PATH")
    decoded = decode_images(config, images)
    probabilities = classifier.probabilities(decoded, progress=Count(len(images), "images", say))
    places = ({"image": images.place(number)} for number in range(len(images)))
    yield classes.corpus_scores(split, corpus, corpus.indices(images), probabilities, places)


TASK = Task(
    config=VisionConfig,
    read=read,
    prepare=prepare,
    vocabulary=lambda run: Classes(classes.load(run)),
    vocab_size=lambda config: classes.num_classes(config.model.num_classes, config.data.class_names, 2),
    network=network,
    predictor=predictor,
    metrics=classes.METRICS,
    measure=classes.measure,
    score=score,
    renamed=classes.renamed,
    commands=("classify", "inspect"),
    vocabulary_files=(classes.FILE,),
)
