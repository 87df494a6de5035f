"""The settings of captioning, and its built-in configurations. Importing them imports no JAX."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal, Self

from jaxformer.config import at_least, check_held_out, flat, to_data
from jaxformer.errors import ConfigError
from jaxformer.models import choices
from jaxformer.models.vision_config import (
    GridConfig,
    RecurrentCaptionerConfig,
    ResidualNetworkConfig,
    TransformerCaptionerConfig,
)
from jaxformer.reprs import brief
from jaxformer.tasks.config import DataFolders, SearchConfig, TaskConfig, check_equal, check_length, check_pair
from jaxformer.tasks.vision.config import VisionConfig, check_images
from jaxformer.tokenizers.special_tokens import MIN_SUBWORDS
from jaxformer.training.config import AdamConfig, CosineDecay, TrainConfig


@dataclasses.dataclass(frozen=True)
class DataConfig(DataFolders):
    """Images and captions, their tokens and batches."""

    train: str = ""
    """The training captions: a table with an image name and a caption on each line, or JSON (an object of names and
    captions, or the images and annotations of MS COCO). An image may have several captions."""
    images: str = ""
    """The images of the training captions: a folder, a zip archive, or a folder in one (my.zip/train)."""
    validation: str = ""
    """Captions to validate on; by default, `held_out` of the training images and their captions are held out."""
    validation_images: str = ""
    """The images of the validation captions; by default `images`."""
    test: str = ""
    """Captions to score after training."""
    test_images: str = ""
    """The images of the test captions; by default `images`."""
    columns: tuple[int, int] = (0, 1)
    """Columns of a table, counted from 0: the image and its caption."""
    held_out: int | float = 0.1
    """The fraction of the training images held out for validation if none are named, or their number, an integer
    from 1; equal images stay together."""
    resize: Literal["refuse", "fit"] = "refuse"
    """The treatment of images of another size than the model's: an error, or scaling and center-cropping to fit."""
    shift: int = 0
    """The maximum random shift of training images in each direction, in pixels; drawn in each epoch."""
    batch_size: int = 64
    """The number of captions per batch, each with its image."""
    max_length: int = 50
    """The maximum number of tokens of a caption, end token included; longer ones are left out of training and
    reported."""
    vocab_size: int = 2000
    """The number of subwords in the vocabulary."""
    tokenizer: Literal["unigram", "bpe", "characters"] = "unigram"
    """The kind of tokens: subwords by a sentencepiece algorithm, or single characters."""

    __repr__ = brief

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, self, "batch_size")
        at_least(2, self, "max_length")
        at_least(0, self, "shift")
        at_least(MIN_SUBWORDS, self, "vocab_size")
        check_pair(self.columns)
        check_held_out(self.held_out)
        for part in ("validation", "test"):
            if getattr(self, f"{part}_images") and not getattr(self, part):
                raise ConfigError(f"{part}_images is {getattr(self, f'{part}_images')}, but {part} names no captions")


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """The training loss: cross entropy of the next token. See also `model.attention`."""

    label_smoothing: float = 0.0
    """The weight of the uniform distribution in the training targets."""

    __repr__ = brief

    def __post_init__(self) -> None:
        at_least(0, self, "label_smoothing")
        if self.label_smoothing >= 1:
            raise ConfigError(f"label_smoothing must be less than 1, got {self.label_smoothing}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeConfig(SearchConfig):
    """The search for captions."""

    of_training: ClassVar[tuple[str, ...]] = ("validation_images",)

    max_length: int = 50
    """The maximum number of tokens of a caption, end token included."""
    validation_images: int = 0
    """The number of validation images to caption greedily for BLEU at each validation; 0 for none."""

    __repr__ = brief

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, self, "max_length")
        at_least(0, self, "validation_images")

    @property
    def static(self) -> Self:
        """The same search without the settings that do not affect the compiled program."""
        return dataclasses.replace(super().static, validation_images=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaptioningConfig(TaskConfig):
    """A complete captioning experiment."""

    task: ClassVar[str] = "captioning"

    name: str = "captioning"
    """The run's name in logs and plots."""
    model: RecurrentCaptionerConfig | TransformerCaptionerConfig = RecurrentCaptionerConfig()
    """The network, which also sets the image size: a recurrent decoder, or a Transformer."""
    data: DataConfig = DataConfig()
    """Images and captions."""
    loss: LossConfig = LossConfig()
    """The training loss."""
    decode: DecodeConfig = DecodeConfig()
    """The search for captions."""

    __repr__ = brief

    def check(self) -> None:
        check_images("model.image", self.model.image, self.data.shift)
        if self.train.metric == "bleu" and not self.decode.validation_images:
            raise ConfigError("train.metric is bleu, but decode.validation_images is 0: nothing is described")
        check_length("data.max_length", self.data.max_length, self.model.length_limit)

    def check_init(self, source: TaskConfig) -> None:
        network = image_network(source)
        if network is not None:
            there, here = (_grid_shape(each) for each in (network, self.model.image))
            check_equal(self.init_from, "image network", there, here)
        elif not isinstance(source, CaptioningConfig) or source.model.kind != self.model.kind:
            what = f"a run of {source.task}"
            if isinstance(source, CaptioningConfig | VisionConfig):
                what += f" with --model {source.model.kind}"
            raise ConfigError(
                f"init_from {self.init_from} is {what}; a captioner with --model {self.model.kind} starts from "
                "another one or from a run of vision with --model convolution"
            )


def image_network(source: TaskConfig) -> ResidualNetworkConfig | None:
    """Returns the convolutional network of an image classification run, which a captioner can start from, or None."""
    if isinstance(source, VisionConfig) and isinstance(source.model, ResidualNetworkConfig):
        return source.model
    return None


def _grid_shape(config: GridConfig) -> dict[str, object]:
    """Returns the settings on which the parameters of a `FeatureGrid` depend."""
    names = {field.name for field in dataclasses.fields(GridConfig)} - {"image_size"}
    shape = flat({name: x for name, x in to_data(config).items() if name in names}, "model.image")
    if "model.image.attention.d_attention" in shape:  # which may be the same without being given
        shape["model.image.attention.d_attention"] = config.attention_dim
    return shape


def captioning() -> CaptioningConfig:
    """Captions by soft attention (Xu et al. 2015), at the size `small`: give --data.train and --data.images."""
    return CaptioningConfig(
        model=RecurrentCaptionerConfig(
            image=GridConfig(image_size=(128, 128), widths=(32, 64, 128, 256), num_blocks=2),
            attention=choices.SoftAttention(doubly_stochastic=0.1),
            d_model=256,
            dropout=0.2,
        ),
        data=DataConfig(resize="fit"),
        optimizer=AdamConfig(
            learning_rate=1e-3, schedule=CosineDecay(), warmup_steps=200, weight_decay=0.01, clip_norm=1.0
        ),
        # The loss is lowest early, when captions still say little about an image (Xu et al. 2015, 4.3).
        train=TrainConfig(
            steps=10_000, validate_every=500, checkpoint_every=500, keep_last=2, patience=10, metric="bleu"
        ),
        decode=DecodeConfig(validation_images=200),
    )


def tiny() -> CaptioningConfig:
    """The smallest captioner, for two CPU cores: images of 64 x 64, a grid of 16 x 16, D = 128; 0.6 M parameters."""
    model = RecurrentCaptionerConfig(
        image=GridConfig(image_size=(64, 64), widths=(16, 32, 64), num_blocks=1),
        attention=choices.SoftAttention(doubly_stochastic=0.1),
        d_model=128,
        dropout=0.1,
    )
    return dataclasses.replace(
        captioning(),
        name="captioning-tiny",
        model=model,
        train=dataclasses.replace(captioning().train, steps=3000, validate_every=250, checkpoint_every=250),
    )


def small() -> CaptioningConfig:
    """Thousands of images, on a GPU or many cores: images of 128 x 128, a grid of 16 x 16, an LSTM with D = 256."""
    return dataclasses.replace(captioning(), name="captioning-small")


def transformer() -> CaptioningConfig:
    """The network of `small` with a Transformer decoder of 4 layers instead of the LSTM."""
    model = TransformerCaptionerConfig(
        image=captioning().model.image,
        num_layers=4,
        norm_position="pre",
        positions=choices.Sinusoidal(),
        dropout=0.2,
    )
    return dataclasses.replace(captioning(), name="captioning-transformer", model=model)
