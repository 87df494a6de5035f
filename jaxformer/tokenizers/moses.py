"""Tokenization of text into words by the rules of Moses (Koehn et al. 2007), and detokenization, with sacremoses."""

from __future__ import annotations

import functools

import sacremoses

from jaxformer.tokenizers.languages import check_language

VERSION: str = sacremoses.__version__


def tokenize(text: str, language: str) -> str:
    """Returns the words of a text, separated by spaces; control characters are removed.

    Args:
      language: the two-letter code that selects the rules.

    Raises:
      ConfigError: `language` is not a two-letter code (ISO 639-1).

    >>> tokenize("It's a dog, isn't it?", "en")
    "It 's a dog , isn 't it ?"
    """
    return " ".join(_tokenizer(language).tokenize(text, escape=False))


def detokenize(text: str, language: str) -> str:
    """Returns the text of space-separated words.

    Raises:
      ConfigError: see `tokenize`.

    >>> detokenize("It 's a dog , isn 't it ?", "en")
    "It's a dog, isn't it?"
    """
    return _detokenizer(language).detokenize(text.split(), unescape=False)


@functools.cache
def _tokenizer(language: str) -> sacremoses.MosesTokenizer:
    check_language(language)
    return sacremoses.MosesTokenizer(lang=language)


@functools.cache
def _detokenizer(language: str) -> sacremoses.MosesDetokenizer:
    check_language(language)
    return sacremoses.MosesDetokenizer(lang=language)
