"""The corpus of tasks on running text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from jaxformer.data.sources import locate
from jaxformer.data.text import Text, read_text
from jaxformer.errors import DataError
from jaxformer.tasks.base import Splits
from jaxformer.tasks.config import words

TextCorpus = Splits[Text]
"""A training text and a validation text."""


class TextSettings(Protocol):
    """The settings of a text; those named by `text` and `validation` are separated by commas."""

    @property
    def text(self) -> str: ...
    @property
    def validation(self) -> str: ...
    @property
    def directory(self) -> str: ...


def read(data: TextSettings, split: Callable[[Text], Iterable[Text]]) -> TextCorpus:
    """Reads the training text and the validation text; `split` holds out a part of one if there is no other.

    Raises:
      DataError: no text is named, or a file is missing or holds no text.
    """
    if not data.text:
        raise DataError("no text: give --data.text FILE")
    names = [part for part in (data.text, data.validation) if part]
    texts = [read_text(*(locate(name, data.directory) for name in words(part))) for part in names]
    return TextCorpus(*texts) if data.validation else TextCorpus(*split(*texts))
