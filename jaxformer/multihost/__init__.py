"""Processes that find each other, agree and stop together."""

from jaxformer import lazy

__getattr__ = lazy.members(__name__, dict.fromkeys("cluster processes storage".split(), ""))
