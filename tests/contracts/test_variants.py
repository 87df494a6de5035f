"""Every public function computes the same plainly, under `jax.jit`, and under `jax.pmap` on two devices."""

import functools
import inspect

import chex
import jax
import jax.numpy as jnp

from jaxformer import functional as F
from tests.modules.small import normal

B, T, N, D, S = 2, 4, 2, 4, 8
X, HEADS, KEY = normal(B, T, D), [normal(B, T, N, D, seed=i) for i in range(3)], jax.random.key(0)
VALID, POSITIONS = jnp.array([[True] * 4, [True, True, False, False]]), jnp.arange(B * T).reshape(B, T)
ARRAYS = {
    **dict(zip(("query", "key", "value"), HEADS, strict=True)),
    **{"x": X, "log_probs": X[0], "rewards": X[1]},
    **dict.fromkeys(("kernel", "w_in", "w_gate", "w_out", "w", "w_query", "w_key"), normal(D, D)),
    **dict.fromkeys(("scale", "bias", "b_in", "b_out", "v"), normal(D)),
    **{"logits": normal(B, T, S), "first": normal(B, T, S, seed=1), "second": normal(B, T, S, seed=2)},
    **{"clean": normal(B, T, S, seed=1), "cut": normal(B, T, S, seed=2)},
    **{"labels": POSITIONS[::-1], "tokens": POSITIONS, "positions": POSITIONS, "ahead": POSITIONS - 3},
    **{"table": normal(S, D), "weights": jax.nn.softmax(X), "baseline": normal()},
    **{"mask": jnp.broadcast_to(VALID[..., None], (B, T, S))},
}
NORM = functools.partial(F.rms_norm, scale=normal(D))
NUMBERS = {"size": 2, "shards": 2, "count": 2, "num_experts_per_token": 2, "dim": D, "length": 9, "weight": 2.0}
NUMBERS |= {"num_buckets": 8, "max_distance": 16, "bidirectional": True, "sublayer": NORM, "norm": NORM}
NUMBERS |= {"norms": (NORM, NORM), "attention": F.attention, "similarity": F.dot_similarity}
SHARED = ARRAYS | NUMBERS
"""What the required parameters of functions are, by their names: arrays, and what is known when a program is made."""

FLAT, PAIR = dict.fromkeys(("query", "key", "value"), X), {"query": X[0], "key": X[1]}
HEAD = {name: x[0, :, 0] for name, x in zip(FLAT, HEADS, strict=True)}
STEP = {name: x[:, 0] for name, x in zip(FLAT, HEADS, strict=True)} | {"state": F.linear_attention_start(B, N, D, D)}
CELLS = {"rnn_cell": 1, "gru_cell": 3, "lstm_cell": 4}
STATES = {name: F.recurrent_start(getattr(F, name), (B, D)) for name in CELLS}
LAYER = {"cell": F.rnn_cell, "weights": F.RecurrentWeights(*[normal(D, 1, D)] * 2, *[normal(1, D)] * 2)}
EXPERTS = {"x": X[0], "routing": F.route(X[0], 2), "experts": F.Experts(normal(D, D, 3), normal(D, 3, D))}
EXAMPLES = {"loss": lambda w, x: ((x @ w).sum(), jnp.float32(2)), "params": normal(D, D), "batch": X}
OTHERS = {
    **dict.fromkeys(("additive_attention", "general_attention", "multiplicative_attention"), FLAT),
    **dict.fromkeys(("additive_similarity", "dot_similarity"), PAIR),
    **dict.fromkeys(("per_example_gradients", "per_example_losses"), EXAMPLES),
    "at_positions": {"mask": VALID[:, None, None], "query_positions": POSITIONS},
    "attention": {"mask": VALID[:, None, None], "bias": normal(N, T, T)},
    "attention_head": HEAD,
    "convolution": {"kernel": normal(3, D, D), "valid": VALID},
    "cross_entropy": {"where": VALID, "smoothing": 0.1, "z_loss": 0.1},
    "dropout": {"key": KEY, "rate": 0.5},
    "linear_attention": {"causal": True, "chunk": 2, "valid": VALID},
    "linear_attention_step": STEP,
    "load_balancing_loss": {"routing": F.route(X, 2)},
    "mask_tokens": {"key": KEY, "mask": 0, "vocab_size": S},
    "mixture_of_experts": EXPERTS,
    "recurrent": LAYER | {"valid": VALID},
    "recurrent_step": LAYER | {"x": X[:, 0], "state": STATES["rnn_cell"]},
    "resize_grid_positions": {"grid": (2, 4), "new_grid": (3, 3)},
    "resize_positions": {"method": "interpolate"},
    "rotary": {"x": HEADS[0], "positions": POSITIONS},
    "token_cutoff": {"tokens": F.Tokens(POSITIONS, VALID), "key": KEY, "rate": 0.5},
    **{c: {"inputs": normal(B, n, D), "recurrent": normal(B, n, D), "state": STATES[c]} for c, n in CELLS.items()},
}
"""Arguments of a function that have other shapes, or that it does not require."""
NO_ARRAYS = {
    *("alibi", "as_tokens", "deep_norm", "deep_norm_gains", "expert_capacity", "explain_attention", "linear_scaling"),
    *("linear_attention_start", "llama3_scaling", "ntk_scaling", "num_masked", "receptive_field", "recurrent_start"),
    *("relative_keys", "soft_cap", "t5_bias", "transformer_xl", "yarn_scaling"),
}
"""Functions of numbers, and those that return a function, a bias or a text."""


def arguments(name):
    """The arrays for this public function, and the function with all its other arguments."""
    function = getattr(F, name)
    required = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    given = {key: x for key, x in SHARED.items() if key in required} | OTHERS.get(name, {})
    arrays = {key: x for key, x in given.items() if all(isinstance(y, jax.Array) for y in jax.tree.leaves(x))}
    return arrays, functools.partial(function, **{key: x for key, x in given.items() if key not in arrays})


NAMES = {name for name, _ in inspect.getmembers(F, inspect.isfunction)} - NO_ARRAYS
ARGUMENTS = {name: arguments(name)[0] for name in NAMES}


def run(given):
    return {name: arguments(name)[1](**arrays) for name, arrays in given.items()}


plain = functools.cache(lambda: run(ARGUMENTS))


class TestVariants(chex.TestCase):
    @chex.variants(with_jit=True, with_pmap=True)
    def test_results_are_the_plain_ones(self):
        chex.assert_trees_all_close(self.variant(run, n_devices=2)(ARGUMENTS), plain(), rtol=1e-6, atol=1e-6)
