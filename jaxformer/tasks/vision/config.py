"""The settings of image classification, and its built-in configurations. Importing them imports no JAX."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from jaxformer.config import at_least, check_held_out
from jaxformer.errors import ConfigError
from jaxformer.models import choices
from jaxformer.models.vision_config import GridConfig, ResidualNetworkConfig, VisionTransformerConfig
from jaxformer.reprs import brief
from jaxformer.tasks.config import DataFolders, TaskConfig, check_classes, split_classes
from jaxformer.training.config import AdamConfig, CosineDecay, TrainConfig


@dataclasses.dataclass(frozen=True)
class DataConfig(DataFolders):
    """Folders, zip archives or IDX files of images, with their labels, and the batches."""

    train: str = ""
    """The training images: a folder, a zip archive, a folder in one (my.zip/train), or an IDX file (or .gz of one)."""
    train_labels: str = ""
    """The labels of `train`: an IDX file, or a table with an image name and its label on each line. By default, the
    folder of an image is its label."""
    validation: str = ""
    """Images to validate on; by default, `held_out` of the training images are held out."""
    validation_labels: str = ""
    """The labels of `validation`."""
    test: str = ""
    """Images to score after training."""
    test_labels: str = ""
    """The labels of `test`."""
    held_out: int | float = 0.1
    """The fraction of the training images held out for validation if none are named, or their number, an integer
    from 1; equal images stay together."""
    max_images: int = 0
    """The number of training images to use, chosen by a hash after validation images are held out; 0 for all."""
    classes: str = ""
    """The comma-separated names of the classes; by default, the labels of the training images. The numbers in an IDX
    file are indices of these names, from 0; without names, the numbers are the labels."""
    resize: Literal["refuse", "fit"] = "refuse"
    """The treatment of images of another size than the model's: an error, or scaling and center-cropping to fit."""
    batch_size: int = 128
    """The number of images per batch."""
    shift: int = 0
    """The maximum random shift of training images in each direction, in pixels; drawn in each epoch."""
    flip: bool = False
    """Flip a random half of the training images horizontally in each epoch."""
    crop: float = 1.0
    """The minimum side of a random crop of each training image, as a fraction of the image's; the crop is scaled up to
    the image's size. 1 for no crop."""

    __repr__ = brief

    def __post_init__(self) -> None:
        super().__post_init__()
        check_classes(self.classes)
        at_least(1, self, "batch_size")
        at_least(0, self, "max_images", "shift")
        check_held_out(self.held_out)
        if not 0 < self.crop <= 1:
            raise ConfigError(f"crop must be more than 0 and at most 1, got {self.crop}")
        for part in ("train", "validation", "test"):
            if getattr(self, f"{part}_labels") and not getattr(self, part):
                raise ConfigError(f"{part}_labels is {getattr(self, f'{part}_labels')}, but {part} names no images")

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names in `classes`."""
        return split_classes(self.classes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VisionConfig(TaskConfig):
    """A complete image classification experiment."""

    task: ClassVar[str] = "vision"

    name: str = "vision"
    """The run's name in logs and plots."""
    model: VisionTransformerConfig | ResidualNetworkConfig = VisionTransformerConfig()
    """The network, which also sets the image size: a vision Transformer, or a convolutional network."""
    data: DataConfig = DataConfig()
    """Images and labels."""

    __repr__ = brief

    def check(self) -> None:
        check_images("model", self.model, self.data.shift)

    def check_init(self, source: TaskConfig) -> None:
        this = f"a run of vision with --model {self.model.kind}"
        if not isinstance(source, VisionConfig):
            raise ConfigError(f"init_from {self.init_from} is a run of {source.task}; this is {this}")
        if source.model.kind != self.model.kind:
            raise ConfigError(
                f"init_from {self.init_from} is a run of vision with --model {source.model.kind}; this is {this}"
            )


def check_images(part: str, model: VisionTransformerConfig | GridConfig, shift: int) -> None:
    """Checks the images of a model, and the setting `data.shift`."""
    if model.num_channels not in (1, 3):
        raise ConfigError(f"{part}.num_channels must be 1 (gray) or 3 (RGB), got {model.num_channels}")
    side = min(model.image_size)
    if shift >= side:
        raise ConfigError(f"data.shift must be below {side}, the shorter side of the images, got {shift}")


def vision() -> VisionConfig:
    """A vision Transformer for small images, 1.8 M parameters (6 layers, D = 192, patches of 4): give --data.train."""
    return VisionConfig(
        model=VisionTransformerConfig(d_model=192, num_heads=3, d_ff=384),
        data=DataConfig(shift=2, flip=True),
        optimizer=AdamConfig(
            learning_rate=1e-3,
            schedule=CosineDecay(),
            warmup_steps=200,
            b2=0.99,
            epsilon=1e-8,
            weight_decay=0.05,
            clip_norm=1.0,
        ),
        train=TrainConfig(steps=5000, validate_every=250, checkpoint_every=250, keep_last=2, metric="accuracy"),
    )


def tiny() -> VisionConfig:
    """The smallest vision Transformer, 0.5 M parameters, for two CPU cores (4 layers, D = 128)."""
    model = VisionTransformerConfig(d_model=128, num_heads=4, d_ff=256, num_layers=4)
    return dataclasses.replace(vision(), name="vision-tiny", model=model)


def convolution() -> VisionConfig:
    """A residual convolutional network, 0.7 M parameters, without attention (--model.attention gain adds it)."""
    return dataclasses.replace(vision(), name="vision-convolution", model=ResidualNetworkConfig())


def base() -> VisionConfig:
    """ViT-B/16 (Dosovitskiy et al. 2021), 86 M parameters, for photographs of 224 x 224 pixels on accelerators."""
    model = VisionTransformerConfig(
        image_size=(224, 224),
        patch_size=16,
        norm=choices.LayerNorm(1e-6),
        d_model=768,
        num_heads=12,
        d_ff=3072,
        num_layers=12,
    )
    return dataclasses.replace(
        vision(),
        name="vision-base",
        model=model,
        data=DataConfig(batch_size=1024, flip=True, crop=0.5, resize="fit"),
        optimizer=dataclasses.replace(vision().optimizer, warmup_steps=10_000, weight_decay=0.1),
        train=TrainConfig(steps=300_000, validate_every=5000, checkpoint_every=5000, keep_last=2, metric="accuracy"),
    )
