"""The data and the networks that are compared, and the trainings of each."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxformer.config import changed
from jaxformer.data.idx import read_idx, write_idx
from jaxformer.tasks.vision import VisionConfig
from jaxformer.tasks.vision.config import vision

CORPORA: dict[str, dict[str, Any]] = {
    "cifar10": {
        "data": {
            "train": "cifar10_subset/cifar10_subset.zip/train",
            "test": "cifar10_subset/cifar10_subset.zip/test",
            "flip": True,
        },
        "model": {"num_channels": 3},
    },
    "mnist": {
        "data": {
            "train": "train-images",
            "train_labels": "train-labels",
            "test": "test-images",
            "test_labels": "test-labels",
            "flip": False,
        },
        "model": {"num_channels": 1},
    },
}
"""The settings of each corpus: 10,000 and 2,000 images of CIFAR-10; 8,000 and 2,000 digits."""
SIDE = 16
"""The height and width to which images are scaled down: a quarter to a third of the arithmetic."""
CONVOLUTION = {"kind": "convolution", "widths": (20, 36, 74), "num_blocks": 1, "dropout": 0.1}
MODELS: dict[str, dict[str, Any]] = {
    "CNN": CONVOLUTION,
    "CNN with attention": CONVOLUTION | {"attention": {"kind": "gain", "stage": 2, "d_attention": 8}},
    "ViT": {"kind": "transformer", "d_model": 64, "num_heads": 4, "d_ff": 128, "num_layers": 3, "dropout": 0.1},
}
"""The networks, each of about 105,000 parameters; the patches of the ViT have 4 x 4 pixels."""
NUMBERS = (500, 2000, 0)
"""The numbers of training images; 0 for all."""
STEPS = {"cifar10": {500: 600, 2000: 1000, 0: 1600}, "mnist": {500: 200, 2000: 400, 0: 600}}
"""The steps by number of images: the fewer images, the sooner they are memorized."""
RATES = (3e-4, 1e-3, 3e-3)
"""The learning rates that are tried for each network on each corpus, with all images and the first seed."""
SHIFTS = (0, 1, 2, 3)
"""Pixels by which test images are moved up, down, left and right."""
WHOLE = 28
"""The height and width of the digits as they are, at which each network is trained once more."""
SIZES = (28, 32, 56)
"""The heights and widths to which test images are scaled for networks that were trained on whole digits."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One training and its test."""

    corpus: str
    model: str
    rate: float
    number: int = 0
    seed: int = 0
    side: int = SIDE

    @property
    def data(self) -> str:
        """The name of its corpus, with the size of the images if it is not the usual one."""
        return self.corpus if self.side == SIDE else f"{self.corpus}-{self.side}"

    @property
    def name(self) -> str:
        """The name of its record and its run."""
        return f"{self.data}-{self.model.replace(' ', '-')}-{self.rate:g}-{self.number or 'all'}-{self.seed}"


def trials(corpus: str, model: str) -> list[Cell]:
    """Returns the trainings whose validation chooses the learning rate."""
    return [Cell(corpus, model, rate) for rate in RATES]


def measured(corpus: str, model: str, rate: float, seeds: int) -> list[Cell]:
    """Returns the trainings that are reported; one of them is a trial."""
    return [Cell(corpus, model, rate, number, seed) for number, seed in itertools.product(NUMBERS, range(seeds))]


def whole(corpus: str, model: str, rate: float, seeds: int) -> list[Cell]:
    """Returns the trainings on images of 28 x 28 pixels, which are tested at other sizes; only digits have as many."""
    return [Cell(corpus, model, rate, seed=seed, side=WHOLE) for seed in range(seeds) if corpus == "mnist"]


def configuration(cell: Cell, directory: str, changes: Mapping[str, Any]) -> VisionConfig:
    """Returns the configuration of a cell, with `changes` of its base."""
    steps = STEPS[cell.corpus]
    settings: dict[str, Any] = {
        "name": cell.name,
        "seed": cell.seed,
        "model": MODELS[cell.model] | {"image_size": (cell.side, cell.side)},
        "data": {"shift": 0, "max_images": cell.number, "batch_size": 64, "resize": "fit", "directory": directory},
        "optimizer": {"learning_rate": cell.rate, "warmup_steps": 100},
        "train": {"validate_every": 200, "checkpoint_every": 200, "keep_last": 1, "tensorboard": False}
        | {"steps": steps.get(cell.number, steps[0])},
    }
    config = changed(changed(vision(), {"model": {"kind": MODELS[cell.model]["kind"]}}), settings)
    return changed(changed(config, CORPORA[cell.corpus]), changes)


def divide_digits(source: pathlib.Path, folder: pathlib.Path) -> None:
    """Writes the first 8,000 of the 10,000 digits of MNIST's test part for training, and the others as a test.

    Raises:
      DataError: a file is missing or broken.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for kind, name in (("images", "t10k-images-idx3-ubyte.gz"), ("labels", "t10k-labels-idx1-ubyte.gz")):
        array = read_idx(source / name)
        for part, chosen in (("train", array[:8000]), ("test", array[8000:])):
            write_idx(folder / f"{part}-{kind}", chosen)


def shifted(images: np.ndarray, down: int, right: int) -> np.ndarray:
    """Returns images ``[N, h, w, C]`` moved by some pixels; the place that they leave is black.

    >>> shifted(np.arange(1, 5).reshape(1, 2, 2, 1), 0, 1)[0, ..., 0].tolist()
    [[0, 1], [0, 3]]
    """
    height, width = images.shape[1:3]
    moved = np.zeros_like(images)
    rows, columns = (slice(max(0, d), n + min(0, d)) for d, n in ((down, height), (right, width)))
    old_rows, old_columns = (slice(max(0, -d), n + min(0, -d)) for d, n in ((down, height), (right, width)))
    moved[:, rows, columns] = images[:, old_rows, old_columns]
    return moved
