"""The base of all tokenizers: text to token ids and back, a fingerprint and a file."""

from __future__ import annotations

import abc
import importlib.metadata
import os
import types
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from jaxformer.digests import short_digest
from jaxformer.errors import ConfigError
from jaxformer.files import write_bytes
from jaxformer.tokenizers.normalization import Side, TextNormalizer, check_texts
from jaxformer.tokenizers.special_tokens import SpecialTokens


class Tokenizer(abc.ABC):
    """Text to token ids and back.

    A kind of tokenizer defines how normalized text is split (`_split`), how ids become it again (`normalized`), the
    name of a token (`_piece`), and what its file and its hash hold (`_file`, `_hashed`).
    """

    package: str = ""
    """The package that splits text, whose version cached tokens depend on; none for characters."""
    start: tuple[int, ...] = ()
    """The tokens that a text begins with, which `encode` omits; empty for vocabularies trained by this library."""
    tags: Mapping[str, int] = types.MappingProxyType({})
    """The tokens that stand for target languages, by code; none by default."""
    by_line: bool = True
    """True if the tokens of a text are the tokens of its lines, one after another."""
    normalizer: TextNormalizer = TextNormalizer()
    """The normalization of text before tokenization: none by default, or for files that have their own."""
    special: SpecialTokens
    """The special tokens of this vocabulary; several may have one id."""
    vocab_size: int
    """The number of token ids, special ones included; a model's vocabulary must be this size."""

    @property
    def fingerprint(self) -> str:
        """A hash of the content of the tokenizer; tokenizers with equal hashes return equal tokens."""
        return short_digest(self._hashed())

    def encode(self, lines: Sequence[str], side: Side = "source") -> list[np.ndarray]:
        """Normalizes lines, and returns the token ids of each, int32, without `bos` and `eos`.

        Raises:
          DataError: a word is not in the vocabulary of a published model, whose file has no token for unknown ones; see
            also `check_texts`.
          TypeError: see `check_texts`.
        """
        return [np.asarray(ids, np.int32) for ids in self._split(self.normalizer(lines, side), side)]

    def encode_normalized(self, lines: Sequence[str]) -> list[np.ndarray]:
        """Returns the token ids of target lines that are normalized, or of parts of such lines."""
        check_texts(lines)
        return [np.asarray(ids, np.int32) for ids in self._split(lines, "target")]

    def segmentations(self, text: str) -> list[tuple[int, ...]]:
        """Returns the tokens of every known segmentation of a short target text that is normalized."""
        return [tuple(self.encode_normalized([text])[0].tolist())]

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of token ids, on the target side; special tokens are left out.

        Raises:
          DataError: a published model has rules that fail for these tokens.
        """
        return self.normalizer.restore(self.normalized(ids))

    @abc.abstractmethod
    def normalized(self, ids: Iterable[int]) -> str:
        """Returns the normalized text of token ids, from which `decode` restores text; special tokens are left out."""

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Returns the piece of each token, a space shown as U+2581."""
        return [self._piece(int(token)) for token in ids]

    @property
    def names(self) -> list[str]:
        """The name of each token in the file; empty for an id without a token."""
        return self.pieces(range(self.vocab_size))

    @property
    def inside(self) -> str:
        """The prefix of the names of tokens that continue a word, ``##`` of WordPiece; empty without one."""
        return ""

    @property
    def scores(self) -> dict[int, float]:
        """The score of each piece of a text, of a model that has scores; empty by default."""
        return {}

    def is_special(self, token: int) -> bool:
        """Returns True for a special token, which is not a part of the text."""
        return token in self.special.ids

    def with_tokens(self, tokens: Sequence[int]) -> Tokenizer:
        """Returns a tokenizer with some of the tokens, numbered 0, 1, ...; `trimming.trim` chooses them.

        Args:
          tokens: sorted ids, with those of all special tokens.

        Raises:
          ConfigError: this kind of tokenizer cannot lose tokens.
        """
        raise ConfigError(f"a {type(self).__name__} cannot be trimmed")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file that `load_tokenizer` reads, whole or not at all."""
        write_bytes(path, self._file())

    @abc.abstractmethod
    def _split(self, lines: Sequence[str], side: Side) -> Iterable[Sequence[int] | np.ndarray]: ...

    @abc.abstractmethod
    def _piece(self, token: int) -> str: ...

    @abc.abstractmethod
    def _hashed(self) -> Iterable[str | bytes]: ...

    @abc.abstractmethod
    def _file(self) -> bytes: ...


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str], side: Side = "source") -> list[np.ndarray]:
    """Returns the token ids of each text, int32, with the tokens in `Tokenizer.start`, without `bos` and `eos`."""
    tokens, start = tokenizer.encode(texts, side), np.asarray(tokenizer.start, np.int32)
    return [np.concatenate([start, ids]) for ids in tokens] if len(start) else tokens


def cache_key(tokenizer: Tokenizer) -> str:
    """Returns a hash of everything that tokens depend on: the tokenizer, and the programs that split text.

    The fingerprint of a tokenizer covers its content only, so that a run can be resumed with other package versions.
    """
    package, versions = tokenizer.package, tokenizer.normalizer.versions
    if package:
        versions = [f"{package} {importlib.metadata.version(package)}", *versions]
    return f"{tokenizer.fingerprint}-{short_digest(versions)}" if versions else tokenizer.fingerprint
