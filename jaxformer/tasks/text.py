"""The corpus of tasks on running text, its tokenizer, and the checks of its settings."""

from __future__ import annotations

import pathlib
from typing import Any, ClassVar, Generic, TypeVar

from jaxformer.data.sources import locate
from jaxformer.data.text import Text, read_text
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.errors import ConfigError, DataError
from jaxformer.tasks.base import BatchT, PredictorT, Splits, Task
from jaxformer.tasks.config import words
from jaxformer.tasks.tokenizers import planned_vocab_size, run_tokenizer

TextConfigT = TypeVar("TextConfigT", bound=Any)
"""A configuration whose `data` has `text`, `validation`, `directory`, `tokenizer`, `vocab_size`, `length` and
`batch_size`."""

TextCorpus = Splits[Text]
"""A training text and a validation text."""


class TextTask(Task[TextConfigT, TextCorpus, BatchT, Tokenizer, PredictorT], Generic[TextConfigT, BatchT, PredictorT]):
    """A task whose examples are rows of `data.length` tokens of a text, without labels."""

    default_split: ClassVar[str] = "validation"

    def check(self, config: TextConfigT) -> None:
        limit = config.model.length_limit
        if limit is not None and config.data.length > limit:
            raise ConfigError(f"data.length is {config.data.length}, but model.max_positions is {limit}")

    def read(self, config: TextConfigT) -> TextCorpus:
        data = config.data
        if not data.text:
            raise DataError("no text: give --data.text FILE")
        texts = [
            read_text(*(locate(name, data.directory) for name in words(names)))
            for names in (data.text, data.validation)
            if names
        ]
        return TextCorpus(*texts) if data.validation else self.split(config, *texts)

    def split(self, config: TextConfigT, text: Text) -> TextCorpus:
        """Holds out a part of a text for validation."""
        raise NotImplementedError

    def vocabulary(self, run: pathlib.Path) -> Tokenizer:
        return run_tokenizer(run)

    def planned_vocab_size(self, config: TextConfigT) -> int:
        return planned_vocab_size(config)

    def smaller_batch(self, config: TextConfigT, num_rows: int) -> str:
        return f"--data.batch_size {num_rows}"
