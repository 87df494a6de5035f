"""Tokens that are single characters."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxformer.digests import short_digest
from jaxformer.errors import DataError
from jaxformer.files import write_bytes
from jaxformer.tokenizers.normalization import Side, TextNormalizer, check_texts
from jaxformer.tokenizers.segmentation import SPACE
from jaxformer.tokenizers.special_tokens import SpecialTokens

_DEFAULT = SpecialTokens()


class CharacterTokenizer:
    """One token for each character of a training text; other characters become `unk`.

    Ids that are not special tokens are assigned to the characters in order. Decoding is exact for characters in the
    vocabulary, including line breaks.

    >>> tokenizer = CharacterTokenizer("abc")
    >>> tokenizer.encode(["cab!"])[0].tolist(), tokenizer.decode([6, 4, 5, 2])
    ([6, 4, 5, 3], 'cab')

    Raises:
      ValueError: `characters` are not sorted and distinct, or the special tokens are not distinct ids below
        `vocab_size`.
    """

    start: tuple[int, ...] = ()
    """The tokens that a text begins with: none."""
    by_line: bool = True
    """True: the tokens of a text are the tokens of its lines, one after another."""
    normalizer: TextNormalizer = TextNormalizer()
    """The normalization of text: none."""
    special: SpecialTokens
    """The special tokens."""

    def __init__(self, characters: str, special: SpecialTokens = _DEFAULT):
        if list(characters) != sorted(set(characters)):
            raise ValueError("the characters of a vocabulary must be sorted and distinct")
        self._characters, self.special = characters, special
        if len(special.ids) != 4 or max(special.ids) >= self.vocab_size:
            raise ValueError(f"special tokens must be distinct ids below {self.vocab_size}, got {special}")
        free = (token for token in range(self.vocab_size) if token not in special.ids)
        self._id_of = dict(zip(characters, free, strict=True))
        self._text_of = {token: character for character, token in self._id_of.items()}

    @classmethod
    def train(cls, lines: Iterable[str], *, special: SpecialTokens = _DEFAULT) -> CharacterTokenizer:
        """Takes the characters of the lines as the vocabulary.

        Raises:
          DataError: the lines hold no character; see also `check_texts`.
          TypeError: see `check_texts`.
        """
        characters: set[str] = set()
        for line in lines:
            check_texts([line])
            characters.update(line)
        if not characters:
            raise DataError("cannot make a vocabulary of characters from a text without characters")
        return cls("".join(sorted(characters)), special)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the characters and the special tokens as JSON, whole or not at all."""
        content = self._content() | {"fingerprint": self.fingerprint}
        write_bytes(path, json.dumps(content, indent=1).encode())

    @classmethod
    def from_saved(cls, saved: Mapping[str, Any]) -> CharacterTokenizer:
        """Returns the tokenizer that `save` wrote; its fingerprint is not checked (see `load_tokenizer`).

        Raises:
          KeyError, TypeError, ValueError: the content is damaged.
        """
        return cls(saved["characters"], SpecialTokens(**saved["special"]))

    @property
    def vocab_size(self) -> int:
        """The number of characters and special tokens."""
        return len(self._characters) + 4

    @property
    def ids(self) -> dict[str, int]:
        """The id of each character."""
        return dict(self._id_of)

    @property
    def fingerprint(self) -> str:
        """A hash of the characters and the special tokens."""
        return short_digest([json.dumps(self._content())])

    def encode(self, lines: Sequence[str], side: Side = "source") -> list[np.ndarray]:
        """Returns the token ids of each line, int32, without `bos` and `eos`; `side` has no effect.

        Raises:
          DataError, TypeError: see `check_texts`.
        """
        del side
        check_texts(lines)
        id_of, unk = self._id_of, self.special.unk
        return [np.fromiter((id_of.get(character, unk) for character in line), np.int32, len(line)) for line in lines]

    encode_normalized = encode

    def segmentations(self, text: str) -> list[tuple[int, ...]]:
        """Returns the only segmentation of a text, its characters; none if the vocabulary lacks a character."""
        tokens = tuple(self.encode([text])[0].tolist())
        return [] if self.special.unk in tokens else [tokens]

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of token ids; special tokens are left out."""
        special = self.special.ids
        return "".join(self._text_of[int(token)] for token in ids if int(token) not in special)

    normalized = decode

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Returns the character of each token, a space as U+2581, special tokens by names such as ``<eos>``."""
        names = {token: f"<{name}>" for name, token in dataclasses.asdict(self.special).items()}
        shown = self._text_of | names
        return [shown[int(token)].replace(" ", SPACE) for token in ids]

    def _content(self) -> dict[str, str | dict[str, int]]:
        return {"characters": self._characters, "special": dataclasses.asdict(self.special)}
