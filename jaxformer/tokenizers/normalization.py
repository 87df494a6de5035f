"""The normalization of text as a part of tokenizers: lowercased, split into words, or unchanged."""

from __future__ import annotations

import dataclasses
import json
import unicodedata
from collections.abc import Container, Iterator, Sequence
from typing import Literal

from jaxformer.errors import DataError
from jaxformer.tokenizers import moses

Side = Literal["source", "target"]
"""The side of a sentence pair."""

FIELD = 1000
"""The field of a sentencepiece model that holds its normalizer; sentencepiece leaves fields from 200 on to others."""


@dataclasses.dataclass(frozen=True)
class TextNormalizer:
    """The normalization of text before tokenization; none by default.

    >>> normalizer = TextNormalizer(lowercase=True, pretokenize="moses", source_language="en", target_language="fr")
    >>> normalizer(["L'homme dort."], "target")
    ["l' homme dort ."]
    >>> normalizer.restore("l' homme dort .")
    "l'homme dort."
    """

    lowercase: bool = False
    pretokenize: Literal["none", "moses"] = "none"
    """Split text into words, separated by spaces, before it is split into subwords."""
    source_language: str = ""
    target_language: str = ""
    """The language of each side, as two-letter codes, which selects the rules for words; empty without
    `pretokenize`."""

    @property
    def described(self) -> str:
        """The settings, in words."""
        languages = f" ({self.source_language}, {self.target_language})" * (self.pretokenize == "moses")
        return f"data.lowercase {self.lowercase} and data.pretokenize {self.pretokenize}{languages}"

    @property
    def versions(self) -> list[str]:
        """The versions that the result depends on: Python's Unicode data, and the word tokenizer."""
        found = [f"unicode {unicodedata.unidata_version}"] * self.lowercase
        if self.pretokenize == "moses":
            found.append(f"sacremoses {moses.version()}")
        return found

    def __call__(self, lines: Sequence[str], side: Side) -> list[str]:
        """Returns the normalized lines of one side.

        Raises:
          DataError, TypeError: see `check_texts`.
        """
        check_texts(lines)
        if self.lowercase:
            lines = [line.lower() for line in lines]
        if self.pretokenize == "moses":
            language = {"source": self.source_language, "target": self.target_language}[side]
            lines = [moses.tokenize(line, language) for line in lines]
        return list(lines)

    def restore(self, text: str) -> str:
        """Returns the text of a normalized target; lowercased text stays lowercase."""
        return moses.detokenize(text, self.target_language) if self.pretokenize == "moses" else text

    def spelled(self, words: Sequence[str], side: Side) -> list[str]:
        """Returns the characters that each word has in normalized text, without spaces."""
        return ["".join(line.split()) for line in self(words, side)]


def check_texts(texts: Sequence[str]) -> None:
    """Checks that texts are Unicode, before a tokenizer splits them.

    Raises:
      DataError: a text has half of a surrogate pair, which no character has, and no file in UTF-8.
      TypeError: something is not a text.
    """
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"a text must be a str, got {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half, near = text[error.start], text[max(0, error.start - 20) : error.end + 20]
            raise DataError(
                f"a text has half of a surrogate pair, {half!a}, which is not a character: {near!a}"
            ) from None


_SPACED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


def without_spaces_before_marks(text: str) -> str:
    """Returns decoded text as the ``clean_up_tokenization_spaces`` of transformers leaves it.

    >>> without_spaces_before_marks("It 's the king ' s house , is n't it ?")
    "It's the king's house, isn't it?"
    """
    for spaced in _SPACED:  # in this order
        text = text.replace(spaced, spaced.strip())
    return text


def with_normalizer(model: bytes, normalizer: TextNormalizer) -> bytes:
    """Returns a sentencepiece model that holds a normalizer, which sentencepiece itself ignores.

    The default normalizer leaves the model unchanged, byte for byte.
    """
    if normalizer == TextNormalizer():
        return model
    content = json.dumps(dataclasses.asdict(normalizer)).encode()
    return model + _varint(FIELD << 3 | 2) + _varint(len(content)) + content


def with_pieces(model: bytes, kept: Container[int]) -> bytes:
    """Returns a sentencepiece model with the pieces of some ids, in the same order."""
    parts, number = [], 0
    for field, content in _fields(model):
        is_piece = field == 1
        if not is_piece or number in kept:
            parts.append(_varint(field << 3 | 2) + _varint(len(content)) + content)
        number += is_piece
    return b"".join(parts)


def normalizer_of(model: bytes) -> TextNormalizer:
    """Returns the normalizer of a sentencepiece model."""
    *_, content = b"{}", *(content for field, content in _fields(model) if field == FIELD)
    try:
        return TextNormalizer(**json.loads(content))
    except TypeError as error:
        raise ValueError("its normalizer cannot be read") from error


def charsmap_of(model: bytes) -> bytes:
    """Returns the compiled normalization of a sentencepiece model; empty if it has none."""
    for field, content in _fields(model):
        if field == 3:  # normalizer_spec; its second field is the map, and those after it are numbers
            for inner, value in _fields(content):
                if inner >= 2:
                    return value if inner == 2 else b""
    return b""


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the number and the content of each field of a protocol buffer; all must be length-delimited."""
    position = 0
    while position < len(message):
        tag, position = _read_varint(message, position)
        length, position = _read_varint(message, position)
        if tag & 7 != 2 or position + length > len(message):
            raise ValueError("it holds no tokenizer")
        yield tag >> 3, message[position : position + length]
        position += length


def _varint(number: int) -> bytes:
    """Returns a number in groups of 7 bits, the lowest first; the high bit says that another follows."""
    groups = []
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    return bytes([*groups, number])


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    """Returns the number at a position, and the position after it."""
    number = shift = 0
    while position < len(message):
        group = message[position]
        number, shift, position = number | (group & 127) << shift, shift + 7, position + 1
        if group < 128:
            return number, position
    raise ValueError("it holds no tokenizer")
