"""The needs of a training step on target hardware: topology, collectives, roofline and forecast, ahead of time."""
