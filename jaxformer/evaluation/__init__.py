"""Scores of translations against references, and of language models on held-out text."""

from jaxformer import lazy

__getattr__ = lazy.members(__name__, dict.fromkeys("classification scores".split(), ""))
