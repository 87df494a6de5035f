"""A corpus translated by a trained run with CTranslate2; the tokenizer is that of the run."""

from __future__ import annotations

import json
import os
import pathlib
import tempfile

import ctranslate2

import jaxformer
from benchmarks.sides.decode_ctranslate2 import product as product
from benchmarks.sides.decode_ctranslate2 import versions as versions
from jaxformer.tasks import pretrained
from jaxformer.tasks.config import Beam


def build(spec):
    lines = pathlib.Path(spec["source"]).read_text(encoding="utf-8").splitlines()
    translator = jaxformer.load(spec["run"])
    tokenizer, decode = translator.tokenizer, translator.decode
    rule = decode.finder
    if not isinstance(rule, Beam) or rule.normalization != "tokens" or rule.coverage_penalty:
        raise ValueError("decode.search must be a beam with the normalization and coverage_penalty of CTranslate2")
    with tempfile.TemporaryDirectory() as folder:
        written = pathlib.Path(folder) / "model"
        pretrained.export_ctranslate2(spec["run"], written)
        pieces = json.loads((written / "shared_vocabulary.json").read_text(encoding="utf-8"))
        threads = spec.get("threads", os.cpu_count())
        model = ctranslate2.Translator(
            str(written), compute_type=spec["compute_type"], inter_threads=1, intra_threads=threads
        )
    ids, end = {piece: i for i, piece in enumerate(pieces)}, [tokenizer.special.eos]
    # One limit for all; each of ours follows from its length.
    longest = max(len(tokens) + 1 for tokens in tokenizer.encode(lines))
    limit = int(longest * decode.max_ratio) + decode.max_extra
    options = {"max_batch_size": spec["batch_size"], "beam_size": spec["beam_size"]}
    options["length_penalty"] = rule.length_penalty

    def once():
        tokens = [[pieces[token] for token in [*own, *end]] for own in tokenizer.encode(lines)]
        found = model.translate_batch(tokens, **options, min_decoding_length=0, max_decoding_length=limit)
        return [tokenizer.decode([ids[piece] for piece in one.hypotheses[0]]) for one in found]

    return once
