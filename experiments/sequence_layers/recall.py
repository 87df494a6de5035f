"""Two tasks that need a symbol long after its position, and one small network for each kind of layer."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from experiments.sequence_layers import layers
from jaxformer import functional, modules, pure

COUNT, SYMBOLS = 4, 8
BLANK, RECALL = 0, 8
NOISE = 8
ASK, DATA = NOISE, NOISE + COUNT
VOCABULARY = DATA + COUNT * SYMBOLS
WINDOW = 64


class Batch(NamedTuple):
    """Sequences whose last `COUNT` positions are questions."""

    tokens: np.ndarray  # [B, T]
    answers: np.ndarray  # [B, COUNT], each below SYMBOLS


def copy(rng: np.random.Generator, rows: int, distance: int) -> Batch:
    """Returns `COUNT` symbols, blanks, and as many requests, each `distance` after its symbol.

    This is the copy task of Hochreiter and Schmidhuber (1997) and Arjovsky et al. (2016).
    """
    tokens = np.full((rows, distance + COUNT), BLANK)
    answers = rng.integers(SYMBOLS, size=(rows, COUNT))
    tokens[:, :COUNT] = DATA + answers
    tokens[:, distance:] = RECALL
    return Batch(tokens.astype(np.int32), answers.astype(np.int32))


def selective(rng: np.random.Generator, rows: int, distance: int) -> Batch:
    """Returns labeled symbols at random places among noise, and a request for each label, in random order.

    The symbols are in the first half, so a symbol is `distance` / 2 to `distance` before its request. In the selective
    copy of Gu and Dao (2023) the order identifies the symbol; here a label does, so no counting is necessary.
    """
    tokens = rng.integers(NOISE, size=(rows, distance + COUNT))
    answers = rng.integers(SYMBOLS, size=(rows, COUNT))
    shuffled = lambda size, count: np.argsort(rng.random((rows, size)), axis=1)[:, :count]
    places, asked = shuffled(distance // 2, COUNT), shuffled(COUNT, COUNT)
    np.put_along_axis(tokens, places, DATA + np.arange(COUNT) * SYMBOLS + answers, axis=1)
    tokens[:, distance:] = ASK + asked
    return Batch(tokens.astype(np.int32), np.take_along_axis(answers, asked, axis=1).astype(np.int32))


TASKS: dict[str, Callable[[np.random.Generator, int, int], Batch]] = {"copy": copy, "selective": selective}


@dataclasses.dataclass(frozen=True)
class Network:
    """The shape of a network: blocks of one kind of layer."""

    kind: str
    d_model: int


BLOCKS = {"recurrent": 2, "convolution": 8, "dilated": 8, "attention": 2, "window": 2, "linear": 2}
"""The number of blocks: eight convolutions reach 17 positions, or 6,561 if dilated; two windows of 64 reach 129."""


def block_layer(kind: str, d_model: int, index: int) -> layers.Make:
    """Returns the layer of one block."""
    return {
        "recurrent": lambda: layers.recurrent(d_model),
        "convolution": lambda: layers.convolution(d_model),
        "dilated": lambda: layers.convolution(d_model, dilation=layers.KERNEL**index),
        "attention": lambda: layers.attention(d_model),
        "window": lambda: layers.attention(d_model, window=WINDOW),
        "linear": lambda: layers.linear_attention(d_model),
    }[kind]()


class Recaller(nnx.Module):
    """Token and sinusoidal position vectors, pre-norm blocks of a layer and a feed-forward network, and answers."""

    def __init__(self, config: Network, *, rngs: nnx.Rngs):
        d_model = config.d_model
        self.tokens = modules.Embedding(VOCABULARY, d_model, rngs=rngs)
        blocks = range(BLOCKS[config.kind])
        self.layers = nnx.Dict({f"{i}": block_layer(config.kind, d_model, i)(rngs) for i in blocks})
        self.feed_forwards = nnx.Dict({f"{i}": modules.FeedForward(d_model, 2 * d_model, rngs=rngs) for i in blocks})
        self.norms = nnx.Dict({f"{i}": modules.NormPair(lambda: modules.LayerNorm(d_model)) for i in blocks})
        self.last = modules.LayerNorm(d_model)
        self.answer = modules.Linear(d_model, SYMBOLS, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Returns logits ``[B, COUNT, SYMBOLS]`` at the last positions of ``[B, T]``."""
        x = self.tokens(tokens)
        x = x + functional.sinusoidal(jnp.arange(tokens.shape[1]), dim=x.shape[-1])[None]
        for name in self.layers:
            before, between = self.norms[name]
            x = functional.pre_norm(x, self.layers[name], before)
            x = functional.pre_norm(x, self.feed_forwards[name], between)
        return self.answer(self.last(x[:, -COUNT:]))


@functools.cache
def network(kind: str, parameters: int) -> Any:
    """Returns the network of a kind, of an even width, with about this number of parameters, as pure functions."""
    widths = 8, 16, 24
    square, linear, rest = np.polyfit(widths, [size(pure(Recaller, Network(kind, w))) for w in widths], 2)
    width = (-linear + (linear**2 + 4 * square * (parameters - rest)) ** 0.5) / (2 * square)
    return pure(Recaller, Network(kind, 2 * round(width / 2)))


def size(net: Any) -> int:
    """Returns the number of parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(net.shapes))


@dataclasses.dataclass(frozen=True)
class Budget:
    """The training that every network gets: the best of `rates`, chosen on validation sequences."""

    parameters: int = 40_000
    rows: int = 16
    tokens: int = 4096
    """The most tokens of a batch, which has fewer than `rows` sequences at long distances."""
    steps: int = 300
    rates: tuple[float, ...] = (1e-3, 4e-3)
    warmup: int = 40
    chunk: int = 25
    """The number of steps in one call; a training ends early when a call's answers were all right."""
    examined: int = 256
    """The number of validation sequences, and of test sequences."""

    def rows_at(self, distance: int) -> int:
        """Returns the number of sequences in a batch."""
        return max(1, min(self.rows, self.tokens // distance))


def programs(kind: str, budget: Budget) -> tuple[Any, Any, Any]:
    """Returns compiled functions that initialize, train for a chunk of steps, and answer."""
    net = network(kind, budget.parameters)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(b2=0.98))

    @jax.jit
    def initial(key):
        params = net.init(key)
        return params, optimizer.init(params)

    @jax.jit
    def train(state, rates, tokens, answers):
        def step(state, given):
            params, moments = state
            rate, tokens, answers = given

            def loss(params):
                logits = net.apply(params, tokens)
                total, count = functional.cross_entropy(logits, answers)
                return total / count, (logits.argmax(-1) == answers).mean()

            (value, right), gradient = jax.value_and_grad(loss, has_aux=True)(params)
            with jax.numpy_dtype_promotion("standard"):  # Adam raises a float to the power of a count
                updates, moments = optimizer.update(gradient, moments)
            params = jax.tree.map(lambda p, u: p - rate * u, params, updates)
            return (params, moments), (value, right)

        return jax.lax.scan(step, state, (rates, tokens, answers))

    return initial, train, jax.jit(lambda params, tokens: net.apply(params, tokens).argmax(-1))


def learn(task: str, kind: str, distance: int, budget: Budget, tick: Callable[[int], None], compiled: Any) -> dict:
    """Trains at each rate; returns accuracies, and those of the rate that was best on validation sequences."""
    initial, train, answer = compiled
    make, tries = TASKS[task], []
    for rate in budget.rates:
        rng = np.random.default_rng(0)
        state, steps, losses = initial(jax.random.key(0)), 0, []
        while steps < budget.steps:
            made = [make(rng, budget.rows_at(distance), distance) for _ in range(budget.chunk)]
            at = np.arange(steps, steps + budget.chunk)
            warm = np.minimum(1, (at + 1) / budget.warmup)
            rates = (rate * warm * np.maximum(0.05, 1 - at / budget.steps)).astype(np.float32)
            state, (values, right) = train(state, rates, *map(np.stack, zip(*made, strict=True)))
            steps += budget.chunk
            losses.append(float(values.mean()))
            tick(budget.chunk)
            if right.min() == 1:
                tick(budget.steps - steps)
                break
        examine = lambda seed: accuracy(answer, state[0], make, distance, budget, seed)  # noqa: B023
        tries.append({"rate": rate, "steps": steps, "validation": examine(1), "test": examine(2), "losses": losses})
    best = max(tries, key=lambda entry: entry["validation"])
    net = network(kind, budget.parameters)
    return {"accuracy": best["test"], "parameters": size(net), "d_model": net.config.d_model, "tries": tries}


def accuracy(answer: Any, params: Any, make: Any, distance: int, budget: Budget, seed: int) -> float:
    """Returns the share of right answers to fresh sequences; guessing gives 1 / SYMBOLS."""
    rng, right = np.random.default_rng((seed, distance)), []
    rows = budget.rows_at(distance)
    for _ in range(max(1, budget.examined // rows)):
        batch = make(rng, rows, distance)
        right.append(np.asarray(answer(params, batch.tokens)) == batch.answers)
    return float(np.mean(right))
