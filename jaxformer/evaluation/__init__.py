"""Scores of translations, word alignments, classifications and language models, and what several seeds show."""

from jaxformer import lazy

__getattr__ = lazy.members(__name__, dict.fromkeys("alignments resampling scores seeds spans".split(), ""))
