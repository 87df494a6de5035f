"""Scores of translations, word alignments, classifications and language models."""

from jaxformer import lazy

__getattr__ = lazy.members(__name__, dict.fromkeys("alignments scores".split(), ""))
