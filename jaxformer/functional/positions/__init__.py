"""Position schemes: vectors for embeddings, rotations of queries and keys, and biases of the logits."""
