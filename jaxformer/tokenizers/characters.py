"""Tokens that are single characters."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from jaxformer.errors import DataError
from jaxformer.tokenizers.base import Tokenizer
from jaxformer.tokenizers.normalization import Side, check_texts
from jaxformer.tokenizers.segmentation import SPACE
from jaxformer.tokenizers.special_tokens import SpecialTokens

_DEFAULT = SpecialTokens()


class CharacterTokenizer(Tokenizer):
    """One token for each character of a training text; other characters become `unk`.

    Ids that are not special tokens are assigned to the characters in order. Decoding is exact for characters in the
    vocabulary, including line breaks. The pieces of special tokens are names such as ``<eos>``.

    >>> tokenizer = CharacterTokenizer("abc")
    >>> tokenizer.encode(["cab!"])[0].tolist(), tokenizer.decode([6, 4, 5, 2])
    ([6, 4, 5, 3], 'cab')

    Raises:
      ValueError: `characters` are not sorted and distinct, or the special tokens are not distinct ids below
        `vocab_size`.
    """

    def __init__(self, characters: str, special: SpecialTokens = _DEFAULT):
        if list(characters) != sorted(set(characters)):
            raise ValueError("the characters of a vocabulary must be sorted and distinct")
        self._characters, self.special, self.vocab_size = characters, special, len(characters) + 4
        if len(special.ids) != 4 or max(special.ids) >= self.vocab_size:
            raise ValueError(f"special tokens must be distinct ids below {self.vocab_size}, got {special}")
        free = (token for token in range(self.vocab_size) if token not in special.ids)
        self._id_of = dict(zip(characters, free, strict=True))
        self._text_of = {token: character for character, token in self._id_of.items()}
        self._names = {token: f"<{name}>" for name, token in dataclasses.asdict(special).items()}

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

    @property
    def ids(self) -> dict[str, int]:
        """The id of each character."""
        return dict(self._id_of)

    def segmentations(self, text: str) -> list[tuple[int, ...]]:
        """Returns the only segmentation of a text, its characters; none if the vocabulary lacks a character."""
        return [tokens for tokens in super().segmentations(text) if self.special.unk not in tokens]

    def normalized(self, ids: Iterable[int]) -> str:
        special = self.special.ids
        return "".join(self._text_of[int(token)] for token in ids if int(token) not in special)

    def with_tokens(self, tokens: Sequence[int]) -> CharacterTokenizer:
        kept = "".join(self._text_of[token] for token in tokens if token in self._text_of)
        return CharacterTokenizer(kept, self.special.among(tokens))

    def _split(self, lines: Sequence[str], side: Side) -> Iterator[np.ndarray]:
        id_of, unk = self._id_of, self.special.unk
        return (np.fromiter((id_of.get(character, unk) for character in line), np.int32, len(line)) for line in lines)

    def _piece(self, token: int) -> str:
        return self._names.get(token) or self._text_of[token].replace(" ", SPACE)

    def _content(self) -> dict[str, str | dict[str, int]]:
        return {"characters": self._characters, "special": dataclasses.asdict(self.special)}

    def _hashed(self) -> list[str]:
        return [json.dumps(self._content())]

    def _file(self) -> bytes:
        return json.dumps(self._content() | {"fingerprint": self.fingerprint}, indent=1).encode()
