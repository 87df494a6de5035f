"""The parts that text tasks share: the corpus of running text, the tokenizer of a run, and the sizes of tables."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np

from jaxformer.data.pairs import Pairs
from jaxformer.data.pipeline import prepare_tokenizer
from jaxformer.data.sources import locate
from jaxformer.data.text import Text, Texts, read_text
from jaxformer.errors import ConfigError, DataError, UnknownSizeError, did_you_mean
from jaxformer.functional.tokens import Tokens
from jaxformer.multihost import processes, storage
from jaxformer.tasks import sharing
from jaxformer.tasks.base import Splits
from jaxformer.tasks.config import words
from jaxformer.tasks.language_model.config import DataConfig
from jaxformer.tokenizers.base import Tokenizer
from jaxformer.tokenizers.loading import load_tokenizer
from jaxformer.tokenizers.normalization import TextNormalizer

FILES = ("tokenizer.model", "tokenizer.json")
"""The possible file names of a saved tokenizer: for subwords, and for characters or pretrained models."""

VOCAB_MULTIPLE = 8
"""Embedding tables are padded with unused tokens to a multiple of this number, so that a mesh can shard them."""

TextCorpus = Splits[Text]
"""A training text and a validation text."""


def read(data: DataConfig, split: Callable[[Text], Iterable[Text]]) -> TextCorpus:
    """Reads the training text and the validation text; `split` holds out a part of one if there is no other.

    Raises:
      DataError: no text is named, or a file is missing or holds no text.
    """
    if not data.text:
        raise DataError("no text: give --data.text FILE")
    names = [part for part in (data.text, data.validation) if part]
    texts = [read_text(*(locate(name, data.directory) for name in words(part))) for part in names]
    return TextCorpus(*texts) if data.validation else TextCorpus(*split(*texts))


def saved_tokenizer(run: pathlib.Path) -> pathlib.Path | None:
    """Returns the path of a run's tokenizer, or None; with `init_from`, its kind may differ from the settings."""
    return next((run / name for name in FILES if (run / name).exists()), None)


def run_tokenizer(run: pathlib.Path) -> Tokenizer:
    """Loads the tokenizer of a run."""
    path = saved_tokenizer(run)
    if path is None:
        raise DataError(f"{run} has no tokenizer: neither {' nor '.join(FILES)}")
    return load_tokenizer(path)


def make_run_tokenizer(
    run: pathlib.Path,
    text: Pairs | Text | Texts,
    cache: pathlib.Path | None,
    *,
    kind: Literal["unigram", "bpe", "characters", "pretrained"],
    vocab_size: int,
    normalizer: TextNormalizer | None = None,
    languages: Sequence[str] = (),
    num_sentences: int | None = None,
) -> Tokenizer:
    """Loads the tokenizer of a run; if it has none, the first process trains it on a text and saves it.

    Args:
      normalizer: the normalization in the settings; none by default.
      languages: the languages that have a token in the vocabulary.
      num_sentences: see `prepare_tokenizer`.

    Raises:
      ConfigError: the text cannot fill the vocabulary, or the tokenizer of `init_from` has another normalizer.
      DataError, OSError: the text has no words, or the disk is full; all processes raise the same.
    """
    normalizer = normalizer or TextNormalizer()
    path = saved_tokenizer(run) or run / FILES[kind == "characters"]

    def learn() -> None:
        if not processes.is_first() or path.exists():
            return
        if kind == "pretrained":
            raise ConfigError("data.tokenizer pretrained comes with a run of `jaxformer convert`: give --init-from RUN")
        options = {"normalizer": normalizer, "languages": languages, "num_sentences": num_sentences}
        waiting = sharing.waiting_for("the vocabulary")
        try:
            tokenizer = prepare_tokenizer(text, cache, kind=kind, vocab_size=vocab_size, waiting=waiting, **options)
        except ConfigError as error:
            if str(error).startswith(("tokenizer ", "vocab_size ")):  # an argument that is called like the setting
                raise ConfigError(f"data.{error}") from error
            raise
        tokenizer.save(path)

    processes.in_all(learn, "process 0 cannot learn the tokenizer: see its message")
    storage.wait_for_file(path)
    tokenizer = load_tokenizer(path)
    if tokenizer.normalizer != normalizer:
        raise ConfigError(
            f"the tokenizer of this run, that of init_from, is for text with {tokenizer.normalizer.described}, but the "
            f"settings ask for {normalizer.described}"
        )
    if missing := [language for language in languages if language not in tokenizer.tags]:
        raise ConfigError(
            f"the tokenizer of this run, that of init_from, has no token for {', '.join(missing)}, as data.tags asks"
            + (did_you_mean(missing[0], tokenizer.tags) if tokenizer.tags else "")
        )
    return tokenizer


def planned_vocab_size(config: Any, text: str = "text", smallest: int | tuple[int, ...] = 1) -> int:
    """Returns the vocabulary size that a task's settings determine; `text` names the task's data in the error."""
    if not config.model.vocab_size and config.data.tokenizer == "characters":
        message = f"the number of characters is not known without the {text}: give --model.vocab_size N"
        raise UnknownSizeError(message, smallest)
    return config.model.vocab_size or config.data.vocab_size


def check_vocab_size(name: str, setting: int, found: int, what: str = "tokenizer has") -> None:
    """Checks a size in the settings of a model, 0 for the one that is found."""
    if setting not in (0, found):
        raise DataError(f"model.{name} is {setting}, but the {what} {found}")


def table_size(vocab_size: int) -> int:
    """Returns the rows of an encoder's embedding table: the tokens, then the mask token, then padding."""
    return vocab_size + 1 + -(vocab_size + 1) % VOCAB_MULTIPLE


def empty_row(length: int) -> Tokens[np.ndarray]:
    """Returns a batch of one row without tokens, whose shapes and dtypes are those of every batch of texts."""
    ids = np.zeros((1, length), np.int32)
    return Tokens(ids, ids > 0, right_padded=True)
