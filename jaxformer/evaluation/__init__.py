"""Scores: translations against references, language models on held-out text."""
