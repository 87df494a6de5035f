"""Everything between text files and batches: sources, tokenizers, plans of batches and windows, pipeline."""
