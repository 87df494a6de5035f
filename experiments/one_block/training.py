"""Words, batches and a small training loop."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.one_block.families import BOS, EOS, MASK, PAD, Family, ModelSizes, Network, hide
from jaxformer import demo, pure
from jaxformer.demo import Pair

CHUNK = 10
"""Steps of one program."""


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Sentences as arrays of words: ``BOS words EOS`` and padding."""

    words: tuple[str, ...]
    """The word of each token; the first are special."""
    english: np.ndarray
    french: np.ndarray
    num_held_out: int
    """The first sentences, which are not trained on."""

    def text(self, tokens: Sequence[int]) -> str:
        """Returns the words up to the end of the sentence."""
        tokens = list(tokens)
        return " ".join(self.words[t] for t in (tokens[: tokens.index(EOS)] if EOS in tokens else tokens) if t > MASK)


def corpus(num_pairs: int, num_held_out: int, constructions: Sequence[str], length: int = 16) -> Corpus:
    """Returns pairs of the grammar of these constructions with fewer than `length` words on both sides."""
    drawn: list[Pair] = []
    size = 2 * num_pairs
    while len(drawn) < num_pairs:
        drawn = [pair for pair in demo.generate(size) if pair.construction in constructions and _fits(pair, length)]
        size *= 2
    sides = [[demo.words(getattr(pair, side)) for pair in drawn[:num_pairs]] for side in ("english", "french")]
    words = ("<pad>", "<s>", "</s>", "<mask>", *sorted({word for side in sides for line in side for word in line}))
    number = {word: i for i, word in enumerate(words)}
    english, french = (
        np.array([[BOS, *(number[w] for w in line), EOS, *[PAD] * (length - len(line) - 2)] for line in side], np.int32)
        for side in sides
    )
    return Corpus(words, english, french, num_held_out)


def _fits(pair: Pair, length: int) -> bool:
    return max(len(demo.words(pair.english)), len(demo.words(pair.french))) <= length - 2


def loss(net: Any, family: Family, params: Any, source: Any, words: Any, key: jax.Array) -> jax.Array:
    """Returns the mean cross entropy of what a family is trained on: masked words, or each next word."""
    if family.goal == "masked word":
        told, counted = hide(words, key)
        logits, labels = net.apply(params, told), words
    else:
        told, labels = words[:, :-1], words[:, 1:]
        logits, counted = net.apply(params, told, source if family.cross else None), labels != PAD
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses.mean(where=counted)


def train(
    family: Family,
    shape: ModelSizes,
    data: Corpus,
    *,
    steps: int,
    batch_size: int = 32,
    seed: int = 0,
    say: Callable[[int], None] = lambda done: None,
) -> tuple[Any, Any, float]:
    """Returns the network, its parameters, and the loss on the held-out sentences."""
    net = pure(Network, (family, shape))
    optimizer = optax.adam(optax.warmup_cosine_decay_schedule(0.0, 5e-3, min(100, steps // 2), steps))
    params = jax.jit(net.init)(jax.random.key(seed))
    state = jax.jit(optimizer.init)(params)
    held_out, rng = data.num_held_out, np.random.default_rng(seed)
    sides = data.english, data.french if family.goal == "translation" else data.english

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def advance(params: Any, state: Any, batches: Any, keys: Any):
        def one(carry: Any, given: Any):
            params, state = carry
            (source, words), key = given
            value, gradients = jax.value_and_grad(functools.partial(loss, net, family))(params, source, words, key)
            updates, state = optimizer.update(gradients, state, params)
            return (optax.apply_updates(params, updates), state), value

        (params, state), losses = jax.lax.scan(one, (params, state), (batches, keys))
        return params, state, losses

    for begin in range(0, steps, CHUNK):
        rows = rng.integers(held_out, len(data.english), (CHUNK, batch_size))
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), begin), CHUNK)
        params, state, _ = advance(params, state, tuple(side[rows] for side in sides), keys)
        say(CHUNK)
    validate = jax.jit(functools.partial(loss, net, family))
    value = validate(params, *(jnp.asarray(side[:held_out]) for side in sides), jax.random.key(seed + 1))
    return net, params, float(value)
