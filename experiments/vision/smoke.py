"""The smoke version: bright squares, high or low, in place of the corpora, and networks of a few parameters."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from experiments.vision import cells
from jaxformer.data.idx import write_idx

CHANGES: dict[str, Any] = {
    "data": {
        "train": "train-images",
        "train_labels": "train-labels",
        "test": "test-images",
        "test_labels": "test-labels",
    },
    "optimizer": {"warmup_steps": 1},
    "train": {"steps": 4, "validate_every": 4, "checkpoint_every": 4},
}
"""The changes of every configuration."""
NUMBERS = (20, 0)
RATES = cells.RATES[:2]
MODELS: dict[str, dict[str, Any]] = {
    "CNN": {"widths": (4, 8), "num_blocks": 1},
    "CNN with attention": {"widths": (4, 8), "num_blocks": 1, "attention": {"kind": "gain", "d_attention": 2}},
    "ViT": {"d_model": 8, "num_heads": 2, "d_ff": 16, "num_layers": 1},
}


def changes(model: str) -> dict[str, Any]:
    """Returns the changes of the configuration of a network."""
    size = {"image_size": (8, 8), "num_channels": 1}
    return CHANGES | {"model": MODELS[model] | size}


def prepare(folder: pathlib.Path) -> None:
    """Writes the images and labels."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for part, number in (("train", 60), ("test", 20)):
        labels = (np.arange(number) % 2).astype(np.uint8)
        images = random.integers(0, 60, (number, 8, 8), np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[1 + 4 * label : 4 + 4 * label, 2:6] += 150
        write_idx(folder / f"{part}-images", images)
        write_idx(folder / f"{part}-labels", labels)
