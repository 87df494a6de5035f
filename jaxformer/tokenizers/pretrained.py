"""Tokenizers of pretrained models: Hugging Face's ``tokenizer.json``, and the files of Marian and M2M100.

The package tokenizers, of the extra `pretrained`, is imported in this file only.
"""

from __future__ import annotations

import abc
import base64
import contextlib
import copy
import dataclasses
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jaxformer import lazy
from jaxformer.errors import DataError
from jaxformer.tokenizers.base import Tokenizer
from jaxformer.tokenizers.normalization import Side, with_pieces, without_spaces_before_marks
from jaxformer.tokenizers.segmentation import SPACE
from jaxformer.tokenizers.special_tokens import SpecialTokens, TokenizerSettings
from jaxformer.tokenizers.subwords import sentence_pieces
from jaxformer.tokenizers.trimming import with_ids


class PublishedTokenizer(Tokenizer):
    """The tokenizer of a published model, whose files have their own normalization; a token may span line breaks.

    Special tokens that are written in a text, such as ``</s>``, become their ids.
    """

    by_line = False
    clean_up: bool
    """True: decoded text has no spaces before marks, as with ``clean_up_tokenization_spaces`` of transformers."""
    settings: TokenizerSettings
    """Further settings."""

    def _set(
        self,
        special: SpecialTokens,
        clean_up: bool,
        settings: TokenizerSettings | None,
        tags: Mapping[str, int] | None = None,
    ) -> None:
        self.special, self.clean_up, self.settings = special, clean_up, settings or {}
        if tags:
            self.tags = dict(tags)
            if not all(0 <= token < self.vocab_size for token in self.tags.values()):
                raise ValueError(f"tokens for languages must be below {self.vocab_size}")
        if max(special.ids) >= self.vocab_size:
            raise ValueError(f"special tokens must be below {self.vocab_size}, got {special}")

    def normalized(self, ids: Iterable[int]) -> str:
        text = self._joined(map(int, ids))
        return without_spaces_before_marks(text) if self.clean_up else text

    @abc.abstractmethod
    def _joined(self, ids: Iterable[int]) -> str: ...

    def _file(self) -> bytes:
        more = {"clean_up": self.clean_up, "settings": dict(self.settings), "tags": dict(self.tags)}
        settings = {name: value for name, value in more.items() if value}
        saved = {"special": dataclasses.asdict(self.special), "fingerprint": self.fingerprint, **settings}
        return json.dumps({**saved, **self._content()}, indent=1).encode()

    @abc.abstractmethod
    def _content(self) -> Mapping[str, object]: ...


class PretrainedTokenizer(PublishedTokenizer):
    """The vocabulary of a pretrained model, with the normalization and the rules of its ``tokenizer.json``.

    Truncation, padding and BPE-dropout in the file are not used (with dropout, equal texts would have other tokens each
    time), and the tokens that it puts around a text (its template) are added when batches are made, as for other
    tokenizers. In pieces, U+2581 stands for a space or, with WordPiece, the beginning of a word.

    Raises:
      ConfigError: the package tokenizers is not installed.
      ValueError: the content describes no tokenizer, or a special token is not below `vocab_size`.
    """

    package = "tokenizers"
    content: str
    """The content of ``tokenizer.json``."""
    start: tuple[int, ...]
    """The tokens that a text begins with, by the file's template: the begin token of Llama, ``<s>`` of BART."""
    end: tuple[int, ...]
    """The tokens that the file's template puts after a text; batches have `eos` there."""

    def __init__(
        self,
        content: str,
        special: SpecialTokens,
        *,
        clean_up: bool = False,
        settings: TokenizerSettings | None = None,
        tags: Mapping[str, int] | None = None,
    ):
        self.content, self._tokenizer = content, _parsed(content)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        if hasattr(self._tokenizer.model, "dropout"):  # of BPE; the tokens of a text would be random
            self._tokenizer.model.dropout = None
        added = self._tokenizer.get_added_tokens_decoder()
        self._added = {token for token, about in added.items() if about.special}
        ids = sorted(self._tokenizer.get_vocab(with_added_tokens=True).values())
        self.vocab_size = 1 + max(ids, default=-1)
        with _refusing(ValueError, "it describes no tokenizer"):
            self.start, self.end = self._template(ids)
        if outside := [token for token in (*self.start, *self.end) if token >= self.vocab_size]:
            raise ValueError(f"its template has the token {outside[0]}, which is not below {self.vocab_size}")
        decoder = json.loads(content).get("decoder") or {}
        self._is_byte_level = decoder.get("type") == "ByteLevel"
        self._inside = decoder.get("prefix", "##") if decoder.get("type") == "WordPiece" else ""
        self._set(special, clean_up, settings, tags)

    def _set(self, special, clean_up, settings, tags=None):
        super()._set(special, clean_up, settings, tags)
        if tags:  # the language of the file's template is one of several
            self.start = self.end = ()

    def with_special(
        self,
        special: SpecialTokens,
        *,
        clean_up: bool = False,
        settings: TokenizerSettings | None = None,
        tags: Mapping[str, int] | None = None,
    ) -> PretrainedTokenizer:
        """Returns this tokenizer with other special tokens, settings and languages; the content is not read again.

        Raises:
          ValueError: a special token is not below `vocab_size`.
        """
        other = copy.copy(self)
        other._set(special, clean_up, settings, tags)
        return other

    def _template(self, ids: Iterable[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the tokens that the file puts before and after a text."""
        pieces = (self._tokenizer.decode([token], skip_special_tokens=False) for token in ids)
        for text in itertools.chain("a", pieces):  # until one is in the vocabulary
            with contextlib.suppress(Exception):  # the library raises Exception itself
                encoding = self._tokenizer.encode(text)
                ids, is_added = tuple(encoding.ids), encoding.special_tokens_mask
                if 0 in is_added:
                    return ids[: is_added.index(0)], ids[len(ids) - is_added[::-1].index(0) :]
        return tuple(self._tokenizer.encode("").ids), ()

    @property
    def mask(self) -> str | None:
        """The name of the mask token; None if there is no such token."""
        names = (self.settings.get("mask_token"), "[MASK]", "<mask>")
        return next((name for name in names if isinstance(name, str) and self.id_of(name) is not None), None)

    @property
    def names(self) -> list[str]:
        return [self._tokenizer.id_to_token(token) or "" for token in range(self.vocab_size)]

    @property
    def inside(self) -> str:
        return json.loads(self.content)["model"].get("continuing_subword_prefix") or ""

    @property
    def scores(self) -> dict[int, float]:
        vocabulary = json.loads(self.content)["model"].get("vocab")
        return {i: score for i, (_, score) in enumerate(vocabulary)} if isinstance(vocabulary, list) else {}

    def with_tokens(self, tokens: Sequence[int]) -> PretrainedTokenizer:
        rules, numbers = json.loads(self.content), {token: number for number, token in enumerate(tokens)}
        content = json.dumps(with_ids(rules, numbers), ensure_ascii=False)
        tags = {code: numbers[token] for code, token in self.tags.items()}
        about = {"clean_up": self.clean_up, "settings": self.settings, "tags": tags}
        return PretrainedTokenizer(content, self.special.among(tokens), **about)

    def is_special(self, token: int) -> bool:
        """Returns True if the file declares a token as special, not as part of the text."""
        return token in self._added

    def id_of(self, piece: str) -> int | None:
        """Returns the id of a token by its exact name, such as ``[MASK]``; None if there is no such token."""
        return self._tokenizer.token_to_id(piece)

    def _split(self, lines: Sequence[str], side: Side) -> Iterator[list[int]]:
        with _refusing(DataError, "this tokenizer cannot split the text"):
            encodings = self._tokenizer.encode_batch(list(lines), add_special_tokens=False)
        return (encoding.ids for encoding in encodings)

    def _joined(self, ids: Iterable[int]) -> str:
        special = (self.special.ids | {*self.start, *self.tags.values()}) & self._added
        with _refusing(DataError, "this tokenizer cannot join the tokens"):
            return self._tokenizer.decode([token for token in ids if token not in special], skip_special_tokens=False)

    def _piece(self, token: int) -> str:
        name = self._tokenizer.id_to_token(token) or ""
        if self._inside and token not in self._added:
            begins = not name.startswith(self._inside) and any(map(str.isalnum, name))  # a mark begins no word
            return SPACE + name if begins else name.removeprefix(self._inside)
        if not self._is_byte_level or token in self.special.ids:
            return name
        text = self._tokenizer.decode([token], skip_special_tokens=False)  # the name has other letters for its bytes
        return text.replace(" ", SPACE)

    def _hashed(self) -> list[str]:
        tags = [json.dumps(self.tags)] if self.tags else []
        return [self.content, json.dumps(dataclasses.asdict(self.special)), *tags]

    def _content(self) -> dict[str, str]:
        return {"tokenizer": self.content}


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

    @property
    def names(self) -> list[str]:
        return self._pieces

    def _cut(self, tokens: Sequence[int]) -> tuple[list[bytes], dict[str, int]]:
        """Returns both models and the vocabulary with some of the tokens; pieces that are no tokens stay."""
        kept = {self._pieces[token]: number for number, token in enumerate(tokens)}
        models = []
        for side, processor in self._processors.items():
            pieces = [(i, processor.id_to_piece(i)) for i in range(processor.vocab_size())]
            stay = {i for i, piece in pieces if piece in kept or piece not in self._ids}
            stay.add(min(range(len(pieces)), key=processor.get_score))  # the score of unknown characters follows it
            models.append(with_pieces(self._models[side], stay))
        return models, kept

    def with_tokens(self, tokens: Sequence[int]) -> MarianTokenizer:
        (source, target), kept = self._cut(tokens)
        about = {"clean_up": self.clean_up, "settings": self.settings}
        return MarianTokenizer(source, target, kept, self.special.among(tokens), **about)

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


class M2M100Tokenizer(MarianTokenizer):
    """The pieces of ``sentencepiece.bpe.model``, numbered by ``vocab.json``, and after them a token of each language.

    Then follow as many tokens without a text as the setting ``num_madeup_words`` says.

    Raises:
      ValueError: see `MarianTokenizer`.
    """

    def __init__(
        self,
        model: bytes,
        vocabulary: Mapping[str, int],
        special: SpecialTokens,
        *,
        languages: Sequence[str],
        settings: TokenizerSettings | None = None,
    ):
        tags = {code: len(vocabulary) + i for i, code in enumerate(languages)}
        self._numbered = dict(vocabulary)
        everything = self._numbered | {f"__{code}__": token for code, token in tags.items()}
        for number in range(int(str((settings or {}).get("num_madeup_words", 0)))):
            everything[f"madeupword{number}"] = len(everything)
        super().__init__(model, model, everything, special, settings=settings)
        self.tags = tags
        names = [self._pieces[token] for token in sorted({*special.ids, 0, *tags.values()})]
        self._named = re.compile(f"({'|'.join(map(re.escape, names))})")

    @property
    def files(self) -> dict[str, bytes]:
        """The content of ``sentencepiece.bpe.model`` and ``vocab.json``."""
        vocabulary = json.dumps(self._numbered, ensure_ascii=False, indent=1).encode()
        return {"sentencepiece.bpe.model": self._models["source"], "vocab.json": vocabulary}

    def with_tokens(self, tokens: Sequence[int]) -> M2M100Tokenizer:
        models, kept = self._cut(tokens)
        numbered = {piece: number for piece, number in kept.items() if piece in self._numbered}
        about = {"languages": [*self.tags], "settings": self.settings}
        return M2M100Tokenizer(models[0], numbered, self.special.among(tokens), **about)

    def is_special(self, token: int) -> bool:
        return super().is_special(token) or token >= len(self._numbered)

    def _part(self, text: str, side: Side) -> list[int]:
        return [self._ids.get(piece, self.special.unk) for piece in self._processors[side].encode(text, out_type=str)]

    def _joined(self, ids: Iterable[int]) -> str:
        return super()._joined(token for token in ids if token < len(self._numbered))

    def _content(self) -> Mapping[str, object]:
        return {"source": base64.b64encode(self._models["source"]).decode(), "vocabulary": self._numbered}


def _parsed(content: str) -> Any:
    lazy.require("tokenizers", what="this tokenizer needs", extra="pretrained")
    import tokenizers

    with _refusing(ValueError, "it describes no tokenizer"):
        return tokenizers.Tokenizer.from_str(content)


@contextlib.contextmanager
def _refusing(kind: type[ValueError], problem: str) -> Iterator[None]:
    """Replaces errors of the package, which raises Exception itself, and a BaseException for a panic in Rust."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # such as an interrupt
        raise kind(f"{problem}: {error}") from None
