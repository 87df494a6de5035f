"""What a training step needs on machines that are not here: topology, collectives, roofline, forecast."""
