"""Attention maps as arrays, text, plots and web pages, plots of loss curves, and traces of beam search."""

from jaxformer import lazy

__getattr__ = lazy.members(__name__, dict.fromkeys("attention_maps beams pages plots reports".split(), ""))
