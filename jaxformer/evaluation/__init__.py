"""Scores of translations against references, and of language models on held-out text."""
