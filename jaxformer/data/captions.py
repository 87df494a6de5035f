"""Images with captions: reading them from tables and JSON files, and making batches."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic

import jax
import numpy as np

from jaxformer.data.batch import Rows, shifted
from jaxformer.data.batch_plan import BatchPlan
from jaxformer.data.image_batches import Augmentation, PlannedExamples
from jaxformer.data.images import ImageStore, LabeledImages
from jaxformer.data.lines import read_columns, read_utf8
from jaxformer.errors import DataError
from jaxformer.functional.tokens import ArrayT, Tokens
from jaxformer.reprs import brief
from jaxformer.tokenizers.special_tokens import SpecialTokens


def read_captions(
    path: str | os.PathLike[str], store: ImageStore, *, columns: tuple[int, int] = (0, 1)
) -> LabeledImages:
    """Reads captions; an image may have several. The label of each image is its captions, one per line.

    A file whose name ends in ``.json`` holds an object ``{name: caption or list of captions}``, or the lists "images"
    (with "id" and "file_name") and "annotations" (with "image_id" and "caption"), as in MS COCO. Any other file is a
    table with tabs between columns; blank lines are skipped.

    Args:
      store: the images; the file names them relative to the store.
      columns: the columns of the image and of the caption, counted from 0.

    Raises:
      DataError: the file is missing, not UTF-8, not JSON, or without a caption; a line has too few columns, or a tab in
        a caption; an object has two entries with one name; a caption is empty or not text; or an image is missing. The
        message has the file and the line or entry.
    """
    pairs = _from_json(path) if str(path).lower().endswith(".json") else _from_table(path, columns)
    numbers, by_image = {name: i for i, name in enumerate(store.names)}, {}
    for place, name, caption in pairs:
        if not isinstance(name, str) or name not in numbers:
            raise DataError(f"{place}: {store.place} has no image {name!r}")
        if not isinstance(caption, str) or not caption.strip():
            raise DataError(f"{place}: the caption of {name} must be a text, got {caption!r}")
        if not caption.isascii() and any("\ud800" <= letter <= "\udfff" for letter in caption):  # possible in JSON
            raise DataError(f"{place}: the caption of {name} has half a surrogate pair, got {caption!r}")
        by_image.setdefault(numbers[name], []).append(" ".join(caption.split()))
    if not by_image:
        raise DataError(f"{path} holds no caption")
    return LabeledImages(store, tuple(by_image), tuple(map("\n".join, by_image.values())))


def captions_of(images: LabeledImages) -> list[tuple[str, ...]]:
    """Returns the captions of each image."""
    return [tuple(label.split("\n")) for label in images.labels]


def _from_table(path: str | os.PathLike[str], columns: tuple[int, int]) -> Iterator[tuple[str, str, str]]:
    """Yields the place, the name of an image and a caption."""
    what = "the image is in column {} and the caption in column {}, counted from 0; see --data.columns"
    for line, name, caption in read_columns(path, columns, what):
        yield f"{path}, line {line}", name.strip(), caption


def _from_json(path: str | os.PathLike[str]) -> Iterator[tuple[str, object, object]]:
    """Yields the place, the name of an image and a caption, which may be of any type."""
    text = read_utf8(path)
    try:
        data = json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise DataError(f"{path}{line}: not valid JSON: {error}") from error
    if not isinstance(data, Mapping):
        raise DataError(f"{path} must hold an object of names and captions, or of images and annotations")
    if not {"images", "annotations"} <= set(data):
        for name, captions in data.items():
            for caption in captions if isinstance(captions, list) else [captions]:
                yield f"{path}, {name!r}", name, caption
        return
    names, entry = {}, "an object"
    try:
        for number, image in enumerate(data["images"], 1):
            entry = f"image {number}"
            if image["id"] in names:
                raise DataError(f"{path}, {entry}: an image before it has the id {image['id']!r} already")
            names[image["id"]] = image["file_name"]
        for number, annotation in enumerate(data["annotations"], 1):
            entry = f"annotation {number}"
            yield f"{path}, {entry}", names.get(annotation["image_id"], annotation["image_id"]), annotation["caption"]
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}, {entry}: there must be id and file_name, or image_id and caption") from error


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Returns a JSON object; refuses two entries with one name, because Python would drop the first."""
    entries: dict[str, object] = {}
    for name, value in pairs:
        if name in entries:
            raise ValueError(f"an object has two entries {name!r}")
        entries[name] = value
    return entries


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CaptionBatch(Generic[ArrayT]):
    """B images with a caption each, padded on the right; `labels` are `tokens` shifted by one position."""

    images: ArrayT  # uint8 [B, h, w, C]
    tokens: Tokens[ArrayT]  # int32 [B, T], begins with bos; rows without valid tokens fill up the batch
    labels: ArrayT  # int32 [B, T], ends with eos

    __repr__ = brief


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedCaptions(PlannedExamples):
    """Decoded images with tokenized captions, the plan of their batches, and random augmentation of the images.

    Batch i is a pure function of the above, the seed of the plan and i.
    """

    images: np.ndarray  # uint8 [N, h, w, C]
    owners: np.ndarray  # int [M]: the image of each caption
    captions: Sequence[np.ndarray]  # M sequences of token ids, without bos and eos
    special: SpecialTokens
    plan: BatchPlan
    augmentation: Augmentation | None = None

    __repr__ = brief

    def batch(self, step: int, *, rows: Rows | None = None) -> CaptionBatch[np.ndarray]:
        """Makes batch number `step`; `rows` selects the rows to make, by default all."""
        (_, _, length), examples, images = self.chosen(step, rows, self.owners)
        captions = [self.captions[i] for i in examples]
        return CaptionBatch(images, *shifted(captions, (len(images), length), self.special))


def caption_plan(
    lengths: np.ndarray, batch_size: int, *, max_length: int, seed: int = 0, shuffle: bool = True
) -> BatchPlan:
    """Plans batches of `batch_size` captions, all as long as the longest one of at most `max_length` tokens.

    Args:
      lengths: the tokens of each caption, eos not counted.
      max_length: captions longer than this, eos included, are skipped.

    Raises:
      DataError: every caption is longer than `max_length`.
    """
    kept = lengths < max_length
    if not kept.any():
        raise DataError(f"none of {len(lengths):,} captions has at most {max_length} tokens; raise data.max_length")
    longest = int(lengths[kept].max()) + 1
    return BatchPlan(((batch_size, longest, longest),), (np.flatnonzero(kept),), np.flatnonzero(~kept), seed, shuffle)
