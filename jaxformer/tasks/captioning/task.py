"""The captioning task: its batches, its network with the loss, and its scores."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import functional, models
from jaxformer.axes import AxisName
from jaxformer.caches import data_cache
from jaxformer.config import flat, to_data
from jaxformer.data.captions import CaptionBatch, PlannedCaptions, caption_plan, captions_of, read_captions
from jaxformer.data.image_batches import Augmentation
from jaxformer.data.images import LabeledImages, read_images
from jaxformer.data.sources import Parallel, locate
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.errors import ConfigError, DataError
from jaxformer.evaluation.scores import Score, bleu
from jaxformer.functional.dropout import fold_in_name
from jaxformer.functional.tokens import Tokens
from jaxformer.modules import AttentionFunction
from jaxformer.modules.pure import Params, pure
from jaxformer.tasks.base import Network, OnExamples, PlannedData, Say, Splits, Task, Trained
from jaxformer.tasks.captioning.config import CaptioningConfig, LossConfig
from jaxformer.tasks.captioning.predictor import CaptionNet, ImageCaptioner
from jaxformer.tasks.config import TaskConfig
from jaxformer.tasks.images import check_images, decode_images, image_shape, normalized
from jaxformer.tasks.tokenizers import make_run_tokenizer, planned_vocab_size, run_tokenizer
from jaxformer.tasks.vision.config import VisionConfig
from jaxformer.training.progress import Count

CaptionCorpus = Splits[LabeledImages]
DeviceBatch = CaptionBatch[jax.Array]


@dataclasses.dataclass(frozen=True)
class CaptionData(PlannedData[Tokenizer]):
    """Decoded images and tokenized captions, with their batch plans."""

    corpus: CaptionCorpus
    vocabulary: Tokenizer
    train: PlannedCaptions
    validation: PlannedCaptions

    @property
    def report(self) -> Sequence[str]:
        train, validation = self.train, self.validation
        (rows, _, length), (height, width, channels) = train.plan.shapes[0], train.images.shape[1:]
        return (
            f"{len(train.owners):,} captions of {len(train.images):,} training images, {len(validation.owners):,} of "
            f"{len(validation.images):,} for validation; {len(train.plan.skipped):,} too long, "
            f"{len(validation.plan.skipped):,} of validation",
            f"{height} x {width} pixels of {channels} channel{'s' if channels > 1 else ''}; "
            f"{self.vocabulary.vocab_size:,} pieces; {train.steps_per_epoch:,} batches of {rows} x {length} "
            "tokens an epoch",
        )


@dataclasses.dataclass(frozen=True)
class CaptionNetwork(Network[DeviceBatch]):
    """A captioner with the cross entropy of the next token, and terms for attention."""

    net: CaptionNet
    objective: LossConfig
    largest_batch: tuple[int, int]

    @property
    def sharded_axes(self) -> tuple[AxisName, ...]:
        return ("batch",)

    @property
    def averages(self) -> Mapping[str, float]:
        return {"baseline": self.objective.baseline_decay} if self._is_hard else {}

    @property
    def _is_hard(self) -> bool:
        return getattr(self.net.config, "attention", "") == "hard"

    def loss(self, params: Params, batch: DeviceBatch, key: jax.Array | None):
        model, objective, images = self.bound(params, batch), self.objective, normalized(batch.images)
        if self._is_hard and key is not None:
            options: dict[str, Any] = {"smoothing": objective.label_smoothing, "entropy": objective.entropy}
            height, width = self.net.config.image.grid_size
            noise = jax.random.gumbel(fold_in_name(key, "positions"), (*batch.tokens.shape, height * width))
            if objective.soft_attention_rate:
                options["mean"] = jax.random.bernoulli(
                    fold_in_name(key, "mean"), objective.soft_attention_rate, noise.shape[:1]
                )
            return *model.reinforced_loss(images, batch.tokens, noise, labels=batch.labels, key=key, **options), {}
        given = {"labels": batch.labels, "loss": functional.CrossEntropy(objective.label_smoothing), "key": key}
        if objective.doubly_stochastic:
            weight = objective.doubly_stochastic
            return *model.doubly_stochastic_loss(images, batch.tokens, weight=weight, **given), {}
        return *model.loss(images, batch.tokens, **given), {}

    def validation_loss(self, params: Params, batch: DeviceBatch):
        return *self.bound(params, batch).loss(normalized(batch.images), batch.tokens, labels=batch.labels), {}

    def abstract_batch(self, shape: tuple[int, ...], rows: jax.sharding.Sharding) -> CaptionBatch[jax.ShapeDtypeStruct]:
        make = functools.partial(jax.ShapeDtypeStruct, sharding=rows)
        images = make((shape[0], *image_shape(self.net.config)), jnp.uint8)
        tokens = Tokens(make(shape, jnp.int32), make(shape, jnp.bool_), right_padded=True)
        return CaptionBatch(images, tokens, make(shape, jnp.int32))

    def describe(self, shape: tuple[int, ...]) -> str:
        height, width = self.net.config.image.image_size
        return f"{shape[0]} images of {height} x {width} pixels with captions of {shape[1]} tokens"


class Captioning(Task[CaptioningConfig, CaptionCorpus, DeviceBatch, Tokenizer, ImageCaptioner]):
    """Image captioning."""

    name = "captioning"
    commands = ("caption",)
    metrics: ClassVar[Mapping[str, bool]] = {"bleu": True}
    config = CaptioningConfig

    def check(self, config: CaptioningConfig) -> None:
        model, data = config.model, config.data
        check_images(config)
        if config.train.metric == "bleu" and not config.decode.validation_images:
            raise ConfigError("train.metric is bleu, but decode.validation_images is 0: nothing is described")
        if config.loss.doubly_stochastic and getattr(model, "attention", "") != "soft":
            raise ConfigError(
                f"loss.doubly_stochastic is {config.loss.doubly_stochastic}, but it needs a recurrent model with soft "
                "attention; give 0"
            )
        for name in ("entropy", "soft_attention_rate", "baseline_decay"):
            if getattr(config.loss, name) != getattr(LossConfig, name) and getattr(model, "attention", "") != "hard":
                raise ConfigError(f"loss.{name} has no effect: it needs a recurrent model with hard attention")
        if model.length_limit is not None and data.max_length > model.length_limit:
            raise ConfigError(f"data.max_length is {data.max_length}, but model.max_positions is {model.length_limit}")

    def check_init(self, config: CaptioningConfig, source: TaskConfig) -> None:
        if (network := _convolutions(source)) is not None:
            there, here = _grid_shape(network), _grid_shape(config.model.image)
            if different := [name for name in there if there[name] != here.get(name)]:
                both = [name for name in different if name in here]
                template = "{} is {} in that run and {} in these settings"
                what = ", ".join(template.format(name, there[name], here[name]) for name in both)
                options = " ".join(f"--model.image.{name} {there[name]}" for name in different)
                raise ConfigError(
                    f"init_from {config.init_from} has another image network than model.image: {what}; add {options}"
                )
            return
        if not isinstance(source, CaptioningConfig) or source.model.kind != config.model.kind:
            kind = getattr(getattr(source, "model", None), "kind", "")
            what = f"a run of {type(source).task}"
            if isinstance(source, CaptioningConfig | VisionConfig):
                what += f" with --model {kind}"
            raise ConfigError(
                f"init_from {config.init_from} is {what}; a captioner with --model {config.model.kind} starts from "
                "another one or from a run of vision with --model convolution"
            )

    def renamed(self, params: Params, source: TaskConfig, *, there: pathlib.Path, here: pathlib.Path) -> Params:
        del there, here
        return params if _convolutions(source) is None else {"grid": params}

    def read(self, config: CaptioningConfig) -> CaptionCorpus:
        data = config.data
        if not data.train or not data.images:
            raise DataError("no captions: give --data.train FILE and --data.images FOLDER or ARCHIVE")
        stores = {}

        def read(captions: str, images: str) -> LabeledImages:
            place = locate(images or data.images, data.directory)
            stores[place] = stores.get(place) or read_images(place)
            return read_captions(locate(captions, data.directory), stores[place], columns=data.columns)

        train = read(data.train, data.images)
        test = read(data.test, data.test_images) if data.test else None
        if data.validation:
            return CaptionCorpus(train, read(data.validation, data.validation_images), test)
        return CaptionCorpus(*train.split(data.held_out), test)

    def prepare(self, config: CaptioningConfig, corpus: CaptionCorpus, run: pathlib.Path) -> CaptionData:
        data, cache = config.data, data_cache(config.data.cache)
        captions = [caption for own in captions_of(corpus.train) for caption in own]
        size = {"kind": data.tokenizer, "vocab_size": data.vocab_size}
        tokenizer = make_run_tokenizer(run, Parallel(tuple(captions), ()), cache, **size)
        train = self._planned(config, corpus.train, tokenizer, shuffle=True)
        return CaptionData(corpus, tokenizer, train, self._planned(config, corpus.validation, tokenizer, shuffle=False))

    def _planned(
        self, config: CaptioningConfig, images: LabeledImages, tokenizer: Tokenizer, *, shuffle: bool
    ) -> PlannedCaptions:
        captions, data = captions_of(images), config.data
        tokens = tokenizer.encode([caption for own in captions for caption in own])
        owners = np.repeat(np.arange(len(captions)), [len(own) for own in captions])
        lengths = np.array([len(ids) for ids in tokens])
        options = {"max_length": data.max_length, "seed": config.seed, "shuffle": shuffle}
        plan = caption_plan(lengths, data.batch_size, **options)
        moved = Augmentation(data.shift) if shuffle else None
        return PlannedCaptions(decode_images(config, images), owners, tokens, tokenizer.special, plan, moved)

    def vocabulary(self, run: pathlib.Path) -> Tokenizer:
        return run_tokenizer(run)

    def planned_vocab_size(self, config: CaptioningConfig) -> int:
        return planned_vocab_size(config, "captions")

    def smaller_batch(self, config: CaptioningConfig, num_rows: int) -> str:
        return f"--data.batch_size {num_rows}"

    def network(
        self, config: CaptioningConfig, vocab_size: int, attention: AttentionFunction = functional.attention
    ) -> CaptionNetwork:
        if config.model.vocab_size not in (0, vocab_size):
            raise DataError(f"model.vocab_size is {config.model.vocab_size}, but the tokenizer has {vocab_size} pieces")
        shape = dataclasses.replace(config.model, vocab_size=vocab_size)
        if isinstance(shape, models.RecurrentCaptionerConfig):
            net = pure(models.RecurrentCaptioner, shape, attention=attention)
        else:
            net = pure(models.TransformerCaptioner, shape, attention=attention)
        return CaptionNetwork(net, config.loss, (config.data.batch_size, config.data.max_length))

    def predictor(self, config: CaptioningConfig, vocabulary: Tokenizer, trained: Trained) -> ImageCaptioner:
        return ImageCaptioner(trained.net, trained.params, vocabulary, config.decode, trained.placement, trained.steps)

    def validation_metrics(
        self, config: CaptioningConfig, corpus: CaptionCorpus, data: CaptionData, predictor: ImageCaptioner, sums: Any
    ) -> Mapping[str, float]:
        number = min(config.decode.validation_images, len(corpus.validation))
        if not number:
            return {}
        greedy = dataclasses.replace(predictor, decode=config.decode.greedy)
        found = greedy.candidates(data.validation.images[:number])
        return {"bleu": bleu([best[0].text for best in found], captions_of(corpus.validation)[:number]).value}

    def evaluate(
        self,
        config: CaptioningConfig,
        corpus: CaptionCorpus,
        predictor: ImageCaptioner,
        *,
        split: str,
        say: Say,
        on_examples: OnExamples,
    ) -> dict[str, list[Score]]:
        images = corpus.part(split)
        progress = Count(len(images), "images", say)
        best = [found[0] for found in predictor.candidates(decode_images(config, images), progress=progress)]
        references = captions_of(images)
        on_examples(
            split,
            [
                {"image": images.place(i), "references": list(own), "hypothesis": found.text, "score": found.score}
                for i, (own, found) in enumerate(zip(references, best, strict=True))
            ],
        )
        return {split: [bleu([found.text for found in best], references)]}


def _convolutions(source: TaskConfig) -> models.ResidualNetworkConfig | None:
    """Returns the convolutional network of an image classification run, which a captioner can start from, or None."""
    model = source.model if isinstance(source, VisionConfig) else None
    return model if isinstance(model, models.ResidualNetworkConfig) else None


def _grid_shape(config: models.GridConfig) -> dict[str, str]:
    """Returns the settings on which the parameters of a `FeatureGrid` depend, in the form of command line arguments."""
    names = {field.name for field in dataclasses.fields(models.GridConfig)} - {"image_size"}
    shape = {name: x for name, x in flat(to_data(config)).items() if name.partition(".")[0] in names}
    if "attention.d_attention" in shape:
        shape["attention.d_attention"] = config.attention_dim  # which may be the same without being given
    return {name: " ".join(map(str, x)) if isinstance(x, list) else str(x).lower() for name, x in shape.items()}


TASK = Captioning()
