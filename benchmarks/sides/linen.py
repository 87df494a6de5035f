"""A plain Flax Linen encoder-decoder in the style of its guides, with the faster `rbg` random bits."""

from __future__ import annotations

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.sides.arrays import PAD, batch
from benchmarks.sides.ours import product

__all__ = ["build", "product", "versions"]


class Layer(nn.Module):
    d_model: int
    num_heads: int
    d_ff: int
    rate: float
    cross: bool

    @nn.compact
    def __call__(self, x, memory, mask, memory_mask):
        attend = lambda: nn.MultiHeadDotProductAttention(self.num_heads, dropout_rate=self.rate, deterministic=False)
        drop = lambda y: nn.Dropout(self.rate, deterministic=False)(y)
        x = nn.LayerNorm()(x + drop(attend()(x, x, mask=mask)))
        if self.cross:
            x = nn.LayerNorm()(x + drop(attend()(x, memory, mask=memory_mask)))
        y = drop(nn.relu(nn.Dense(self.d_ff)(x)))
        return nn.LayerNorm()(x + drop(nn.Dense(self.d_model)(y)))


class Transformer(nn.Module):
    vocab_size: int
    d_model: int
    num_heads: int
    d_ff: int
    num_layers: int
    rate: float

    @nn.compact
    def __call__(self, source, target):
        table = nn.Embed(self.vocab_size, self.d_model, embedding_init=nn.initializers.normal(self.d_model**-0.5))
        drop = lambda y: nn.Dropout(self.rate, deterministic=False)(y)
        embed = lambda tokens: drop(table(tokens) * self.d_model**0.5 + sinusoidal(tokens.shape[1], self.d_model))
        source_mask = (source != PAD)[:, None, None]
        mask = nn.combine_masks(nn.make_causal_mask(target), (target != PAD)[:, None, None])
        memory, x = embed(source), embed(target)
        sizes = (self.d_model, self.num_heads, self.d_ff, self.rate)
        for _ in range(self.num_layers):
            memory = Layer(*sizes, cross=False)(memory, None, source_mask, None)
        for _ in range(self.num_layers):
            x = Layer(*sizes, cross=True)(x, memory, mask, source_mask)
        return table.attend(x)


def sinusoidal(length, d_model):
    angles = np.arange(length)[:, None] / 10_000 ** (np.arange(0, d_model, 2) / d_model)
    return jnp.asarray(np.concatenate([np.sin(angles), np.cos(angles)], 1), jnp.float32)


def build(spec):
    jax.config.update("jax_default_prng_impl", "rbg")
    net = Transformer(
        spec["vocab_size"], spec["d_model"], spec["num_heads"], spec["d_ff"], spec["num_layers"], spec["dropout"]
    )
    arrays = jax.tree.map(jnp.asarray, batch(spec))
    source, target, labels = arrays["source"], arrays["target"][:, :-1], arrays["target"][:, 1:]
    key = jax.random.key(0)
    params = jax.jit(net.init)({"params": key, "dropout": key}, source, target)
    optimizer = optax.adam(7e-4, b1=0.9, b2=0.98)
    state = (params, optimizer.init(params), jnp.int32(0))

    def loss(params, key):
        logits = net.apply(params, source, target, rngs={"dropout": key})
        assert isinstance(logits, jax.Array)  # no changed variables beside it
        smooth = optax.smooth_labels(jax.nn.one_hot(labels, spec["vocab_size"]), 0.1)
        each = optax.softmax_cross_entropy(logits, smooth)
        return jnp.where(labels != PAD, each, 0).sum() / (labels != PAD).sum()

    def step(state):
        params, slots, number = state
        value, slope = jax.value_and_grad(loss)(params, jax.random.fold_in(key, number))
        updates, slots = optimizer.update(slope, slots)
        return (optax.apply_updates(params, updates), slots, number + 1), value

    step = jax.jit(step, donate_argnums=0)

    def once():
        nonlocal state
        state, value = step(state)
        jax.block_until_ready((state, value))

    return once


def versions():
    return f"jax {jax.__version__}, flax {flax.__version__} (linen)"
