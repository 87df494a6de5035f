"""Reads the file of a tokenizer of any kind."""

from __future__ import annotations

import base64
import json
import os
import pathlib

from jaxformer.errors import ConfigError, DataError
from jaxformer.files import JsonObject
from jaxformer.tokenizers.base import Tokenizer
from jaxformer.tokenizers.characters import CharacterTokenizer
from jaxformer.tokenizers.pretrained import M2M100Tokenizer, MarianTokenizer, PretrainedTokenizer
from jaxformer.tokenizers.special_tokens import SpecialTokens
from jaxformer.tokenizers.subwords import SubwordTokenizer


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """Reads a tokenizer of any kind that `save` wrote.

    Raises:
      DataError: the file is missing, unreadable or damaged.
      ConfigError: the tokenizer belongs to a pretrained model, and the package tokenizers is not installed.
    """
    try:
        data = pathlib.Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    try:
        return _read(data)
    except ConfigError:
        raise
    except ValueError as error:
        raise DataError(f"{path} is damaged: {error}") from error


def _read(data: bytes) -> Tokenizer:
    if not data.startswith(b"{"):
        return SubwordTokenizer(data)
    try:
        saved = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    try:
        tokenizer, fingerprint = _of_json(saved), saved["fingerprint"]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("it holds no tokenizer") from error
    if tokenizer.fingerprint != fingerprint:
        raise ValueError(f"its content hashes to {tokenizer.fingerprint}, not to its fingerprint {fingerprint}")
    return tokenizer


def _of_json(saved: JsonObject) -> Tokenizer:
    special, clean_up = SpecialTokens(**saved["special"]), saved.get("clean_up", False) is True
    settings, tags = dict(saved.get("settings", {})), dict(saved.get("tags", {}))
    if "tokenizer" in saved:
        return PretrainedTokenizer(saved["tokenizer"], special, clean_up=clean_up, settings=settings, tags=tags)
    if "vocabulary" in saved and tags:
        model = base64.b64decode(saved["source"], validate=True)
        return M2M100Tokenizer(model, saved["vocabulary"], special, languages=[*tags], settings=settings)
    if "vocabulary" in saved:
        source, target = (base64.b64decode(saved[side], validate=True) for side in ("source", "target"))
        return MarianTokenizer(source, target, saved["vocabulary"], special, clean_up=clean_up, settings=settings)
    return CharacterTokenizer(saved["characters"], special)
