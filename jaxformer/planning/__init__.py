"""Forecasts of a training step on target hardware, ahead of time: topology, collectives, roofline, memory."""

from jaxformer import lazy

__getattr__ = lazy.members(
    __name__, dict.fromkeys("flops forecast graph hlo program roofline sizes topology".split(), "")
)
