"""From text to batches: sources, tokenizer, batch plan, pipeline; and a corpus that needs no download."""
