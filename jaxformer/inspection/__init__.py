"""Attention maps as arrays, tables and text, pictures of them and of loss curves, and beam search step by step."""
