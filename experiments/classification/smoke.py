"""The smoke version: questions and statements of the built-in grammar, and an encoder of a few steps."""

from __future__ import annotations

import pathlib
from typing import Any

from experiments.pretraining import __main__ as pretraining
from jaxformer import demo
from jaxformer.files import write_text

CHANGES: dict[str, Any] = {
    "model": pretraining.SMOKE["model"],
    "data": {"vocab_size": 400, "max_length": 32, "tokens_per_batch": 512, "num_shapes": 1},
    "train": {"steps": 4},
}
"""The changes of every configuration."""
WAYS = ["full", "lora", "average", "bag of words"]
"""The ways that differ in their code; the others differ from these in settings."""


def prepare(out: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Writes data in place of SST-2 and pre-trains a tiny encoder; returns their folders."""
    lines = [f"{int(pair.english.endswith('?'))} {pair.english}\n" for pair in demo.generate(200)]
    for number, part in enumerate(("dev", "test", "train")):
        write_text(
            out / "data" / "sst2" / f"{part}.txt",
            "".join(lines[number * 40 :] if part == "train" else lines[number * 40 :][:40]),
        )
    pretraining.main(["--smoke", "--out", str(out / "pretraining")])
    return out / "data", out / "pretraining" / "run"
