"""Tokenizers of Marian (OPUS-MT): a sentencepiece model for each side, and one vocabulary for both."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxformer.digests import short_digest
from jaxformer.files import write_bytes
from jaxformer.tokenizers.normalization import Side, TextNormalizer, check_texts, without_spaces_before_marks
from jaxformer.tokenizers.segmentation import SPACE
from jaxformer.tokenizers.special_tokens import SpecialTokens, TokenizerSettings
from jaxformer.tokenizers.subwords import sentence_pieces


class MarianTokenizer:
    """The pieces of ``source.spm`` and ``target.spm``, numbered by ``vocab.json``.

    A source that begins with the code of a language, such as ``>>fra<<`` of models with several target languages,
    begins with the token of the same name. Pieces that the vocabulary lacks become `unk`. Special tokens that are
    written in a text, such as ``</s>``, become their ids.

    Raises:
      ValueError: a model is damaged, ids are not distinct numbers from 0 on, or a special token is not below
        `vocab_size`.
    """

    start: tuple[int, ...] = ()
    """The tokens that a text begins with: none."""
    by_line: bool = False
    """False: sentencepiece removes line breaks."""
    normalizer: TextNormalizer = TextNormalizer()
    """The normalization of text: none. The models have their own normalization."""
    special: SpecialTokens
    """The special tokens; the decoder begins with the padding token."""
    clean_up: bool
    """True: decoded text has no spaces before marks, as with ``clean_up_tokenization_spaces`` of transformers."""
    settings: TokenizerSettings
    """Further settings."""

    def __init__(
        self,
        source: bytes,
        target: bytes,
        vocabulary: Mapping[str, int],
        special: SpecialTokens,
        *,
        clean_up: bool = False,
        settings: TokenizerSettings | None = None,
    ):
        self._models = {"source": source, "target": target}
        self._processors = {side: sentence_pieces(model) for side, model in self._models.items()}
        self._ids, self.special, self.clean_up, self.settings = dict(vocabulary), special, clean_up, settings or {}
        if {type(token) for token in self._ids.values()} != {int} or {*self._ids.values()} != {*range(len(self._ids))}:
            raise ValueError("the ids of a vocabulary must be 0, 1, 2, ...")
        if max(special.ids) >= self.vocab_size:
            raise ValueError(f"special tokens must be below {self.vocab_size}, got {special}")
        self._pieces = sorted(self._ids, key=lambda piece: self._ids[piece])
        named = sorted({special.pad, special.eos, special.unk})  # a decoder may begin with any token
        self._named = re.compile(f"({'|'.join(re.escape(self._pieces[token]) for token in named)})")

    @classmethod
    def from_saved(cls, saved: Mapping[str, Any]) -> MarianTokenizer:
        """Returns the tokenizer that `save` wrote; its fingerprint is not checked (see `load_tokenizer`).

        Raises:
          AttributeError, KeyError, TypeError, ValueError: the content is damaged.
        """
        source, target = (base64.b64decode(saved[side], validate=True) for side in ("source", "target"))
        special, clean_up = SpecialTokens(**saved["special"]), saved.get("clean_up", False) is True
        kept = dict(saved.get("settings", {}))
        return cls(source, target, saved["vocabulary"], special, clean_up=clean_up, settings=kept)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the models, the vocabulary and the special tokens as JSON, whole or not at all."""
        saved = {"special": dataclasses.asdict(self.special), "fingerprint": self.fingerprint}
        saved |= {name: x for name, x in (("clean_up", self.clean_up), ("settings", dict(self.settings))) if x}
        saved |= {side: base64.b64encode(model).decode() for side, model in self._models.items()}
        write_bytes(path, json.dumps(saved | {"vocabulary": self._ids}, indent=1).encode())

    @property
    def files(self) -> dict[str, bytes]:
        """The content of ``source.spm``, ``target.spm`` and ``vocab.json``."""
        vocabulary = json.dumps(self._ids, ensure_ascii=False, indent=1).encode()
        return {f"{side}.spm": model for side, model in self._models.items()} | {"vocab.json": vocabulary}

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        return len(self._ids)

    @property
    def fingerprint(self) -> str:
        """A hash of the models, the vocabulary and the special tokens."""
        settings = json.dumps([self._pieces, dataclasses.asdict(self.special)])
        return short_digest([*self._models.values(), settings])

    def is_special(self, token: int) -> bool:
        """Returns True for a special token."""
        return token in self.special.ids

    def id_of(self, piece: str) -> int | None:
        """Returns the id of a piece; None if there is no such piece."""
        return self._ids.get(piece)

    def encode(self, lines: Sequence[str], side: Side = "source") -> list[np.ndarray]:
        """Returns the token ids of each line, int32, without `bos` and `eos`.

        Raises:
          DataError, TypeError: see `check_texts`.
        """
        check_texts(lines)
        return [np.asarray(self._encoded(line, side), np.int32) for line in lines]

    def _encoded(self, text: str, side: Side) -> list[int]:
        parts = self._named.split(text)  # every second one is the name of a special token
        tokens = [[self._ids[x]] if i % 2 else self._part(x, side) for i, x in enumerate(parts)]
        return [token for part in tokens for token in part]

    def _part(self, text: str, side: Side) -> list[int]:
        code, end, after = text.partition("<<")
        pieces = []
        if end and code.startswith(">>"):
            pieces, text = [code + end], after
        pieces += self._processors[side].encode(text, out_type=str)
        return [self._ids.get(piece, self.special.unk) for piece in pieces]

    def encode_normalized(self, lines: Sequence[str]) -> list[np.ndarray]:
        """Returns the token ids of target lines, or of parts of them."""
        return self.encode(lines, "target")

    def segmentations(self, text: str) -> list[tuple[int, ...]]:
        """Returns the only known segmentation of a target text."""
        return [tuple(self._encoded(text, "target"))]

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of token ids on the target side; special tokens are left out."""
        pieces = [self._pieces[int(token)] for token in ids if int(token) not in self.special.ids]
        text = self._processors["target"].decode_pieces(pieces).replace(SPACE, " ").strip()
        return without_spaces_before_marks(text) if self.clean_up else text

    normalized = decode

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Returns the piece of each token, a space shown as U+2581."""
        return [self._pieces[int(token)] for token in ids]
