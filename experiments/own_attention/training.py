"""Two tasks for one small language model with each attention: needles among noise, and the characters of a text."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from examples import differential_attention, sparsemax
from jaxformer import demo, functional, models, pure
from jaxformer.functional import Tokens
from jaxformer.models import choices

ATTENTIONS: dict[str, Any] = {
    "softmax": functional.attention,
    "differential": differential_attention.attention,
    "sparsemax": sparsemax.attention,
}

NOISE, NEEDLES, VALUES, QUESTIONS, LENGTH = 16, 6, 8, 2, 64
"""Tokens of noise; names and values of needles; questions at the end of a text; the length before them."""
ASK, NEEDLE = NOISE, NOISE + NEEDLES
CHUNK = 10
"""Steps of one program."""

Batch = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Tokens, labels and True where a label counts, ``[B, T]``."""


@dataclasses.dataclass(frozen=True)
class Scale:
    """The amount of work."""

    seeds: int
    steps: int
    d_model: int
    rows: int
    sentences: int
    """The number of sentences of the text."""
    window: int
    """The number of characters that a row has."""


def needles(rng: np.random.Generator, rows: int) -> Batch:
    """Returns texts of noise with a needle for each name, then questions: the answer is the needle of the name asked.

    Six needles and two questions, as in the multi-needle retrieval of Ye et al. (2024), section 3.4.
    """
    tokens = rng.integers(NOISE, size=(rows, LENGTH + QUESTIONS))
    drawn = lambda size, number: np.argsort(rng.random((rows, size)), axis=1)[:, :number]
    found = NEEDLE + np.arange(NEEDLES) * VALUES + rng.integers(VALUES, size=(rows, NEEDLES))
    np.put_along_axis(tokens, drawn(LENGTH, NEEDLES), found, axis=1)
    asked = drawn(NEEDLES, QUESTIONS)
    tokens[:, LENGTH:] = ASK + asked
    labels = np.zeros_like(tokens)
    labels[:, LENGTH:] = np.take_along_axis(found, asked, axis=1)
    counted = np.broadcast_to(np.arange(LENGTH + QUESTIONS) >= LENGTH, tokens.shape)
    return tokens.astype(np.int32), labels.astype(np.int32), counted


@dataclasses.dataclass(frozen=True)
class Characters:
    """Windows of a text of the built-in grammar; its last tenth is held out."""

    text: np.ndarray
    alphabet: str
    window: int

    @staticmethod
    def of(scale: Scale) -> Characters:
        """Returns the text of a scale."""
        text = demo.text(scale.sentences)
        alphabet = "".join(sorted(set(text)))
        number = {character: i for i, character in enumerate(alphabet)}
        return Characters(np.array([number[x] for x in text], np.int32), alphabet, scale.window)

    def __call__(self, rng: np.random.Generator, rows: int) -> Batch:
        """Returns windows of the training text."""
        return self._windows(rng.integers(self._end - self.window, size=rows))

    def held_out(self, rows: int) -> Batch:
        """Returns the first windows of the held-out text, one after another."""
        starts = np.arange(self._end, len(self.text) - self.window, self.window)
        return self._windows(starts[:rows])

    @property
    def _end(self) -> int:
        return len(self.text) * 9 // 10

    def _windows(self, starts: np.ndarray) -> Batch:
        rows = self.text[starts[:, None] + np.arange(self.window + 1)]
        return rows[:, :-1], rows[:, 1:], np.ones((len(starts), self.window), bool)


def network(name: str, vocab_size: int, d_model: int) -> Any:
    """Returns the language model with this attention, as pure functions: two layers, four heads."""
    config = models.LanguageModelConfig(
        vocab_size,
        num_layers=2,
        d_model=d_model,
        num_heads=4,
        d_ff=4 * d_model,
        positions=choices.Rotary(),
        norm=choices.RMSNorm(),
        dropout=0.0,
    )
    return pure(models.LanguageModel, config, attention=ATTENTIONS[name])


def loss(net: Any, params: Any, batch: Batch) -> jax.Array:
    """Returns the mean cross entropy of the labels that count, in nats."""
    tokens, labels, counted = batch
    total, count = net.bind(params).loss(Tokens(tokens), labels=labels, where=counted)
    return total / count


def train(
    net: Any,
    draw: Callable[[np.random.Generator, int], Batch],
    scale: Scale,
    seed: int,
    *,
    watch: Callable[[int, Any], None] = lambda step, params: None,
) -> Any:
    """Returns trained parameters; the batches of a seed are those of each attention.

    Args:
      watch: a function of the number of steps and the parameters, called every `CHUNK` steps.
    """
    warm_up = min(100, scale.steps // 2)
    schedule = optax.warmup_cosine_decay_schedule(0.0, 3e-3, warm_up, scale.steps)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
    params = jax.jit(net.init)(jax.random.key(seed))
    state, rng = jax.jit(optimizer.init)(params), np.random.default_rng(seed)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def advance(params: Any, state: Any, batches: Batch):
        def one(carry: Any, batch: Batch):
            params, state = carry
            gradients = jax.grad(functools.partial(loss, net))(params, batch)
            updates, state = optimizer.update(gradients, state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(one, (params, state), batches)[0]

    for done in range(CHUNK, scale.steps + 1, CHUNK):
        chunk = [draw(rng, scale.rows) for _ in range(CHUNK)]
        params, state = advance(params, state, jax.tree.map(lambda *x: np.stack(x), *chunk))
        watch(done, params)
    return params
