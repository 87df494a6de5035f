"""Tokenizers of Marian (OPUS-MT): a sentencepiece model for each side, and one vocabulary for both."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from jaxformer.tokenizers.base import PublishedTokenizer
from jaxformer.tokenizers.normalization import Side
from jaxformer.tokenizers.segmentation import SPACE
from jaxformer.tokenizers.special_tokens import SpecialTokens, TokenizerSettings
from jaxformer.tokenizers.subwords import sentence_pieces


class MarianTokenizer(PublishedTokenizer):
    """The pieces of ``source.spm`` and ``target.spm``, numbered by ``vocab.json``.

    A source that begins with the code of a language, such as ``>>fra<<`` of models with several target languages,
    begins with the token of the same name. Pieces that the vocabulary lacks become `unk`. Special tokens that are
    written in a text, such as ``</s>``, become their ids; the decoder begins with the padding token. sentencepiece
    removes line breaks.

    Raises:
      ValueError: a model is damaged, ids are not distinct numbers from 0 on, or a special token is not below
        `vocab_size`.
    """

    package = "sentencepiece"

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
        self._ids = dict(vocabulary)
        self.vocab_size = len(self._ids)
        if {type(token) for token in self._ids.values()} != {int} or {*self._ids.values()} != {*range(self.vocab_size)}:
            raise ValueError("the ids of a vocabulary must be 0, 1, 2, ...")
        self._set(special, clean_up, settings)
        self._pieces = sorted(self._ids, key=lambda piece: self._ids[piece])
        named = sorted({special.pad, special.eos, special.unk})  # a decoder may begin with any token
        self._named = re.compile(f"({'|'.join(re.escape(self._pieces[token]) for token in named)})")

    @property
    def files(self) -> dict[str, bytes]:
        """The content of ``source.spm``, ``target.spm`` and ``vocab.json``."""
        vocabulary = json.dumps(self._ids, ensure_ascii=False, indent=1).encode()
        return {f"{side}.spm": model for side, model in self._models.items()} | {"vocab.json": vocabulary}

    def is_special(self, token: int) -> bool:
        """Returns True for a special token."""
        return token in self.special.ids

    def id_of(self, piece: str) -> int | None:
        """Returns the id of a piece; None if there is no such piece."""
        return self._ids.get(piece)

    def _split(self, lines: Sequence[str], side: Side) -> Iterator[list[int]]:
        for line in lines:
            parts = self._named.split(line)  # every second one is the name of a special token
            tokens = [[self._ids[x]] if i % 2 else self._part(x, side) for i, x in enumerate(parts)]
            yield [token for part in tokens for token in part]

    def _part(self, text: str, side: Side) -> list[int]:
        code, end, after = text.partition("<<")
        pieces = []
        if end and code.startswith(">>"):
            pieces, text = [code + end], after
        pieces += self._processors[side].encode(text, out_type=str)
        return [self._ids.get(piece, self.special.unk) for piece in pieces]

    def _joined(self, ids: Iterable[int]) -> str:
        pieces = [self._pieces[token] for token in ids if token not in self.special.ids]
        return self._processors["target"].decode_pieces(pieces).replace(SPACE, " ").strip()

    def _piece(self, token: int) -> str:
        return self._pieces[token]

    def _hashed(self) -> list[str | bytes]:
        return [*self._models.values(), json.dumps([self._pieces, dataclasses.asdict(self.special)])]

    def _content(self) -> Mapping[str, object]:
        models = {side: base64.b64encode(model).decode() for side, model in self._models.items()}
        return models | {"vocabulary": self._ids}
