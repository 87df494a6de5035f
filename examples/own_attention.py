"""Your own attention in a model of the library: sigmoid attention beside softmax, on the same batches.

    python examples/own_attention.py

Each key has a weight of its own between 0 and 1, and their sum is free: sigmoid(q k / sqrt(H) - log n) for n visible
keys (Ramapuram et al. 2024, "Theory, analysis, and best practices for sigmoid self-attention", arXiv:2409.04431).
A language model with either attention reads some random letters again and again. From their second time on, it can
know them by looking up what followed the same letter before, as an induction head does. The table has the loss of those
letters: in 400 steps, half a minute of CPU time, softmax learns it (0.002 nats), and sigmoid most of it (0.84; with
`embedding_scale=None` it is first, and both learn it). One task and one seed rank no attention.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxformer import functional as F
from jaxformer import masks, models, pure, training
from jaxformer.models import choices

V, T = 32, 32  # letters, and the length of a text
CONFIG = models.LanguageModelConfig(
    V,
    num_layers=2,
    d_model=64,
    num_heads=4,
    d_ff=128,
    positions=choices.Rotary(),
    norm=choices.RMSNorm(),
    dropout=0.0,
)


def sigmoid_attention(query, key, value, *, mask=None):
    """Returns the sigmoid attention ``[B, T, N, H]`` of queries, keys and values ``[B, T, N, H]``.

    A model whose configuration has a bias, a scale, a score or dropout of attention refuses it, since it takes none.
    """
    lengths = query.shape[1], key.shape[1]
    allowed = jnp.ones((1, 1, *lengths), bool) if mask is None else masks.as_mask(mask).dense(*lengths)
    visible = allowed.sum(-1, keepdims=True).astype(jnp.float32)
    logits = jnp.einsum("btnh,bsnh->bnts", query, key) * query.shape[-1] ** -0.5
    weights = jnp.where(allowed, jax.nn.sigmoid(logits - jnp.log(jnp.maximum(visible, 1))), 0.0)
    return jnp.einsum("bnts,bsnh->btnh", weights.astype(value.dtype), value)


def network(attention):
    """Returns the model with this attention, as pure functions."""
    return pure(models.LanguageModel, CONFIG, attention=attention)


def weights_of(net, params, tokens, layer: int) -> jax.Array:
    """Returns the attention weights ``[B, N, T, T]`` of a layer: its output for values that are the identity."""
    captured = net.bind(params).captured(tokens)["decoder.self"]
    return captured.layer(layer).weights()


def draw(random: np.random.Generator, batch_size: int) -> tuple[np.ndarray, ...]:
    """Returns tokens and labels ``[B, T]``, and True where the label is known from what came before."""
    letters = random.permuted(np.tile(np.arange(V, dtype=np.int32), (batch_size, 1)), axis=1)
    period = random.integers(8, 17, (batch_size, 1))
    text = np.take_along_axis(letters, np.arange(T + 1)[None] % period, axis=1)
    return text[:, :-1], text[:, 1:], np.arange(T)[None] >= period


def train(attention, steps: int, *, batch_size: int = 64, seed: int = 0) -> list[float]:
    """Returns the loss of each step; equal seeds give equal batches and equal initial parameters."""
    net, random = network(attention), np.random.default_rng(seed)

    def loss(params, batch, key):
        tokens, labels, known = batch
        return *F.cross_entropy(net.apply(params, tokens), labels, where=known), {}  # sum, count, other metrics

    optimizer = optax.adam(optax.warmup_constant_schedule(0.0, 3e-3, 50))
    state = training.create(net.init, optimizer, jax.random.key(seed))
    step, losses = training.make_step(loss, optimizer), []
    for _ in range(steps):
        state, metrics = step(state, draw(random, batch_size))
        losses.append(float(metrics["loss_sum"] / metrics["count"]))
    return losses


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    steps = parser.parse_args().steps
    softmax, sigmoid = train(F.attention, steps), train(sigmoid_attention, steps)
    print("  step  softmax  sigmoid   (mean loss of 20 steps; a guess has 3.47)")
    for end in range(20, steps + 1, 40):
        print(f"{end:6} {np.mean(softmax[end - 20 : end]):8.3f} {np.mean(sigmoid[end - 20 : end]):8.3f}")


if __name__ == "__main__":
    main()
