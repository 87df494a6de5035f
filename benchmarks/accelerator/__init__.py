"""Measurements on one accelerator, in six parts that resume and fit eight minutes each."""
