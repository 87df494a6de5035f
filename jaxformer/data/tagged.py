"""Sentences with a label for each word: reading them from tables, splitting words into tokens, and making batches."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

import jax
import numpy as np

from jaxformer.data.batch import Rows
from jaxformer.data.batch_plan import BatchPlan, Planned
from jaxformer.data.examples import Labeled, checked_label, pad_texts
from jaxformer.data.lines import column_blocks
from jaxformer.data.token_cache import Ragged
from jaxformer.digests import short_digest
from jaxformer.errors import DataError
from jaxformer.functional.tokens import ArrayT, Tokens
from jaxformer.reprs import brief
from jaxformer.tokenizers.base import Tokenizer
from jaxformer.tokenizers.special_tokens import SpecialTokens

T = TypeVar("T")

IGNORED = -100
"""The label of a token that is not the first of a word, as in Hugging Face's data: it is not trained."""


@dataclasses.dataclass(frozen=True)
class TaggedSentences(Labeled):
    """The words of sentences with their labels, one after another, and the file that they were read from."""

    words: tuple[str, ...]
    labels: tuple[str, ...]
    offsets: tuple[int, ...]
    """The number of words before each sentence and, at the end, the number of all words."""
    file: str = ""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of every word and label in order, and of the ends of sentences."""
        pairs = self.by_sentence(list(zip(self.words, self.labels, strict=True)))
        return short_digest("".join(f"{word}\t{label}\n" for word, label in sentence) + "\n" for sentence in pairs)

    @property
    def sentences(self) -> list[Sequence[str]]:
        """The words of each sentence."""
        return self.by_sentence(self.words)

    def by_sentence(self, values: Sequence[T]) -> list[Sequence[T]]:
        """Returns values of all words as a sequence for each sentence."""
        return [values[start:stop] for start, stop in itertools.pairwise(self.offsets)]

    @property
    def contents(self) -> list[str]:
        return [" ".join(words) for words in self.sentences]

    def take(self, rows: Sequence[int]) -> TaggedSentences:
        pairs = self.by_sentence(list(zip(self.words, self.labels, strict=True)))
        return _joined([pairs[i] for i in rows], self.file)


def _joined(sentences: Sequence[Sequence[tuple[str, str]]], file: str) -> TaggedSentences:
    pairs = list(itertools.chain.from_iterable(sentences))
    offsets = itertools.accumulate(map(len, sentences), initial=0)
    return TaggedSentences(tuple(word for word, _ in pairs), tuple(label for _, label in pairs), tuple(offsets), file)


def read_tagged(
    path: str | os.PathLike[str],
    *,
    columns: Sequence[int] = (0, 1),
    separator: str = "\t",
    label_end: str = "",
    classes: Sequence[str] = (),
) -> TaggedSentences:
    """Reads a word and its label from each line of a table, as of CoNLL; a blank line ends a sentence.

    Comments (lines of one column that begin with "#"), "-DOCSTART-" and, if the first column has neither words nor
    labels, the rows of CoNLL-U for several words ("3-4") or for none ("5.1") are skipped.

    Args:
      columns: the columns of the word and of the label, counted from 0.
      label_end: see `read_examples`.
      classes: the allowed labels, normalized (NFC) as labels are; any by default.

    Raises:
      DataError: the file is missing or not UTF-8, or has no word; or a line has too few columns, a separator in a word,
        an empty word or label, or an unknown label. The message has the file and the line.
    """
    what = (
        "the word is in column {} and its label in column {}, counted from 0; see --data.columns and --data.separator"
    )
    sentences: list[list[tuple[str, str]]] = [[]]
    is_note = functools.partial(_is_note, columns=columns)
    for start, lines in column_blocks(path, columns, what, separator, is_note=is_note):
        for number, cells in enumerate(lines, start):
            if cells is None:
                sentences.append([])
            elif cells:
                word, label = cells[0].strip(" "), cells[1]  # an ideographic space is a word
                if not word:
                    raise DataError(f"{path}, line {number}: the word is empty")
                sentences[-1].append((word, checked_label(label, f"{path}, line {number}", label_end, classes)))
    if not any(sentences):
        raise DataError(f"{path} holds no word")
    return _joined([*filter(None, sentences)], str(path))


def _is_note(row: Sequence[str], columns: Sequence[int]) -> bool:
    is_note = row[0] == "-DOCSTART-" or (len(row) == 1 and row[0].startswith("#"))
    return is_note or (0 not in columns and re.fullmatch(r"\d+[-.]\d+", row[0]) is not None)


def split_words(text: str) -> tuple[str, ...]:
    """Splits a text at spaces, and punctuation and symbols off the ends of words.

    >>> split_words('"He isn\\'t 3.5 years old," she said.')
    ('"', 'He', "isn't", '3.5', 'years', 'old', ',', '"', 'she', 'said', '.')
    """
    found = []
    for chunk in text.split():
        marks = [unicodedata.category(character)[0] in "PS" for character in chunk]
        start = marks.index(False) if False in marks else len(chunk)
        stop = len(chunk) - marks[::-1].index(False) if False in marks else len(chunk)
        found += [*chunk[:start], *filter(None, [chunk[start:stop]]), *chunk[stop:]]
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class TokenizedWords:
    """The tokens of each word of some sentences, and the parts of sentences that fit a row."""

    words: Ragged
    firsts: np.ndarray
    """The first word of each part and, at the end, the number of all words."""

    __repr__ = brief

    @property
    def parts(self) -> Ragged:
        """The tokens of each part."""
        return Ragged(self.words.tokens, self.words.offsets[self.firsts])

    def labeled(self, labels: np.ndarray) -> Ragged:
        """Returns the label of each token of each part: that of a word at its first token, `IGNORED` at the others."""
        of_tokens = np.full(len(self.words.tokens), IGNORED, np.int32)
        of_tokens[self.words.offsets[:-1]] = labels
        return Ragged(of_tokens, self.words.offsets[self.firsts])

    def places(self, part: int) -> np.ndarray:
        """Returns the place of the first token of each word in the row of a part, which begins with a class token."""
        offsets = self.words.offsets[self.firsts[part] : self.firsts[part + 1]]
        return offsets - offsets[0] + 1


def tokenize_words(sentences: Iterable[Sequence[str]], tokenizer: Tokenizer, most: int) -> TokenizedWords:
    """Splits words into tokens, those of the sentence with a space between words, and sentences into parts.

    A part has at most `most` tokens, and ends with a word. A longer word keeps its first ones. A word without tokens,
    such as a soft hyphen, is an unknown one.
    """
    # A word includes the space before it, as in text.
    texts = [[" " * (i > 0) + word for i, word in enumerate(sentence)] for sentence in sentences]
    unique = list(dict.fromkeys(itertools.chain.from_iterable(texts)))
    unknown = np.array([tokenizer.special.unk], np.int32)
    table = {
        text: ids[:most] if len(ids) else unknown for text, ids in zip(unique, tokenizer.encode(unique), strict=True)
    }
    firsts, number = [], 0
    for sentence in texts:
        used = most + 1
        for text in sentence:
            used += len(table[text])
            if used > most:
                firsts.append(number)
                used = len(table[text])
            number += 1
    words = Ragged.join([table[text] for sentence in texts for text in sentence])
    return TokenizedWords(words, np.array([*firsts, number]))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TaggedBatch(Generic[ArrayT]):
    """B sentences of at most T tokens: ``bos`` (class token), tokens, ``eos`` and padding; a label at each token."""

    tokens: Tokens[ArrayT]  # int32 [B, T]
    labels: ArrayT  # int32 [B, T]: the class at the first token of each word, elsewhere `IGNORED`

    __repr__ = brief


@dataclasses.dataclass(frozen=True)
class PlannedTags(Planned):
    """Tokenized sentences with the labels of their tokens, and the plan of their batches, as `PlannedTexts`."""

    tokens: Ragged
    labels: Ragged
    special: SpecialTokens
    plan: BatchPlan

    __repr__ = brief

    def batch(self, step: int, *, rows: Rows | None = None) -> TaggedBatch[np.ndarray]:
        """Makes batch number `step`; `rows` selects the rows to make, by default all."""
        (num_rows, length, _), examples, _ = self.plan.batch(step, rows=rows)
        tokens = pad_texts(self.tokens.take(examples), (num_rows, length), self.special)
        chosen = self.labels.take(examples)
        labels = np.full((num_rows, length), IGNORED, np.int32)
        labels[: len(examples), 1:][np.arange(length - 1) < chosen.lengths[:, None]] = chosen.tokens
        return TaggedBatch(tokens, labels)
