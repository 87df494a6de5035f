"""A subword tokenizer over both languages, trained with sentencepiece, that gives back exactly what it was given."""

from __future__ import annotations

import hashlib
import io
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import sentencepiece

PAD, BEGIN, END, UNKNOWN = 0, 1, 2, 3
"""Token ids with a fixed meaning in every vocabulary of this library."""

_SPACE = "\u2581"  # sentencepiece writes a space as this character, so a literal one needs an escape
_ESCAPE = "\ue000"


class Tokenizer:
    """Text to token ids and back, without loss: ``decode(encode(text)) == text``.

    Nothing is normalized, and characters outside the vocabulary become bytes.  The exceptions are line breaks and
    NUL, which no sentence holds, and the private-use character U+E000, which stands for a literal U+2581.
    """

    def __init__(self, model: bytes):
        self._model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        *,
        vocab_size: int,
        kind: Literal["unigram", "bpe"] = "unigram",
        character_coverage: float = 1.0,
    ) -> Tokenizer:
        """Learns a vocabulary of `vocab_size` pieces, 256 bytes and 4 special tokens among them.

        Unigram: Kudo 2018; BPE: Sennrich et al. 2016.  One thread, so equal lines give equal bytes.

        Raises:
          ValueError: the corpus cannot fill the vocabulary; the message names the largest that it can.
        """
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(_escape(line) for line in lines),
                model_writer=model,
                vocab_size=vocab_size,
                model_type=kind,
                character_coverage=character_coverage,
                normalization_rule_name="identity",
                byte_fallback=True,
                add_dummy_prefix=False,
                remove_extra_whitespaces=False,
                pad_id=PAD,
                bos_id=BEGIN,
                eos_id=END,
                unk_id=UNKNOWN,
                num_threads=1,
                minloglevel=2,
            )
        except RuntimeError as error:
            raise ValueError(f"cannot train a vocabulary of {vocab_size} pieces on this corpus: {error}") from error
        return cls(model.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Reads a tokenizer that `save` wrote.

        Raises:
          ValueError: the file is damaged.
        """
        model = pathlib.Path(path).read_bytes()
        try:
            if not model:  # which sentencepiece takes for a tokenizer without pieces
                raise RuntimeError("it is empty")
            return cls(model)
        except RuntimeError as error:
            raise ValueError(f"{path} is damaged: it holds no tokenizer") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model, whole or not at all."""
        path = pathlib.Path(path)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_bytes(self._model)
        os.replace(temporary, path)

    @property
    def vocab_size(self) -> int:
        """Number of token ids; a model's vocabulary must be this size."""
        return self._processor.vocab_size()

    @property
    def fingerprint(self) -> str:
        """A hash of the model: equal tokenizers, equal tokens."""
        return hashlib.sha256(self._model).hexdigest()[:16]

    def encode(self, lines: Sequence[str]) -> list[np.ndarray]:
        """The token ids of each line, int32, without BEGIN and END."""
        return [np.asarray(ids, np.int32) for ids in self._processor.encode([_escape(line) for line in lines])]

    def sample(self, lines: Sequence[str], *, seed: int, alpha: float = 0.2) -> list[np.ndarray]:
        """A random segmentation of each line, more diverse for a smaller `alpha` (Kudo 2018); repeatable by `seed`."""
        sentencepiece.set_random_generator_seed(seed % 2**32)
        draw = self._processor.encode
        return [
            np.asarray(draw(_escape(line), enable_sampling=True, alpha=alpha, nbest_size=-1), np.int32)
            for line in lines
        ]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids; special tokens are silent."""
        return _unescape(self._processor.decode([int(i) for i in ids if i > UNKNOWN]))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The piece of each token, a space shown as U+2581."""
        return [self._processor.id_to_piece(int(i)) for i in ids]


def _escape(line: str) -> str:
    return line.replace(_SPACE, _ESCAPE)


def _unescape(line: str) -> str:
    return line.replace(_ESCAPE, _SPACE)
