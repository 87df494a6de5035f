"""Small attention maps."""

import dataclasses
import json
import re

import numpy as np

from jaxformer.inspection.attention_maps import AttentionWeights
from jaxformer.inspection.pages import View


@dataclasses.dataclass(frozen=True)
class Pieces:
    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: np.ndarray


def rows(seed, *shape):
    weights = np.random.default_rng(seed).random(shape)
    return weights / weights.sum(-1, keepdims=True)


def view(weights, title="A dog runs"):
    names = lambda number: tuple(f"▁w{i}" for i in range(number))
    return View(title, {"decoder.cross": AttentionWeights(names(weights.shape[3]), names(weights.shape[2]), weights)})


def held(html):
    """The data of a page."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[1])
