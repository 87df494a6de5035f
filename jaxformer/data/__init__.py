"""From text to batches: sources, tokeniser, batch plan, pipeline; and a corpus that needs no download."""
