"""The protocol of tokenizers, and reading their files."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from jaxformer.digests import short_digest
from jaxformer.errors import ConfigError, DataError
from jaxformer.tokenizers.characters import CharacterTokenizer
from jaxformer.tokenizers.marian import MarianTokenizer
from jaxformer.tokenizers.normalization import Side, TextNormalizer
from jaxformer.tokenizers.pretrained import PretrainedTokenizer
from jaxformer.tokenizers.special_tokens import SpecialTokens
from jaxformer.tokenizers.subwords import SubwordTokenizer


class Tokenizer(Protocol):
    """Text to token ids and back."""

    @property
    def vocab_size(self) -> int:
        """The number of token ids, special ones included; a model's vocabulary must be this size."""
        ...

    @property
    def special(self) -> SpecialTokens:
        """The special tokens of this vocabulary."""
        ...

    @property
    def start(self) -> tuple[int, ...]:
        """The tokens that a text begins with, which `encode` omits; empty for vocabularies trained by this library."""
        ...

    @property
    def by_line(self) -> bool:
        """True if the tokens of a text are the tokens of its lines, one after another."""
        ...

    @property
    def normalizer(self) -> TextNormalizer:
        """The normalization of text before tokenization."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash; tokenizers with equal hashes return equal tokens."""
        ...

    def encode(self, lines: Sequence[str], side: Side = "source") -> list[np.ndarray]:
        """Normalizes lines, and returns the token ids of each, int32, without `bos` and `eos`."""
        ...

    def encode_normalized(self, lines: Sequence[str]) -> list[np.ndarray]:
        """Returns the token ids of lines that are normalized, or parts of such lines."""
        ...

    def segmentations(self, text: str) -> list[tuple[int, ...]]:
        """Returns the tokens of every segmentation of a short text that is normalized."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of token ids, on the target side; special tokens are left out."""
        ...

    def normalized(self, ids: Iterable[int]) -> str:
        """Returns the normalized text of token ids, from which `decode` restores text."""
        ...

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Returns the piece of each token, a space shown as U+2581."""
        ...

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file that `load_tokenizer` reads, whole or not at all."""
        ...


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str], side: Side = "source") -> list[np.ndarray]:
    """Returns the token ids of each text, int32, with the tokens in `Tokenizer.start`, without `bos` and `eos`."""
    tokens, start = tokenizer.encode(texts, side), np.asarray(tokenizer.start, np.int32)
    return [np.concatenate([start, ids]) for ids in tokens] if len(start) else tokens


_SPLITTERS = {SubwordTokenizer: "sentencepiece", MarianTokenizer: "sentencepiece", PretrainedTokenizer: "tokenizers"}
"""The package that tokenizes text for each kind of tokenizer."""


def cache_key(tokenizer: Tokenizer) -> str:
    """Returns a hash of everything that tokens depend on: the tokenizer, and the programs that split text.

    The fingerprint of a tokenizer covers its content only, so that a run can be resumed with other package versions.
    """
    packages = [package for kind, package in _SPLITTERS.items() if isinstance(tokenizer, kind)]
    versions = [f"{package} {importlib.metadata.version(package)}" for package in packages]
    versions += tokenizer.normalizer.versions
    return f"{tokenizer.fingerprint}-{short_digest(versions)}" if versions else tokenizer.fingerprint


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
    kinds = {"tokenizer": PretrainedTokenizer, "vocabulary": MarianTokenizer}
    kind = next((kind for field, kind in kinds.items() if field in saved), CharacterTokenizer)
    try:
        tokenizer, fingerprint = kind.from_saved(saved), saved["fingerprint"]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("it holds no tokenizer") from error
    if tokenizer.fingerprint != fingerprint:
        raise ValueError(f"its content hashes to {tokenizer.fingerprint}, not to its fingerprint {fingerprint}")
    return tokenizer
