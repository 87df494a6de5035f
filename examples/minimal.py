"""A whole Transformer in one file, from the pure functions of the library: it learns to write numbers in English.

    python examples/minimal.py

The encoder reads digits, the decoder writes words: 417203 is "four hundred seventeen thousand two hundred three". It is
the network of "Attention Is All You Need" (Vaswani et al. 2017), with norms before the sublayers and without biases.
Parameters are a dict, the model is a function of one sentence, and `jax.vmap` makes batches of it. After 800 steps,
40 seconds of CPU time, it writes 99 % or more of the numbers right that training never shows. To try an idea of your
own about attention, edit `attend`.
"""

import argparse
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxformer import functional as F
from jaxformer import masks

# The task. Source and target share one vocabulary, and one table of vectors.
UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()
VOCABULARY = ["<pad>", "<bos>", "<eos>", *"0123456789", *UNITS[1:], *TENS[2:], "hundred", "thousand"]
IDS = {token: index for index, token in enumerate(VOCABULARY)}
PAD, BOS, EOS = 0, 1, 2
S, T = 6, 10  # source and target length: up to 6 digits; up to 9 words and <eos>


def words(n: int) -> list[str]:
    """Returns a number from 1 to 999,999 in words."""
    for size, name in ((1000, "thousand"), (100, "hundred")):
        if n >= size:
            return [*words(n // size), name, *(words(n % size) if n % size else [])]
    return [UNITS[n]] if n < 20 else [TENS[n // 10], *([UNITS[n % 10]] if n % 10 else [])]


def encode_tokens(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns sources ``[B, S]`` and targets ``[B, T]``, filled up with <pad>."""
    pairs = [(str(n), [*words(n), "<eos>"]) for n in numbers.tolist()]
    ids = lambda tokens, length: [IDS[token] for token in tokens] + [PAD] * (length - len(tokens))
    return np.array([ids(x, S) for x, _ in pairs], np.int32), np.array([ids(y, T) for _, y in pairs], np.int32)


def draw(random: np.random.Generator, count: int, *, held_out: bool) -> np.ndarray:
    """Returns numbers with 1 to 6 digits. Multiples of 7 from 100 on are held out of training."""
    numbers = (10 ** random.uniform(0, 6, 20 * count)).astype(np.int64)
    return numbers[((numbers % 7 == 0) & (numbers >= 100)) == held_out][:count]


# The parameters.
D, N, H, HIDDEN, LAYERS = 64, 4, 16, 256, 2  # dimension of the model, heads, dimension of a head, hidden dimension


def init(key: jax.Array) -> dict:
    """Returns new parameters: a nested dict of arrays."""
    keys = iter(jax.random.split(key, 100))
    kernel = lambda *shape, fan_in=D: jax.random.normal(next(keys), shape) * fan_in**-0.5
    heads = lambda: {name: kernel(D, N, H) for name in ("query", "key", "value")}
    attention = lambda: {"norm": jnp.ones(D), **heads(), "output": kernel(N, H, D)}
    network = lambda: {"norm": jnp.ones(D), "in": kernel(D, HIDDEN), "out": kernel(HIDDEN, D, fan_in=HIDDEN)}
    return {
        "table": kernel(len(VOCABULARY), D),
        "encoder": [{"self": attention(), "network": network()} for _ in range(LAYERS)],
        "decoder": [{"self": attention(), "cross": attention(), "network": network()} for _ in range(LAYERS)],
        "norms": {"encoder": jnp.ones(D), "decoder": jnp.ones(D)},
    }


# The model, for one sentence. `p` are the parameters of one sublayer.
def attend(p: dict, x: jax.Array, memory: jax.Array, mask: masks.Mask) -> jax.Array:
    """Multi-head attention from ``x [T, D]`` to ``memory [S, D]``: one head, lifted over N heads by vmap."""
    query = jnp.einsum("td,dnh->nth", x, p["query"])
    key, value = (jnp.einsum("sd,dnh->nsh", memory, p[name]) for name in ("key", "value"))
    head = lambda query, key, value: F.attention_head(query, key, value, mask=mask)[0]  # softmax(q k / sqrt(H)) v
    return jnp.einsum("nth,nhd->td", jax.vmap(head)(query, key, value), p["output"])


def feed_forward(p: dict, x: jax.Array) -> jax.Array:
    """The same two layers at every position."""
    return F.feed_forward(x, p["in"], None, p["out"], None, activation=F.gelu)


def sublayer(p: dict, x: jax.Array, function) -> jax.Array:
    """Residual and norm: ``x + function(p, norm(x))``."""
    return F.pre_norm(x, functools.partial(function, p), functools.partial(F.rms_norm, scale=p["norm"]))


def embed(params: dict, tokens: jax.Array) -> jax.Array:
    """Token vectors plus positions, ``[T, D]``."""
    return params["table"][tokens] * D**0.5 + F.sinusoidal(np.arange(len(tokens)), dim=D)


def encode(params: dict, source: jax.Array) -> jax.Array:
    """The memory ``[S, D]`` of a source ``[S]``: every token sees every real one."""
    x, mask = embed(params, source), masks.padding(source != PAD)
    for p in params["encoder"]:
        x = sublayer(p["self"], x, lambda p, y: attend(p, y, y, mask))
        x = sublayer(p["network"], x, feed_forward)
    return F.rms_norm(x, params["norms"]["encoder"])


def decode(params: dict, tokens: jax.Array, source: jax.Array, memory: jax.Array) -> jax.Array:
    """Logits ``[T, V]``: row t scores the token after ``tokens[:t + 1]``."""
    x = embed(params, tokens)
    self_mask = masks.causal() & masks.padding(tokens != PAD)
    cross_mask = masks.padding(source != PAD)
    for p in params["decoder"]:
        x = sublayer(p["self"], x, lambda p, y: attend(p, y, y, self_mask))
        x = sublayer(p["cross"], x, lambda p, y: attend(p, y, memory, cross_mask))
        x = sublayer(p["network"], x, feed_forward)
    return jnp.einsum("td,vd->tv", F.rms_norm(x, params["norms"]["decoder"]), params["table"])


def mean_loss(params: dict, sources: jax.Array, targets: jax.Array) -> jax.Array:
    """The cross entropy of a batch for each real token; <pad> does not count."""

    def loss(source, target):
        tokens = jnp.concatenate([jnp.array([BOS]), target[:-1]])  # what the decoder should have written so far
        logits = decode(params, tokens, source, encode(params, source))
        return F.cross_entropy(logits, target, where=target != PAD)

    total, count = jax.vmap(loss)(sources, targets)
    return total.sum() / count.sum()


@jax.jit
def greedy(params: dict, sources: jax.Array) -> jax.Array:
    """Writes the most probable token T times, ``[B, T]``. (With a cache: `jaxformer.decoding.greedy`.)"""

    def write(source):
        memory = encode(params, source)

        def step(t, tokens):
            best = decode(params, tokens[:-1], source, memory)[t].argmax()
            ended = (tokens[t] == EOS) | (tokens[t] == PAD)
            return tokens.at[t + 1].set(jnp.where(ended, PAD, best))

        return jax.lax.fori_loop(0, T, step, jnp.full(T + 1, PAD).at[0].set(BOS))[1:]

    return jax.vmap(write)(sources)


def train(steps: int, *, batch_size: int = 64, seed: int = 0) -> tuple[dict, list[jax.Array]]:
    """Returns trained parameters and the loss of each step."""
    params = jax.jit(init)(jax.random.key(seed))
    rate = optax.warmup_cosine_decay_schedule(0.0, 3e-3, min(100, steps // 2), steps)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def update(params, moments, sources, targets):
        loss, gradient = jax.value_and_grad(mean_loss)(params, sources, targets)
        changes, moments = optimizer.update(gradient, moments, params)
        return optax.apply_updates(params, changes), moments, loss

    moments, random, losses, began = optimizer.init(params), np.random.default_rng(seed), [], time.monotonic()
    for step in range(1, steps + 1):
        batch = encode_tokens(draw(random, batch_size, held_out=False))
        params, moments, loss = update(params, moments, *batch)
        losses.append(loss)
        if step == 1 or step % 100 == 0:
            print(f"step {step:4}  loss {loss:.4f}  {time.monotonic() - began:4.0f} s")
    return params, losses


def evaluate(params: dict, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens that the model writes, ``[B, T]``, and True for the numbers whose words are all right."""
    sources, targets = encode_tokens(numbers)
    written = np.asarray(greedy(params, sources))
    return written, (written == targets).all(1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=800)
    params, _ = train(parser.parse_args().steps)
    unseen = draw(np.random.default_rng(1), 1000, held_out=True)
    written, right = evaluate(params, unseen)
    for number, tokens in list(zip(unseen, written, strict=True))[:8]:
        print(f"{number:7} ", *(VOCABULARY[token] for token in tokens if token not in (PAD, EOS)))
    print(f"{right.mean():.1%} of {len(unseen)} numbers that training did not show are right")


if __name__ == "__main__":
    main()
