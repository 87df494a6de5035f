"""The objects in a picture of NLVR, recovered from its pixels: three boxes with shapes in three colors."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
from scipy import ndimage

COLORS = {"yellow": (255, 255, 0), "black": (0, 0, 0), "blue": (0, 153, 255)}
SIDE = 100
"""The width and height of a box in pixels; 50 pixels lie between two boxes."""
NEAR = 2.5
"""Pixels between an object and a wall that it touches; smoothed edges hide up to two."""


@dataclasses.dataclass(frozen=True)
class Thing:
    """A shape in a box; the origin is the upper left corner of the box."""

    shape: str
    color: str
    left: int
    top: int
    right: int
    bottom: int

    @property
    def size(self) -> int:
        """The longer side in pixels."""
        return max(self.right - self.left, self.bottom - self.top)

    def gap(self, wall: str) -> int:
        """Returns the pixels between the shape and a wall: "left", "top", "right" or "bottom"."""
        return {"left": self.left, "top": self.top, "right": SIDE - self.right, "bottom": SIDE - self.bottom}[wall]

    def touches(self, wall: str) -> bool:
        """Returns True if the shape touches a wall."""
        return self.gap(wall) <= NEAR


Box = tuple[Thing, ...]
"""The shapes of a box, the lowest first."""


def boxes(image: np.ndarray) -> tuple[Box, ...]:
    """Returns the shapes in the three boxes of a picture, uint8 ``[100, 400, 3]``."""
    return tuple(_things(image[:, start : start + SIDE]) for start in (0, 150, 300))


def is_tower(box: Box) -> bool:
    """Returns True if a box holds squares that stand on each other, from the bottom up."""
    middles = {(thing.left + thing.right) // 2 for thing in box}
    upright = all(abs(above.bottom - below.top) <= 2 for below, above in itertools.pairwise(box))
    squares = all(thing.shape == "square" for thing in box)
    return bool(box) and squares and box[0].touches("bottom") and len(middles) == 1 and upright


def _things(box: np.ndarray) -> Box:
    found = []
    for color, value in COLORS.items():
        # Smoothed edges are no longer of the color, so that shapes that touch stay apart.
        colored = (box == np.array(value, np.uint8)).all(-1)
        labels, _ = ndimage.label(colored)  # pyright: ignore[reportGeneralTypeIssues] - scipy has no types
        for number, (rows, columns) in enumerate(ndimage.find_objects(labels), 1):
            inside = labels[rows, columns] == number
            shape = _shape(inside)
            if shape:
                found.append(Thing(shape, color, columns.start, rows.start, columns.stop, rows.stop))
    return tuple(sorted(found, key=lambda thing: (-thing.bottom, thing.left)))


def _shape(inside: np.ndarray) -> str:
    """Returns the shape that fills this part of its frame; empty for a speck."""
    if inside.size < 16:
        return ""
    filled = inside.mean()
    return "square" if filled > 0.97 else "circle" if filled > 0.68 else "triangle"
