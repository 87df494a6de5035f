"""The smoke version: drawn towers in place of NLVR, and networks of a few parameters."""

from __future__ import annotations

import pathlib
import zipfile
from typing import Any

import numpy as np

from experiments.captioning.boxes import COLORS
from jaxformer.files import write_text

GRID = {"image_size": (25, 100), "widths": (4, 6, 8)}
CHANGES: dict[str, Any] = {
    "data": {"tokenizer": "characters", "batch_size": 8, "max_length": 64},
    "optimizer": {"warmup_steps": 1},
    "train": {"steps": 4, "validate_every": 4, "checkpoint_every": 4},
    "decode": {"max_length": 48, "search": {"beam_size": 2}, "validation_images": 2},
}
"""The changes of every configuration."""
CUTOUTS: dict[str, Any] = {
    "model": {"image_size": (10, 10), "widths": GRID["widths"]},
    "data": {"batch_size": 8},
    "optimizer": {"warmup_steps": 1},
    "train": {"steps": 4, "validate_every": 4, "checkpoint_every": 4},
}
"""The changes of the configuration of the cutouts."""
MODELS: dict[str, dict[str, Any]] = {
    "soft": {"image": GRID, "d_model": 8},
    "hard": {"image": GRID, "d_model": 8},
    "transformer": {"image": GRID, "d_model": 8, "num_heads": 2, "d_ff": 16, "num_layers": 1},
}


def changes(model: str) -> dict[str, Any]:
    """Returns the changes of the configuration of a captioner."""
    return CHANGES | {"model": MODELS[model]}


def towers(heights: tuple[int, int, int], color: str) -> np.ndarray:
    """Draws three towers of blocks of one color as NLVR does, uint8 ``[100, 400, 3]``."""
    picture = np.full((100, 400, 3), 211, np.uint8)
    for start in (100, 250):
        picture[:, start : start + 50] = 128
    for left, height in zip((40, 190, 340), heights, strict=True):
        for block in range(height):
            bottom = 100 - 21 * block
            picture[bottom - 20 : bottom, left : left + 20] = COLORS[color]
    return picture


def prepare(folder: pathlib.Path) -> None:
    """Writes captions.tsv and images.zip."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["split\timage\tsentence"]
    with zipfile.ZipFile(folder / "images.zip", "w") as archive:
        for number in range(60):  # 39, 49, 51 and 55 are held out
            color, heights = list(COLORS)[number % 3], (1 + number % 4, 1 + number // 4 % 4, 1 + number // 16)
            name = f"{'test' if number % 6 == 5 else 'train'}-{number}-0-0.ppm"
            picture = towers(heights, color)
            archive.writestr(name, b"P6\n400 100\n255\n" + picture.tobytes())
            lines.append(f"{name.partition('-')[0]}\t{name}\tThere are {sum(heights)} {color} blocks")
    write_text(folder / "captions.tsv", "".join(f"{line}\n" for line in lines))
