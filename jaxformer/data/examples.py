"""Labeled texts: reading them from plain files, and making batches."""

from __future__ import annotations

import dataclasses
import functools
import os
import unicodedata
from collections.abc import Sequence
from typing import Generic

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


@dataclasses.dataclass(frozen=True)
class Examples:
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
    def classes(self) -> tuple[str, ...]:
        """The labels that occur, sorted."""
        return tuple(sorted(set(self.labels)))

    def split(self, held_out: float) -> tuple[Examples, Examples]:
        """Holds out about `held_out` of the examples, chosen by a hash; equal texts stay together.

        Args:
          held_out: a fraction, or a number of examples if it is an integer.

        Raises:
          ConfigError: `held_out` is neither a fraction between 0 and 1 nor an integer from 1.
          DataError: a part would be empty.
        """
        try:
            kept, part = split_rows(self.texts, num_held_out(held_out, len(self)))
        except DataError as error:
            raise DataError(f"{self.file or 'examples'}: {error}") from error
        return self._take(kept), self._take(part)

    def first(self, number: int) -> Examples:
        """Returns `number` examples chosen by a hash, or all if there are fewer; larger sets contain smaller ones."""
        keys = [short_digest([text]) for text in self.texts]
        return self._take(sorted(sorted(range(len(self)), key=keys.__getitem__)[:number]))

    def _take(self, rows: Sequence[int]) -> Examples:
        return Examples(tuple(self.texts[i] for i in rows), tuple(self.labels[i] for i in rows), self.file)


def read_examples(
    path: str | os.PathLike[str],
    *,
    columns: tuple[int, int] = (0, 1),
    separator: str = "\t",
    label_end: str = "",
    classes: Sequence[str] = (),
) -> Examples:
    """Reads a label and a text from each line; blank lines are skipped.

    Labels are normalized (Unicode's NFC), so that an accented letter may be one character or two.

    Args:
      columns: the columns of the label and of the text, counted from 0. With a space as `separator` there are two: the
        line up to the first space, and the rest.
      label_end: a delimiter that ends the label, such as ":" in "LOC:city".
      classes: the allowed labels, normalized; any by default.

    Raises:
      DataError: the file is missing, not UTF-8 or without an example; or a line has too few columns, a separator in a
        text, an empty label or text, or an unknown label. The message has the file and the line.
    """
    texts, labels, most = [], [], {" ": 1}.get(separator, -1)
    what = (
        "the label is in column {} and the text in column {}, counted from 0; see --data.columns and --data.separator"
    )
    for number, label, text in read_columns(path, columns, what, separator, most):
        label, text = label.strip(), text.strip()
        if label_end:
            label = label.partition(label_end)[0].rstrip()
        label = unicodedata.normalize("NFC", label)
        if not label or not text:
            raise DataError(f"{path}, line {number}: the {'label' if not label else 'text'} is empty")
        if classes and label not in classes:
            raise DataError(
                f"{path}, line {number}: the label {label!r} is not one of the classes {first_few(classes, 20)}"
            )
        labels.append(label)
        texts.append(text)
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

    __repr__ = brief

    def batch(self, step: int, *, rows: Rows | None = None) -> LabeledBatch[np.ndarray]:
        """Makes batch number `step`; `rows` selects the rows to make, by default all.

        A text that does not fit its row keeps its first tokens.
        """
        (num_rows, length, _), examples, _ = self.plan.batch(step, rows=rows)
        texts = pad_texts(self.tokens.take(examples), (num_rows, length), self.special)
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
