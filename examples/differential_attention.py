"""Differential attention: two softmaxes for each head, whose difference cancels what both attend to by mistake.

    jaxformer train demo --attention examples/differential_attention.py:attention --out run
    python -m experiments.own_attention --smoke --out smoke     # beside softmax

In Python, ``jaxformer.train(config, out, attention=attention)`` or ``pure(models.LanguageModel, config,
attention=attention)``. Ye et al. 2024, "Differential Transformer" (arXiv:2410.05258): heads are in pairs, and a pair
has one output, from the values of both,

    (1 - initial) norm((softmax(q1 k1) - strength softmax(q2 k2)) [v1, v2]).

The strength of a layer is exp(a1 b1) - exp(a2 b2) + initial, with four learned vectors, and begins near the constant
initial = 0.8 - 0.6 exp(-0.3 layer). The norm is that of the root mean square, for each pair; its learned scale is left
out, because the output projection that follows can learn it.
"""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer import functional as F
from jaxformer import modules


class DifferentialAttention(nnx.Module):
    """The attention of one layer; it fits any even number of heads, of any dimension."""

    def __init__(self, rngs: nnx.Rngs, layer: int, *, size: int = 16):
        """Draws the vectors of the strength.

        Args:
          layer: 0 for the first.
          size: the length of the vectors, which is that of a head in the paper.
        """
        self.vectors = nnx.Param(0.1 * jax.random.normal(rngs.params(), (4, size), jnp.float32), axes=(None, None))
        self.initial = nnx.Variable(jnp.float32(0.8 - 0.6 * math.exp(-0.3 * layer)))  # a constant: it is not trained

    def strength(self) -> jax.Array:
        """Returns the factor of the second softmax."""
        a1, b1, a2, b2 = self.vectors[...]
        return jnp.exp((a1 * b1).sum()) - jnp.exp((a2 * b2).sum()) + self.initial[...]

    def __call__(self, query, key, value, *, mask=None, scale=None, dropout=None):
        """Returns ``[B, T, N, H]``. A model whose configuration has a bias, a score or sinks refuses this attention."""
        batch, num_keys, num_kv_heads, dim = value.shape
        if query.shape[2] % 2 or num_kv_heads % 2:
            raise ValueError(
                f"the numbers of heads must be even, got {query.shape[2]} (queries), {num_kv_heads} (keys)"
            )
        values = value.reshape(batch, num_keys, num_kv_heads // 2, 2 * dim)
        options = {"mask": mask, "scale": scale, "dropout": dropout}
        first, second = (
            F.attention(query[:, :, i::2], key[:, :, i::2], values, **options).astype(jnp.float32) for i in (0, 1)
        )
        pairs = F.rms_norm(first - self.strength() * second, jnp.ones(2 * dim, jnp.float32), epsilon=1e-5)
        return ((1 - self.initial[...]) * pairs).astype(query.dtype).reshape(*query.shape[:3], dim)

    def weights(self, query, key, *, mask=None, scale=None) -> jax.Array:
        """Returns the maps ``[B, N / 2, T, S]``; the norm makes the output no linear function of the values."""
        options = {"mask": mask, "scale": scale}
        first, second = (F.attention_weights(query[:, :, i::2], key[:, :, i::2], **options) for i in (0, 1))
        return first - self.strength() * second


attention = modules.per_layer(DifferentialAttention)
