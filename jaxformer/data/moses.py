"""Tokenization of text into words by the rules of Moses (Koehn et al. 2007), and detokenization, with sacremoses."""

from __future__ import annotations

import functools

import sacremoses

VERSION: str = sacremoses.__version__


def tokenize(text: str, language: str) -> str:
    """Returns the words of a text, separated by spaces; control characters are removed.

    Args:
      language: the two-letter code that selects the rules.

    >>> tokenize("It's a dog, isn't it?", "en")
    "It 's a dog , isn 't it ?"
    """
    return " ".join(_tokenizer(language).tokenize(text, escape=False))


def detokenize(text: str, language: str) -> str:
    """Returns the text of space-separated words.

    >>> detokenize("It 's a dog , isn 't it ?", "en")
    "It's a dog, isn't it?"
    """
    return _detokenizer(language).detokenize(text.split(), unescape=False)


@functools.cache
def _tokenizer(language: str) -> sacremoses.MosesTokenizer:
    return sacremoses.MosesTokenizer(lang=language)


@functools.cache
def _detokenizer(language: str) -> sacremoses.MosesDetokenizer:
    return sacremoses.MosesDetokenizer(lang=language)
