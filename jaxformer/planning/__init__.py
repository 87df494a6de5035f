"""Forecasts of a training step on target hardware, ahead of time: topology, collectives, roofline, memory."""
