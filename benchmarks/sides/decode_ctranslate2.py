"""CTranslate2's greedy and beam search."""

from __future__ import annotations

import os
import pathlib
import tempfile

import ctranslate2
import numpy as np

from benchmarks.sides.decode_data import sources, weights
from benchmarks.sides.ours import network
from jaxformer.interop import ctranslate2 as written


def build(spec):
    pieces = ["<pad>", "<s>", "</s>", "<unk>", *(f"{i}" for i in range(4, spec["vocab_size"]))]
    net, vocabulary = network(spec), written.Vocabulary(pieces, "<s>", "</s>", "<unk>")
    with tempfile.TemporaryDirectory() as folder:
        found = written.variables(net, weights(spec), vocabulary)
        written.write(pathlib.Path(folder), net, found, vocabulary)
        model = ctranslate2.Translator(
            folder,
            compute_type=spec["compute_type"],
            inter_threads=1,
            intra_threads=spec.get("threads", os.cpu_count()),
        )
    sentences = [[pieces[i] for i in ids] for ids in sources(spec)]
    options = {"max_batch_size": 0, "beam_size": spec["beam_size"], "length_penalty": 1.0}
    options |= {"min_decoding_length": spec["length"], "max_decoding_length": spec["length"]}
    numbers = {piece: i for i, piece in enumerate(pieces)}

    def once():
        found = model.translate_batch(sentences, **options)
        return [[numbers[piece] for piece in result.hypotheses[0]] for result in found]

    return once


def product(size):
    x = np.ones((size, size), np.float32)
    return lambda: x @ x


def versions():
    return f"CTranslate2 {ctranslate2.__version__}"
