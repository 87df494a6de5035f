"""Labeled texts: reading them from plain files, and making batches."""

from __future__ import annotations

import abc
import dataclasses
import functools
import os
import unicodedata
from collections.abc import Callable, Sequence
from typing import Generic, Self

import jax
import numpy as np

from jaxformer.data.batch import Rows, Sequences
from jaxformer.data.batch_plan import BatchPlan, Planned
from jaxformer.data.lines import read_columns
from jaxformer.data.sources import num_held_out, split_rows
from jaxformer.data.token_cache import Ragged
from jaxformer.digests import short_digest
from jaxformer.errors import DataError, first_few
from jaxformer.functional.tokens import ArrayT, Tokens
from jaxformer.reprs import brief
from jaxformer.tokenizers.special_tokens import SpecialTokens


class Labeled(abc.ABC):
    """Labeled examples, which a hash of their contents splits and selects; equal contents stay together."""

    labels: tuple[str, ...]
    file: str
    """The file that they were read from, for messages."""

    @property
    @abc.abstractmethod
    def contents(self) -> Sequence[str]:
        """The text of each example that is hashed."""

    @abc.abstractmethod
    def take(self, rows: Sequence[int]) -> Self:
        """Returns the examples with these indices."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels that occur, sorted."""
        return tuple(sorted(set(self.labels)))

    def split(self, held_out: float) -> tuple[Self, Self]:
        """Holds out about `held_out` of the examples: a fraction, or a number of them if it is an integer.

        Raises:
          ConfigError: `held_out` is neither a fraction between 0 and 1 nor an integer from 1.
          DataError: a part would be empty.
        """
        contents = self.contents
        try:
            kept, part = split_rows(contents, num_held_out(held_out, len(contents)))
        except DataError as error:
            raise DataError(f"{self.file or 'examples'}: {error}") from error
        return self.take(kept), self.take(part)

    def first(self, number: int) -> Self:
        """Returns `number` examples, or all if there are fewer; larger sets contain smaller ones."""
        keys = [short_digest([content]) for content in self.contents]
        return self.take(sorted(sorted(range(len(keys)), key=keys.__getitem__)[:number]))


@dataclasses.dataclass(frozen=True)
class Examples(Labeled):
    """Texts with their labels, and the file that they were read from."""

    texts: tuple[str, ...]
    labels: tuple[str, ...]
    file: str = ""

    def __len__(self) -> int:
        return len(self.texts)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of every label and text in order."""
        return short_digest(f"{label}\t{text}\n" for label, text in zip(self.labels, self.texts, strict=True))

    @property
    def contents(self) -> tuple[str, ...]:
        return self.texts

    def take(self, rows: Sequence[int]) -> Examples:
        return Examples(tuple(self.texts[i] for i in rows), tuple(self.labels[i] for i in rows), self.file)


def checked_label(label: str, place: str, label_end: str = "", classes: Sequence[str] = ()) -> str:
    """Returns a label without blanks around it, normalized (NFC); for the arguments, see `read_examples`.

    Raises:
      DataError: it is empty, or not one of the classes; the message begins with `place`.
    """
    label = label.strip()
    if label_end:
        label = label.partition(label_end)[0].rstrip()
    label = unicodedata.normalize("NFC", label)
    if not label:
        raise DataError(f"{place}: the label is empty")
    if classes and label not in classes:
        raise DataError(f"{place}: the label {label!r} is not one of the classes {first_few(classes, 20)}")
    return label


def read_examples(
    path: str | os.PathLike[str],
    *,
    columns: Sequence[int] = (0, 1),
    separator: str = "\t",
    label_end: str = "",
    classes: Sequence[str] = (),
) -> Examples:
    """Reads a label and a text from each line; blank lines are skipped.

    Labels are normalized (Unicode's NFC), so that an accented letter may be one character or two.

    Args:
      columns: the columns of the label and of the text, counted from 0. With a space as `separator` there are two: the
        line up to the first space, and the rest. With a third column, an example is two texts with a tab between them.
      label_end: a delimiter that ends the label, such as ":" in "LOC:city".
      classes: the allowed labels, normalized; any by default.

    Raises:
      DataError: the file is missing, not UTF-8 or without an example; or a line has too few columns, a separator in a
        text, an empty label or text, or an unknown label. The message has the file and the line.
    """
    texts, labels, most = [], [], {" ": 1}.get(separator, -1)
    where = "the texts in columns {} and {}" if len(columns) == 3 else "the text in column {}"
    what = f"the label is in column {{}} and {where}, counted from 0; see --data.columns and --data.separator"
    for number, label, *parts in read_columns(path, columns, what, separator, most):
        labels.append(checked_label(label, f"{path}, line {number}", label_end, classes))
        parts = [text.strip() for text in parts]
        if not all(parts):
            raise DataError(f"{path}, line {number}: the {'second text' if parts[0] else 'text'} is empty")
        if len(parts) == 2 and any("\t" in text for text in parts):
            raise DataError(f"{path}, line {number}: a text of a pair holds a tab")
        texts.append("\t".join(parts))
    if not texts:
        raise DataError(f"{path} holds no example")
    return Examples(tuple(texts), tuple(labels), str(path))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LabeledBatch(Generic[ArrayT]):
    """B texts of at most T tokens and their classes; a text is ``bos`` (class token), tokens, ``eos`` and padding."""

    tokens: Tokens[ArrayT]  # int32 [B, T]; a row without valid tokens fills up the batch
    labels: ArrayT  # int32 [B]

    __repr__ = brief


@dataclasses.dataclass(frozen=True)
class PlannedTexts(Planned):
    """Tokenized texts with their classes, and the plan of their batches. Batch i is a pure function of these and i."""

    tokens: Ragged
    labels: np.ndarray  # int [N]
    special: SpecialTokens
    plan: BatchPlan
    typed: bool = False
    """True for token types of pairs: see `with_types`."""

    __repr__ = brief

    def batch(self, step: int, *, rows: Rows | None = None) -> LabeledBatch[np.ndarray]:
        """Makes batch number `step`; `rows` selects the rows to make, by default all.

        A text that does not fit its row keeps its first tokens.
        """
        (num_rows, length, _), examples, _ = self.plan.batch(step, rows=rows)
        texts = pad_texts(self.tokens.take(examples), (num_rows, length), self.special)
        if self.typed:
            texts = with_types(texts, self.special)
        classes = np.zeros(num_rows, np.int32)
        classes[: len(examples)] = self.labels[examples]
        return LabeledBatch(texts, classes)


def pad_texts(texts: Sequences, shape: tuple[int, int], special: SpecialTokens) -> Tokens[np.ndarray]:
    """Returns rows of ``bos``, the first ``shape[1] - 2`` tokens of a text, ``eos`` and padding.

    >>> pad_texts([np.array([7, 8, 9])], (2, 4), SpecialTokens()).ids.tolist()
    [[1, 7, 8, 2], [0, 0, 0, 0]]
    """
    ragged = Ragged.join(texts)
    rows, columns = np.arange(len(ragged)), np.arange(shape[1])
    lengths = np.minimum(ragged.lengths, shape[1] - 2)
    places = ragged.offsets[:-1, None] + columns - 1
    tokens, valid = np.full(shape, special.pad, np.int32), np.zeros(shape, bool)
    valid[rows] = columns < lengths[:, None] + 2
    inside = (columns > 0) & (columns <= lengths[:, None])
    tokens[: len(ragged)][inside] = ragged.tokens[places[inside]]
    tokens[rows, 0], tokens[rows, lengths + 1] = special.bos, special.eos
    return Tokens(tokens, valid, right_padded=True)


def tokenize_examples(
    texts: Sequence[str],
    encode: Callable[[Sequence[str]], Sequences],
    special: SpecialTokens,
    *,
    most: int,
    has_pairs: bool = False,
) -> tuple[Ragged, np.ndarray]:
    """Returns the tokens of texts, those of pairs with ``eos`` ([SEP]) in between, and their numbers before any cut.

    Pairs of more than `most` tokens are cut: the longer text first, at its end. Single texts are not cut here.

    >>> encode = lambda texts: [np.array([int(word) for word in text.split()]) for text in texts]
    >>> tokens, lengths = tokenize_examples(["7 8 9\\t5"], encode, SpecialTokens(), most=4, has_pairs=True)
    >>> tokens.tokens.tolist(), lengths.tolist()
    ([7, 8, 2, 5], [5])
    """
    if not has_pairs:
        tokens = Ragged.join(encode(texts))
        return tokens, tokens.lengths
    sides = list(zip(*(text.split("\t") for text in texts), strict=True)) or [(), ()]
    firsts, seconds = (Ragged.join(encode(side)) for side in sides)
    joined, end = [], np.array([special.eos], np.int32)
    for first, second in ((firsts[i], seconds[i]) for i in range(len(texts))):
        short = min(len(first), len(second), (most - 1) // 2)
        room = most - 1 - short
        joined += [np.concatenate([first[:room], end, second[: most - 1 - min(len(first), room)]])]
    return Ragged.join(joined), firsts.lengths + seconds.lengths + 1


def with_types(tokens: Tokens[np.ndarray], special: SpecialTokens) -> Tokens[np.ndarray]:
    """Returns tokens of pairs with token types: 0 up to the first ``eos``, 1 for the second text and its ``eos``.

    >>> with_types(pad_texts([np.array([7, 2, 5])], (1, 6), SpecialTokens()), SpecialTokens()).types.tolist()
    [[0, 0, 0, 1, 1, 0]]
    """
    ends = np.cumsum(tokens.ids == special.eos, 1) - (tokens.ids == special.eos)
    return dataclasses.replace(tokens, types=((ends > 0) & np.asarray(tokens.valid)).astype(np.int32))
