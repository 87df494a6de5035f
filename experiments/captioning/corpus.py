"""The pictures and sentences of NLVR as captions, and the configurations of the captioners."""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.captioning.boxes import Box
from experiments.captioning.measures import truths
from jaxformer.config import changed
from jaxformer.data.captions import captions_of
from jaxformer.data.images import LabeledImages
from jaxformer.data.lines import read_lines
from jaxformer.errors import DataError
from jaxformer.files import write_text
from jaxformer.models import GridConfig, RecurrentCaptionerConfig, TransformerCaptionerConfig, choices
from jaxformer.tasks.captioning import CaptioningConfig, DataConfig, DecodeConfig
from jaxformer.tasks.config import TuneConfig
from jaxformer.training.config import AdamConfig, CosineDecay, TrainConfig

FOLDER = "nlvr_captions"
CUTOUTS = "cutouts"
"""The run of the convolutions."""
SHARED = 100
"""The maximum number of pictures that a training sentence is used for."""
SIZE = (100, 400)
"""Height and width of the pictures."""
HELD_OUT = 0.08
"""The share of the statements of training, by number, on which captioners are validated."""
GRID = GridConfig(image_size=(50, 200), widths=(8, 24, 48, 64), num_blocks=1)
SIZES: dict[str, Any] = {"image": GRID, "grid_positions": True, "d_model": 128, "dropout": 0.1}
MODELS = {
    "soft": RecurrentCaptionerConfig(**SIZES, attention=choices.SoftAttention(doubly_stochastic=0.001)),
    "hard": RecurrentCaptionerConfig(**SIZES, attention=choices.HardAttention()),
    "transformer": TransformerCaptionerConfig(
        **SIZES, num_heads=4, d_ff=384, num_layers=2, norm_position="pre", positions=choices.Sinusoidal()
    ),
}
"""The shapes of the captioners: soft attention, hard attention, and a Transformer decoder."""


def divide(table: pathlib.Path, out: pathlib.Path) -> None:
    """Writes train.tsv, validation.tsv and test.tsv: the name of a picture and its sentence.

    The table has a header and the columns split, image and sentence. A statement number is the first number in the name
    of a picture; all pictures of one are in one part.

    Raises:
      DataError: a line has other columns or another split.
    """
    parts: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    for number, line in enumerate(read_lines(table)[1:], 2):
        split, *cells = line.split("\t")
        if len(cells) != 2 or split not in ("train", "test"):
            raise DataError(f"{table}, line {number}: there must be a split, train or test, an image and a sentence")
        _, statement, *_ = cells[0].split("-")
        drawn = int.from_bytes(hashlib.sha256(statement.encode()).digest()[:4]) / 2**32
        parts["validation" if split == "train" and drawn < HELD_OUT else split].append("\t".join(cells))
    for name, lines in parts.items():
        write_text(out / f"{name}.tsv", "".join(f"{line}\n" for line in lines))


def spread(images: LabeledImages, objects: Sequence[Sequence[Box]]) -> list[str]:
    """Returns further lines of training: each sentence with `SHARED` pictures that it is true of, or all.

    All pictures with one statement have the same few sentences, which a captioner memorizes. Given to other
    pictures, a sentence only tells what is true of them; and because each is given equally often, the sentences that
    are true of few pictures are the most probable ones there.

    Args:
      images: the pictures with the sentences that people wrote.
      objects: the objects of each.
    """
    names = [images.store.names[i] for i in images.indices]
    written = captions_of(images)
    lines = []
    for sentence in sorted({sentence for own in written for sentence in own}):
        true = sorted(
            np.flatnonzero(truths(sentence, objects)),
            key=lambda i: hashlib.sha256(f"{sentence}\n{names[i]}".encode()).digest(),
        )
        lines += [f"{names[i]}\t{sentence}" for i in true[:SHARED] if sentence not in written[i]]
    return lines


def configuration(
    model: str, images: str, folder: pathlib.Path, out: pathlib.Path, changes: Mapping[str, Any]
) -> CaptioningConfig:
    """Returns the configuration of a captioner.

    Hard attention starts from soft attention: from the convolutions alone, its estimated gradients leave it uniform.

    Args:
      images: the archive of the pictures.
      folder: the result of `divide`.
      out: the folder of the run of `cutouts.configuration`, whose convolutions every captioner keeps as they are, and
        of the run "soft".
    """
    is_hard = model == "hard"
    config = CaptioningConfig(
        name=f"captions-{model}",
        init_from=f"{out / 'soft'}:last" if is_hard else str(out / CUTOUTS),
        tune=TuneConfig(frozen="grid/*"),
        model=MODELS[model],
        data=DataConfig(
            train=str(folder / "train.tsv"),
            validation=str(folder / "validation.tsv"),
            test=str(folder / "test.tsv"),
            images=images,
            resize="fit",
            shift=2,
            tokenizer="bpe",
            vocab_size=400,
            max_length=32,
        ),
        optimizer=AdamConfig(
            learning_rate=1e-3 if is_hard else 3e-3,
            schedule=CosineDecay(),
            warmup_steps=100,
            b2=0.99,
            weight_decay=0.01,
            clip_norm=1.0,
        ),
        train=TrainConfig(steps=1000 if is_hard else 3000, validate_every=500, checkpoint_every=100, keep_last=2),
        decode=DecodeConfig(max_length=32, validation_images=100),
    )
    return changed(config, changes)


def pictures(images: LabeledImages) -> list[np.ndarray]:
    """Returns the pixels of pictures at their own size, uint8 ``[100, 400, 3]``.

    Raises:
      DataError: a picture has another size.
    """
    found = []
    with images.store.reading() as read:
        for number, i in enumerate(images.indices):
            pixels = np.asarray(read(i).convert("RGB"))
            if pixels.shape != (*SIZE, 3):
                raise DataError(f"{images.place(number)} must have {SIZE[0]} x {SIZE[1]} pixels, got {pixels.shape}")
            found.append(pixels)
    return found
