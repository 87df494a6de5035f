"""Single objects, cut out of the pictures, on which the convolutions learn shapes and colors before captions."""

from __future__ import annotations

import dataclasses
import io
import pathlib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from experiments.captioning.boxes import Box, Thing
from experiments.captioning.corpus import GRID, SIZE, pictures
from jaxformer.config import changed
from jaxformer.data.images import LabeledImages
from jaxformer.models import ResidualNetworkConfig
from jaxformer.tasks.vision import DataConfig, VisionConfig
from jaxformer.training.config import AdamConfig, CosineDecay, TrainConfig

SIDE = 40
"""Width and height of a cutout in pixels; an object has up to 30."""
MOST = 4
"""The most objects of a picture that are cut out."""
NOTHING = "nothing"
"""The class of a place without an object."""


def label(thing: Thing) -> str:
    """Returns the class of an object: its size, color and shape."""
    size = "small" if thing.size < 15 else "medium" if thing.size < 25 else "large"
    return f"{size} {thing.color} {thing.shape}"


def write_cutouts(images: LabeledImages, objects: Sequence[Sequence[Box]], path: pathlib.Path) -> None:
    """Writes a zip archive of cutouts, with a folder for each class.

    Args:
      images: the pictures; every second one also has a place without an object cut out.
      objects: the objects of each.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for number, (picture, own) in enumerate(zip(pictures(images), objects, strict=True)):
            wide = np.pad(picture, ((SIDE, SIDE), (SIDE, SIDE), (0, 0)), mode="edge")
            for i, (name, (row, column)) in enumerate(_places(own, number)):
                top, left = row + SIDE // 2, column + SIDE // 2  # of the padded picture
                buffer = io.BytesIO()
                Image.fromarray(wide[top : top + SIDE, left : left + SIDE]).save(buffer, "PNG")
                archive.writestr(zipfile.ZipInfo(f"{name}/{number}-{i}.png"), buffer.getvalue())


def _places(boxes: Sequence[Box], number: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yields the classes and middles (row, column) of some objects, and of a place far from all."""
    generator = np.random.default_rng(number)
    things = [(thing, start) for box, start in zip(boxes, (0, 150, 300), strict=True) for thing in box]
    for i in generator.permutation(len(things))[:MOST]:
        thing, start = things[i]
        yield label(thing), ((thing.top + thing.bottom) // 2, start + (thing.left + thing.right) // 2)
    if number % 2 == 0:
        for place in generator.integers((0, 0), SIZE, (20, 2)):
            if not any(_covers(thing, start, *place) for thing, start in things):
                yield NOTHING, (int(place[0]), int(place[1]))
                return


def _covers(thing: Thing, start: int, row: int, column: int, margin: int = 8) -> bool:
    """Returns True if a place is in an object or within `margin` pixels of it."""
    inside = thing.top - margin <= row <= thing.bottom + margin
    return inside and start + thing.left - margin <= column <= start + thing.right + margin


def configuration(folder: pathlib.Path, changes: Mapping[str, Any]) -> VisionConfig:
    """Returns the configuration of the convolutions of `corpus.GRID` on cutouts, at the scale of the pictures."""
    side = GRID.image_size[0] * SIDE // SIZE[0]
    shape: dict[str, Any] = dataclasses.asdict(GRID) | {"image_size": (side, side)}
    config = VisionConfig(
        name="cutouts",
        model=ResidualNetworkConfig(**shape),
        data=DataConfig(
            train=str(folder / "cutouts-train.zip"),
            validation=str(folder / "cutouts-validation.zip"),
            resize="fit",
            shift=2,
            flip=True,
            batch_size=128,
        ),
        optimizer=AdamConfig(
            learning_rate=3e-3, schedule=CosineDecay(), warmup_steps=50, b2=0.99, weight_decay=0.05, clip_norm=1.0
        ),
        train=TrainConfig(steps=800, validate_every=200, checkpoint_every=200, keep_last=2, metric="accuracy"),
    )
    return changed(config, changes)
