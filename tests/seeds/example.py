"""The worked example of document 000, section 9.3: three tokens, four features, one head of dim 2."""

import jax.numpy as jnp
import numpy as np

X = jnp.array([[1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 0, 0]], jnp.float32)
W_Q = jnp.array([[1, 0], [0, 1], [1, 0], [0, 1]], jnp.float32)
W_K = jnp.array([[0, 1], [1, 0], [0, 1], [1, 0]], jnp.float32)
W_V = jnp.array([[1, 1], [0, 0], [0, 1], [1, 0]], jnp.float32)
Q, K, V = X @ W_Q, X @ W_K, X @ W_V

# exact values, from the exponentials of 4 / sqrt 2 and 2 / sqrt 2
WEIGHTS = np.array(
    [[0.045388, 0.767918, 0.186694], [0.767918, 0.045388, 0.186694], [1 / 3, 1 / 3, 1 / 3]],
)
OUTPUT = np.array([[1, 0.277470], [1, 1.722530], [1, 1]])
