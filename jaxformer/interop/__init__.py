"""Models in formats that other programs read."""
