"""Runs as folders of CTranslate2, with the tokenizer and the settings of the search."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import get_args

import numpy as np

from jaxformer.errors import ConfigError
from jaxformer.files import JsonObject, check_new_folder, creating_folder, local_path
from jaxformer.interop import ctranslate2
from jaxformer.interop.ctranslate2 import Quantization, Vocabulary
from jaxformer.tasks.base import Say
from jaxformer.tasks.config import Beam
from jaxformer.tasks.masked_language_model.config import MaskedLanguageModelingConfig
from jaxformer.tasks.pretrained import exporting, generation_config
from jaxformer.tasks.pretrained.exporting import Loaded
from jaxformer.tasks.pretrained.languages import languages_of
from jaxformer.tasks.translation.config import TranslationConfig
from jaxformer.tokenizers.pretrained import PublishedTokenizer
from jaxformer.tokenizers.tokenizer_json import TOKENIZER

SEARCH = "search.json"
"""The file with the arguments of ``translate_batch`` or ``generate_batch`` of CTranslate2."""

TOLERANCE = 1e-2
"""The largest difference of a log-probability, in float32, that rounding explains."""

_CHECKED = (4, 16)
"""The number of random texts whose scores are compared, and their tokens."""


def export_ctranslate2(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    checkpoint: str = "best",
    quantization: Quantization = "",
    mesh: str = "",
    say: Say = lambda text: None,
) -> None:
    """Writes a translator or a language model as a new folder of CTranslate2.

    With the package ctranslate2, the scores of random texts are compared with those of the run.

    Args:
      checkpoint: see `restore.load`.
      quantization: "int8" for matrices in int8, a quarter of the size.
      mesh: the devices that share the parameters.
      say: receives a line about the settings of the search that CTranslate2 lacks, if there are any, and one about the
        comparison.

    Raises:
      ConfigError: the folder exists, CTranslate2 cannot express the model, its attention is a user's own, or the
        tokenizer's files cannot express the form of the text; nothing is written.
    """
    if quantization not in get_args(Quantization):
        raise ConfigError(f"quantization must be int8 or empty, got {quantization!r}")
    out = local_path(out)
    check_new_folder(out)
    loaded = exporting.load_run(run, checkpoint, mesh)
    net, params, config = loaded.net, loaded.params, loaded.config
    if isinstance(config, MaskedLanguageModelingConfig):
        raise ConfigError(f"{run} is a masked language model, whose masks CTranslate2 cannot fill in")
    pieces, special = _pieces(loaded), loaded.tokenizer.special
    vocabulary = Vocabulary(pieces, *(pieces[token] for token in (special.bos, special.eos, special.unk)))
    found = ctranslate2.variables(net, params, vocabulary, quantization)
    search, lost = _search(loaded, pieces)
    with creating_folder(out, mode=0o777) as temporary:
        ctranslate2.write(temporary, net, found, vocabulary)
        for name, content in loaded.files.items():
            (temporary / name).write_bytes(_whole(content, loaded, pieces) if name == TOKENIZER else content)
        (temporary / SEARCH).write_text(json.dumps(search, indent=1) + "\n", encoding="utf-8")
        line = "CTranslate2 is not installed, so its scores were not compared with those of the run"
        if ctranslate2.is_installed():
            rows, length = _CHECKED
            texts = _random_texts(loaded, rows, min(length, (net.config.length_limit or ctranslate2.POSITIONS) - 1))
            version, worst = ctranslate2.difference(temporary, net, params, vocabulary, texts)
            line = f"log-probabilities of CTranslate2 {version} differ from those of the run by {worst:.1e} at most"
            if not quantization and not worst < TOLERANCE:
                raise ConfigError(f"nothing is written: {line}, but must be less than {TOLERANCE}")
    exporting.say_lost(lost, "CTranslate2", say)
    say(line)


def _pieces(loaded: Loaded) -> list[str]:
    """Returns the name of each token in the files of the tokenizer, and of those that a file of pieces lacks."""
    names, size = dict(enumerate(loaded.tokenizer.names)), loaded.tokenizer.vocab_size
    if TOKENIZER in loaded.files:
        rules = json.loads(loaded.files[TOKENIZER])
        known = rules["model"]["vocab"]
        ids = known if isinstance(known, dict) else {piece: token for token, (piece, _) in enumerate(known)}
        ids = ids | {token["content"]: token["id"] for token in rules.get("added_tokens") or ()}
        names = {token: piece for piece, token in ids.items()}
    return [names.get(token) or f"<unused {token}>" for token in range(size)]


def _whole(content: bytes, loaded: Loaded, pieces: Sequence[str]) -> bytes:
    """Returns a ``tokenizer.json`` that neither cuts nor pads a text, and begins it with the run's source language."""
    rules: JsonObject = {**json.loads(content), "truncation": None, "padding": None}
    if any(languages_of(loaded.config, loaded.tokenizer)):
        first, end = _languages(loaded)[0], loaded.tokenizer.special.eos
        tokens = {pieces[token]: token for token in (*first, end)}
        named = [{"SpecialToken": {"id": name, "type_id": 0}} for name in tokens]
        single = [*named[:-1], {"Sequence": {"id": "A", "type_id": 0}}, named[-1]]
        about = {name: {"id": name, "ids": [token], "tokens": [name]} for name, token in tokens.items()}
        rules["post_processor"] = {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, {"Sequence": {"id": "B", "type_id": 0}}, named[-1]],
            "special_tokens": about,
        }
    return json.dumps(rules, ensure_ascii=False).encode()


def _languages(loaded: Loaded) -> tuple[list[int], list[int]]:
    """Returns the tokens with which sources and translations begin, of a run from an M2M100, NLLB or mBART-50."""
    tags = loaded.tokenizer.tags
    source, target = ([tags[code]] if code in tags else [] for code in languages_of(loaded.config, loaded.tokenizer))
    return source, target


def _random_texts(loaded: Loaded, rows: int, length: int) -> np.ndarray:
    """Returns texts without special tokens."""
    tokens = sorted({*range(loaded.tokenizer.vocab_size)} - loaded.tokenizer.special.ids)
    return np.random.default_rng(0).choice(tokens, (rows, max(1, length)))


def _search(loaded: Loaded, pieces: list[str]) -> tuple[JsonObject, dict[str, object]]:
    """Returns the arguments of CTranslate2's search, and the settings that it lacks."""
    config, special = loaded.config, loaded.tokenizer.special
    assert not isinstance(config, MaskedLanguageModelingConfig)
    decode, start = config.decode, [pieces[token] for token in loaded.tokenizer.start]
    rule, lost = decode.finder, generation_config.without_counterpart(decode)
    options: JsonObject = {
        "repetition_penalty": decode.repetition_penalty,
        "no_repeat_ngram_size": decode.no_repeat_ngram_size,
    }
    if isinstance(loaded.tokenizer, PublishedTokenizer):  # other models have learned that these are never next
        banned = sorted({special.pad, special.bos} - {special.eos})
        options["suppress_sequences"] = [[pieces[token]] for token in banned]
    if isinstance(rule, Beam):
        options |= {"beam_size": rule.beam_size, "length_penalty": rule.length_penalty}
        if rule.beam_size > 1:
            options |= {"patience": rule.patience, "coverage_penalty": rule.coverage_penalty}
            lost |= {"search.stopping": rule.stopping} if rule.stopping != "first" else {}
        lost = {name: x for name, x in lost.items() if name not in ("search.patience", "search.coverage_penalty")}
    else:
        options |= {"beam_size": 1, "sampling_topk": rule.top_k, "sampling_topp": rule.top_p}
        options["sampling_temperature"] = rule.temperature
        lost |= {"search.min_p": rule.min_p} if rule.min_p else {}
    if isinstance(config, TranslationConfig):
        longest = min(loaded.net.config.length_limit or generation_config.MOST, generation_config.MOST)
        options |= {"min_decoding_length": config.decode.min_length}
        options |= {"max_decoding_length": config.decode.max_length or longest}
        result: JsonObject = {"target_prefix": start, "translate_batch": options}
        if tags := loaded.tokenizer.tags:
            source, target = ([pieces[token] for token in side] for side in _languages(loaded))
            result = {
                "languages": {code: pieces[token] for code, token in tags.items()},
                "source_prefix": source,
            } | result
            result["target_prefix"] = target or start
        return result, lost
    ends = [pieces[token] for token in config.decode.end_tokens or (special.eos,)] if config.decode.stop_at_end else []
    options |= {"max_length": config.decode.max_tokens, "include_prompt_in_result": False, "end_token": ends}
    return {"start": start, "generate_batch": options}, lost
