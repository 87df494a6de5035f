"""The settings of image classification. Importing them imports no JAX."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from jaxformer.config import PLACE, at_least
from jaxformer.data.sources import check_held_out
from jaxformer.errors import ConfigError
from jaxformer.files import local_path
from jaxformer.models.vision_config import GridConfig, ResidualNetworkConfig, VisionTransformerConfig
from jaxformer.reprs import brief
from jaxformer.tasks.config import TaskConfig, check_classes, split_classes


@dataclasses.dataclass(frozen=True)
class DataConfig:
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
    directory: str = dataclasses.field(default="", metadata=PLACE)
    """The folder for relative paths; by default the working directory, then the environment variable JAXFORMER_DATA."""
    cache: str = dataclasses.field(default="", metadata=PLACE)
    """The folder for decoded images, named by hash; by default `data` in the user's cache (JAXFORMER_CACHE)."""

    __repr__ = brief

    def __post_init__(self) -> None:
        local_path(self.cache)
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
    """Checks the images of a model, and the setting `data.shift`.

    Raises:
      ConfigError: the images have neither 1 nor 3 channels, or `shift` is not below their shorter side.
    """
    if model.num_channels not in (1, 3):
        raise ConfigError(f"{part}.num_channels must be 1 (gray) or 3 (RGB), got {model.num_channels}")
    side = min(model.image_size)
    if shift >= side:
        raise ConfigError(f"data.shift must be below {side}, the shorter side of the images, got {shift}")
