"""Attention maps as arrays, tables and text, plots of attention and loss curves, and traces of beam search."""

from jaxformer import lazy

__getattr__ = lazy.members(__name__, dict.fromkeys("attention_maps beams plots".split(), ""))
