"""Lossless subword tokenization by sentencepiece, which is imported in this file only."""

from __future__ import annotations

import functools
import io
import random
import re
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import sentencepiece

from jaxformer.errors import ConfigError
from jaxformer.tokenizers import segmentation
from jaxformer.tokenizers.base import Tokenizer
from jaxformer.tokenizers.normalization import (
    Side,
    TextNormalizer,
    check_texts,
    normalizer_of,
    with_normalizer,
    with_pieces,
)
from jaxformer.tokenizers.segmentation import SPACE, Draw, Sampler, Subwords
from jaxformer.tokenizers.special_tokens import MIN_SUBWORDS, SpecialTokens

ESCAPE = "\ue000"
"""The character that replaces a literal U+2581 in pieces, where sentencepiece writes U+2581 for a space."""

MOST_SEGMENTATIONS = 4096
"""The largest number of segmentations of a text that a search compares with."""

LONGEST = 4192
"""The largest number of bytes of a line that sentencepiece trains on; it skips longer ones."""

_DEFAULT = SpecialTokens()
_AS_IS = TextNormalizer()


def sentence_pieces(model: bytes) -> sentencepiece.SentencePieceProcessor:
    """Returns the processor of a sentencepiece model.

    Raises:
      ValueError: the bytes are empty, or no such model.
    """
    if not model:  # sentencepiece would make a processor without pieces
        raise ValueError("it is empty")
    try:
        # One thread: texts that are many are divided among processes.
        return sentencepiece.SentencePieceProcessor(model_proto=model, num_threads=1)
    except RuntimeError:
        raise ValueError("it holds no sentencepiece model") from None


class SubwordTokenizer(Tokenizer):
    """A vocabulary of subwords, trained with sentencepiece, lossless: ``decode(encode([text])[0]) == text``.

    Nothing is normalized unless the vocabulary was trained with a `TextNormalizer`, and characters outside the
    vocabulary become bytes. A line break is such a character, so it is one token and no piece spans two lines. The one
    exception is the private-use character U+E000, which stands for a literal U+2581.

    Raises:
      ValueError: `model` is not a sentencepiece model, it has no token for one of `SpecialTokens`, or its normalizer is
        damaged.
    """

    package = "sentencepiece"

    def __init__(self, model: bytes):
        self._model = model
        self._processor = processor = sentence_pieces(model)
        self.normalizer, self.vocab_size = normalizer_of(model), processor.vocab_size()
        self.special = SpecialTokens(
            pad=processor.pad_id(), bos=processor.bos_id(), eos=processor.eos_id(), unk=processor.unk_id()
        )

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        *,
        vocab_size: int,
        kind: Literal["unigram", "bpe"] = "unigram",
        character_coverage: float = 1.0,
        special: SpecialTokens = _DEFAULT,
        normalizer: TextNormalizer = _AS_IS,
        languages: Sequence[str] = (),
    ) -> SubwordTokenizer:
        """Learns a vocabulary of `vocab_size` pieces, including 256 bytes, the 4 special tokens and `languages`.

        Unigram: Kudo 2018; BPE: Sennrich et al. 2016. Training uses one thread, so equal lines give equal bytes.

        Args:
          lines: normalized text.
          normalizer: the normalization of the lines, which `encode` applies to other text.
          languages: the codes of languages that get a token each, which no text contains: see `tags`.

        Raises:
          DataError, TypeError: see `check_texts`.
          ConfigError: the corpus cannot fill the vocabulary, or has too many characters for it; the message names the
            largest or the smallest vocabulary that suits it.
        """
        model, lines, tags = io.BytesIO(), tuple(lines), [*map(tag_of, languages)]
        check_texts(lines)  # sentencepiece hides errors of its iterator
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=(_escape(part) for line in lines for part in line.split("\n")),
                model_writer=model,
                vocab_size=vocab_size,
                model_type=kind,
                character_coverage=character_coverage,
                normalization_rule_name="identity",
                byte_fallback=True,
                add_dummy_prefix=False,
                remove_extra_whitespaces=False,
                pad_id=special.pad,
                bos_id=special.bos,
                eos_id=special.eos,
                unk_id=special.unk,
                control_symbols=tags,
                num_threads=1,
                max_sentence_length=LONGEST,
                minloglevel=2,
            )
        except (RuntimeError, ValueError) as error:  # a ValueError for a number of more than 32 bits
            raise ConfigError(_refusal(str(error), vocab_size, MIN_SUBWORDS + len(tags))) from error
        return cls(with_normalizer(model.getvalue(), normalizer))

    def sample(
        self, lines: Sequence[str], side: Side = "source", *, seed: int | random.Random, alpha: float = 0.2
    ) -> list[np.ndarray]:
        """Draws a segmentation of each line, as a pure function of `lines`, `seed` and `alpha`.

        Args:
          seed: a number, or a generator, which a later call with further lines continues.
          alpha: for unigram, the exponent of the probabilities, more diverse if smaller (Kudo 2018); for BPE, the
            probability of dropping a merge, more diverse if larger (Provilkov et al. 2020).
        """
        draws = seed if isinstance(seed, random.Random) else random.Random(seed)  # noqa: S311 - data, not a secret
        draw, sample = draws.random, self._sampler(alpha)
        spaced = (_escape(line).replace(" ", SPACE) for line in self.normalizer(lines, side))
        return [np.asarray(sample(line, draw), np.int32) for line in spaced]

    def resample(self, ids: np.ndarray, draw: Draw, *, alpha: float = 0.2) -> np.ndarray:
        """Draws another segmentation of the text of token ids; see `sample`."""
        text = self._processor.decode(ids.tolist()).replace(" ", SPACE)
        return np.asarray(self._sampler(alpha)(text, draw), np.int32)

    def segmentations(self, text: str) -> list[tuple[int, ...]]:
        """Returns the tokens of every segmentation of a short text that is normalized.

        Raises:
          ConfigError: there are more than `MOST_SEGMENTATIONS`.
        """
        return segmentation.segmentations(self._subwords, _escape(text).replace(" ", SPACE), most=MOST_SEGMENTATIONS)

    @functools.lru_cache(maxsize=2)  # noqa: B019 - tokenizers live as long as a run
    def _sampler(self, alpha: float) -> Sampler:
        return (segmentation.unigram_sampler if self.is_unigram else segmentation.bpe_sampler)(self._subwords, alpha)

    @functools.cached_property
    def tags(self) -> dict[str, int]:
        """The token of each language that has one. Text cannot spell it: ``<2de>`` in a text is five characters.

        >>> tokenizer = SubwordTokenizer.train(["ab ba"] * 9, vocab_size=265, languages=["de", "fr"])
        >>> tokenizer.tags
        {'de': 4, 'fr': 5}
        >>> 4 in tokenizer.encode(["ab <2de>"])[0].tolist()
        False
        """
        controls = (token for token in range(self.vocab_size) if self._processor.is_control(token))
        found = ((re.fullmatch("<2(.+)>", self._piece(token)), token) for token in controls)
        return {match[1]: token for match, token in found if match}

    def scored_pieces(self) -> list[tuple[str, float]]:
        """Returns each piece with its score: a log-probability, or less the later the piece was merged in BPE."""
        return [(self._processor.id_to_piece(i), self._processor.get_score(i)) for i in range(self.vocab_size)]

    @functools.cached_property
    def is_unigram(self) -> bool:
        """True for a unigram model, False for byte-pair encoding."""
        try:
            self._processor.nbest_encode("a", nbest_size=2)
        except RuntimeError:  # BPE models have no n-best encoding
            return False
        return True

    @functools.cached_property
    def _subwords(self) -> Subwords:
        processor, tokens = self._processor, range(self.vocab_size)
        without_text = (processor.is_control, processor.is_unknown, processor.is_byte, processor.is_unused)
        ids = {processor.id_to_piece(i): i for i in tokens if not any(test(i) for test in without_text)}
        byte_ids = [processor.piece_to_id(f"<0x{byte:02X}>") for byte in range(256)]
        return Subwords(
            scores={piece: processor.get_score(token) for piece, token in ids.items()},
            ids=ids,
            spell=lambda character: [byte_ids[byte] for byte in character.encode()],
        )

    @property
    def scores(self) -> dict[int, float]:
        return {self._subwords.ids[piece]: score for piece, score in self._subwords.scores.items()}

    def with_tokens(self, tokens: Sequence[int]) -> SubwordTokenizer:
        return SubwordTokenizer(with_pieces(self._model, {*tokens}))

    def normalized(self, ids: Iterable[int]) -> str:
        special = self.special.ids
        return self._processor.decode([int(t) for t in ids if t not in special]).replace(ESCAPE, SPACE)

    def _split(self, lines: Sequence[str], side: Side) -> list[np.ndarray]:
        escaped = [_escape(line) if SPACE in line else line for line in lines]
        return self._processor.encode(escaped, return_type="numpy")

    def _piece(self, token: int) -> str:
        return self._processor.id_to_piece(token)

    def _hashed(self) -> list[bytes]:
        return [self._model]

    def _file(self) -> bytes:
        return self._model


def tag_of(language: str) -> str:
    """Returns the piece of a language's token, ``<2de>`` for "de" (Johnson et al. 2017)."""
    return f"<2{language}>"


def _refusal(reason: str, vocab_size: int, least: int) -> str:
    """Returns the error message for a vocabulary that sentencepiece cannot train, from its reason."""
    if most := re.search(r"a value <= (\d+)", reason):
        return f"vocab_size must be at most {most[1]} for this corpus, got {vocab_size}"
    if required := re.search(r"required_chars\. \d+ vs (\d+)", reason):
        return f"vocab_size must be at least {required[1]} for this corpus and its characters, got {vocab_size}"
    if "!sentences_.empty()" in reason:
        return f"cannot train a vocabulary: each line of the corpus is empty or longer than {LONGEST:,} bytes"
    if not least <= vocab_size < 2**31:
        return f"vocab_size must be at least {least} and less than 2**31, got {vocab_size}"
    return f"cannot train a vocabulary of {vocab_size} pieces on this corpus: {reason.rpartition('] ')[2] or reason}"


def _escape(line: str) -> str:
    return line.replace(SPACE, ESCAPE)
