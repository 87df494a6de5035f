"""The smoke version: a tiny model on pairs of the built-in grammar under the names of Multi30k's files."""

from __future__ import annotations

import pathlib
from typing import Any

from jaxformer import demo
from jaxformer.files import write_text

CHANGES: dict[str, Any] = {
    "model": {"d_model": 32, "num_heads": 2, "d_ff": 64, "num_encoder_layers": 1, "num_decoder_layers": 1},
    "data": {"vocab_size": 400, "tokens_per_batch": 1024, "num_shapes": 2},
    "optimizer": {"warmup_steps": 2},
    "train": {"steps": 6, "validate_every": 3, "checkpoint_every": 2, "tensorboard": False},
    "decode": {"validation_sentences": 4, "search": {"beam_size": 2}, "max_length": 8},
}
"""The changes of a configuration."""


def prepare(directory: pathlib.Path) -> None:
    """Writes the corpus into the folder of data."""
    pairs = demo.generate(260)
    for name, part in (("train", pairs[:200]), ("val", pairs[200:230]), ("test_2016", pairs[230:])):
        sides = {"en": [pair.english for pair in part], "de": [pair.french for pair in part]}
        sides["fr"] = [" ".join(text.split()[::-1]) for text in sides["de"]]  # a third text, for equal ones are refused
        for language, lines in sides.items():
            write_text(directory / "multi30k" / f"{name}.{language}", "".join(f"{line}\n" for line in lines))
