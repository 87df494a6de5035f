"""Seeing what a model did: attention maps as arrays and text, pictures, loss curves."""
