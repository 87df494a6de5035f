"""A corpus translated by a trained run with this library."""

from __future__ import annotations

import pathlib

import jaxformer
from benchmarks.sides.ours import product as product
from benchmarks.sides.ours import versions as versions


def build(spec):
    lines = pathlib.Path(spec["source"]).read_text(encoding="utf-8").splitlines()
    decode = {"search": {"beam_size": spec["beam_size"]}, "batch_size": spec["batch_size"]}
    translator = jaxformer.load(spec["run"], decode=decode)
    if spec.get("to"):
        translator = translator.to(spec["to"])
    return lambda: translator.translate(lines)
