"""Attention maps as arrays, tables and text, pictures of them and of loss curves, and beam search step by step."""

from jaxformer import lazy

__getattr__ = lazy.members(__name__, dict.fromkeys("attention_maps beams plots".split(), ""))
