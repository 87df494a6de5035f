"""Attention maps as arrays and text, and pictures of them and of loss curves."""
