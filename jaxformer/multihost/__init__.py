"""Multi-process runs: processes that find each other, agree on settings and stop together."""

from jaxformer import lazy

__getattr__ = lazy.members(__name__, dict.fromkeys("cluster connections processes storage".split(), ""))
