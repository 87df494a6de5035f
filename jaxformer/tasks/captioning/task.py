"""The captioning task: its batches, its network with the loss, and its scores."""

from __future__ import annotations

import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from jaxformer import functional, models
from jaxformer.caches import data_cache
from jaxformer.data.captions import CaptionBatch, PlannedCaptions, caption_plan, captions_of, read_captions
from jaxformer.data.image_batches import Augmentation
from jaxformer.data.images import LabeledImages, read_images
from jaxformer.data.pairs import Parallel
from jaxformer.data.sources import locate
from jaxformer.errors import DataError
from jaxformer.evaluation.scores import bleu, sentence_scores
from jaxformer.functional.dropout import fold_in_name
from jaxformer.models import choices
from jaxformer.modules import AttentionFunction
from jaxformer.modules.pure import Params, pure
from jaxformer.tasks.base import CorpusScores, Data, LossSums, Network, Say, Splits, Sums, Task, Trained
from jaxformer.tasks.captioning.config import CaptioningConfig, image_network
from jaxformer.tasks.captioning.predictor import ImageCaptioner
from jaxformer.tasks.config import TaskConfig
from jaxformer.tasks.images import decode_images, image_shape, normalized, pixel_words
from jaxformer.tasks.text import check_vocab_size, empty_row, make_run_tokenizer, planned_vocab_size, run_tokenizer
from jaxformer.tokenizers.base import Tokenizer
from jaxformer.training.progress import Count

Model = models.RecurrentCaptioner | models.TransformerCaptioner
CaptionCorpus = Splits[LabeledImages]
DeviceBatch = CaptionBatch[jax.Array]


def read(config: CaptioningConfig) -> CaptionCorpus:
    """Reads captions and the names of their images; a part is held out for validation if no other is named."""
    data = config.data
    if not data.train or not data.images:
        raise DataError("no captions: give --data.train FILE and --data.images FOLDER or ARCHIVE")
    stores = {}

    def read_part(captions: str, images: str) -> LabeledImages:
        place = locate(images or data.images, data.directory)
        stores[place] = stores.get(place) or read_images(place)
        return read_captions(locate(captions, data.directory), stores[place], columns=data.columns)

    train = read_part(data.train, data.images)
    test = read_part(data.test, data.test_images) if data.test else None
    if data.validation:
        return CaptionCorpus(train, read_part(data.validation, data.validation_images), test)
    return CaptionCorpus(*train.split(data.held_out), test)


def prepare(config: CaptioningConfig, corpus: CaptionCorpus, run: pathlib.Path) -> Data[PlannedCaptions]:
    """Decodes the images, tokenizes the captions, and plans their batches."""
    data = config.data
    lines = Parallel(tuple(caption for captions in captions_of(corpus.train) for caption in captions), ())
    tokenizer = make_run_tokenizer(run, lines, data_cache(data.cache), kind=data.tokenizer, vocab_size=data.vocab_size)
    train = _planned(config, corpus.train, tokenizer, shuffle=True)
    validation = _planned(config, corpus.validation, tokenizer, shuffle=False)
    rows, _, length = train.plan.shapes[0]
    report = (
        f"{len(train.owners):,} captions of {len(train.images):,} training images, {len(validation.owners):,} of "
        f"{len(validation.images):,} for validation; {len(train.plan.skipped):,} too long, "
        f"{len(validation.plan.skipped):,} of validation",
        f"{pixel_words(train.images)}; "
        f"{tokenizer.vocab_size:,} pieces; {train.steps_per_epoch:,} batches of {rows} x {length} tokens an epoch",
    )
    return Data(train, validation, tokenizer, report)


def _planned(
    config: CaptioningConfig, images: LabeledImages, tokenizer: Tokenizer, *, shuffle: bool
) -> PlannedCaptions:
    captions, data = captions_of(images), config.data
    tokens = tokenizer.encode([caption for several in captions for caption in several])
    owners = np.repeat(np.arange(len(captions)), [len(several) for several in captions])
    lengths = np.array([len(ids) for ids in tokens])
    plan = caption_plan(lengths, data.batch_size, max_length=data.max_length, seed=config.seed, shuffle=shuffle)
    moved = Augmentation(data.shift) if shuffle else None
    return PlannedCaptions(decode_images(config, images), owners, tokens, tokenizer.special, plan, moved)


def network(
    config: CaptioningConfig, vocab_size: int, attention: AttentionFunction = functional.attention
) -> Network[Model, DeviceBatch]:
    """Returns a captioner with the cross entropy of the next token, and terms for the attention of a recurrent one."""
    check_vocab_size("vocab_size", config.model.vocab_size, vocab_size)
    shape = dataclasses.replace(config.model, vocab_size=vocab_size)

    def row(length: int) -> CaptionBatch[np.ndarray]:
        tokens = empty_row(length)
        return CaptionBatch(np.zeros((1, *image_shape(shape)), np.uint8), tokens, tokens.ids)

    averages = {}
    if isinstance(shape, models.TransformerCaptionerConfig):
        net = pure(models.TransformerCaptioner, shape, attention=attention)
    else:
        net = pure(models.RecurrentCaptioner, shape, attention=attention)
        if isinstance(shape.attention, choices.HardAttention):
            averages = {"baseline": shape.attention.baseline_decay}
    largest, loss = (config.data.batch_size, config.data.max_length), training_loss(config)
    return Network(net, loss, row, largest, validation_loss, sharded_axes=("batch",), averages=averages)


def training_loss(config: CaptioningConfig) -> Callable[[Any, DeviceBatch, jax.Array | None], LossSums]:
    """Returns the cross entropy of the next token, with the terms that the attention of a recurrent captioner needs."""
    attention = getattr(config.model, "attention", None)
    cross_entropy = functional.CrossEntropy(config.loss.label_smoothing)
    places = math.prod(config.model.image.grid_size)

    def loss(model: Any, batch: DeviceBatch, key: jax.Array | None) -> LossSums:
        images, tokens, labels = normalized(batch.images), batch.tokens, batch.labels
        if isinstance(attention, choices.HardAttention) and key is not None:  # without a key, nothing is drawn
            noise = jax.random.gumbel(fold_in_name(key, "positions"), (*tokens.shape, places))
            mean = None
            if attention.soft_attention_rate:
                mean = jax.random.bernoulli(fold_in_name(key, "mean"), attention.soft_attention_rate, noise.shape[:1])
            terms = {"smoothing": cross_entropy.smoothing, "entropy": attention.entropy, "mean": mean}
            return *model.reinforced_loss(images, tokens, noise, labels=labels, key=key, **terms), {}
        if isinstance(attention, choices.SoftAttention) and attention.doubly_stochastic:
            terms = {"weight": attention.doubly_stochastic, "loss": cross_entropy}
            return *model.doubly_stochastic_loss(images, tokens, labels=labels, key=key, **terms), {}
        return *model.loss(images, tokens, labels=labels, loss=cross_entropy, key=key), {}

    return loss


def validation_loss(model: Model, batch: DeviceBatch) -> LossSums:
    """Returns the cross entropy of the next token."""
    images, loss = normalized(batch.images), functional.CrossEntropy()
    return *model.loss(images, batch.tokens, labels=batch.labels, loss=loss, key=None), {}


def predictor(config: CaptioningConfig, vocabulary: Tokenizer, trained: Trained) -> ImageCaptioner:
    """Returns the captioner of a run."""
    return ImageCaptioner(trained.net, trained.params, vocabulary, config.decode, trained.placement, trained.steps)


def renamed(params: Params, source: TaskConfig, there: pathlib.Path, here: pathlib.Path) -> Params:
    """Returns the parameters of an image classifier as those of the image network."""
    return {"grid": params} if image_network(source) else params


def measure(
    config: CaptioningConfig,
    corpus: CaptionCorpus,
    data: Data[PlannedCaptions],
    captioner: ImageCaptioner,
    sums: Sums,
) -> Mapping[str, float]:
    """Returns the BLEU of greedy captions of `decode.validation_images` images."""
    number = min(config.decode.validation_images, len(corpus.validation))
    if not number:
        return {}
    assert isinstance(data.validation, PlannedCaptions)
    greedy = dataclasses.replace(captioner, decode=config.decode.greedy)
    texts = [best.text for best, *_ in greedy.candidates(data.validation.images[:number])]
    return {"bleu": bleu(texts, captions_of(corpus.validation)[:number]).value}


def score(
    config: CaptioningConfig, corpus: CaptionCorpus, captioner: ImageCaptioner, split: str, say: Say
) -> Iterator[CorpusScores]:
    """Captions the images of a split."""
    images = corpus.part(split)
    progress = Count(len(images), "images", say)
    best = [first for first, *_ in captioner.candidates(decode_images(config, images), progress=progress)]
    references = captions_of(images)
    texts = [found.text for found in best]
    rows = zip(references, best, sentence_scores(texts, references), strict=True)
    examples = [
        {"image": images.place(i), "references": list(captions), "hypothesis": found.text, "score": found.score, **own}
        for i, (captions, found, own) in enumerate(rows)
    ]
    yield CorpusScores(split, [bleu(texts, references)], examples)


TASK = Task(
    config=CaptioningConfig,
    read=read,
    prepare=prepare,
    vocabulary=run_tokenizer,
    vocab_size=functools.partial(planned_vocab_size, text="captions"),
    network=network,
    predictor=predictor,
    metrics={"bleu": True},
    measure=measure,
    score=score,
    renamed=renamed,
    commands=("caption", "inspect"),
)
