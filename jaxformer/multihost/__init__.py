"""Processes that find each other, agree and stop together."""
