"""The contract of biases that are not arrays, and of functions of the logits, for every implementation of attention.

Each bias is compared with a dense array, computed from its formula one pair at a time in NumPy. The gradients of its
learned arrays are compared with those through that array.
"""

import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks
from jaxformer.conformance import oracle
from tests.contracts.attention import VALID, B, H, S, T, arrays, with_rows
from tests.modules.small import quick
from tests.selection import first

N = 4
DRAW = np.random.default_rng(3)
T5_TABLE = DRAW.standard_normal((8, N))
KEYS = DRAW.standard_normal((5, H))
KEYS_BY_HEAD = DRAW.standard_normal((N, 5, H))
KERNEL, SHIFT = DRAW.standard_normal((6, N, H)), DRAW.standard_normal((N, H))
WORDS = DRAW.standard_normal((N, S))


def pairs(function, dims):
    """Returns ``[B, N, T, S]`` from a function of (b, n, t, s)."""
    array = np.zeros(dims)
    for index in np.ndindex(*dims):
        array[index] = function(*index)
    return array


def bucket(ahead, buckets, longest):
    half = buckets // 2
    start, distance = (half if ahead > 0 else 0), abs(ahead)
    exact = half // 2
    if distance < exact:
        return start + distance
    return start + min(half - 1, exact + int(math.log(distance / exact) / math.log(longest / exact) * (half - exact)))


def wave(position, dim):
    angles = [position / 10_000 ** (2 * k / dim) for k in range(dim // 2)]
    return np.array([f(a) for a in angles for f in (math.sin, math.cos)])


def dense(name, query, num_keys=S):
    """Returns the bias from its formula; `query` is scaled, ``[B, T, N, H]``."""
    q = np.asarray(query, np.float64)
    every = lambda function: pairs(function, (q.shape[0], N, q.shape[1], num_keys))
    clip = lambda x: max(-2, min(2, x)) + 2
    return {
        "alibi": lambda: every(lambda b, n, t, s: -abs(t - s) * 2.0 ** (-2 * (n + 1))),
        "t5": lambda: every(lambda b, n, t, s: T5_TABLE[bucket(s - t, 8, 6), n]),
        "relative keys": lambda: every(lambda b, n, t, s: q[b, t, n] @ KEYS[clip(s - t)]),
        "relative keys by head": lambda: every(lambda b, n, t, s: q[b, t, n] @ KEYS_BY_HEAD[n, clip(s - t)]),
        "transformer-xl": lambda: every(
            lambda b, n, t, s: (q[b, t, n] + SHIFT[n] * H**-0.5) @ np.einsum("d,dh->h", wave(t - s, 6), KERNEL[:, n])
        ),
        "sum": lambda: dense("alibi", query, num_keys) + dense("t5", query, num_keys),
        "shifted": lambda: every(lambda b, n, t, s: q[b, t, n] @ KEYS[clip(s - t - 3)]),
    }[name]()


def made(name, parameters):
    """Returns the library's bias with these learned arrays."""
    return {
        "alibi": lambda: functional.alibi(N),
        "t5": lambda: functional.t5_bias(parameters["t5"], max_distance=6),
        "relative keys": lambda: functional.relative_keys(parameters["keys"]),
        "relative keys by head": lambda: functional.relative_keys(parameters["keys by head"]),
        "transformer-xl": lambda: functional.positions.biases.TransformerXL(
            parameters["kernel"], parameters["shift"], H**-0.5
        ),
        "sum": lambda: made("alibi", parameters) + made("t5", parameters),
        "shifted": lambda: made("relative keys", parameters).at(3),
    }[name]()


LEARNED = {"t5": T5_TABLE, "keys": KEYS, "keys by head": KEYS_BY_HEAD, "kernel": KERNEL, "shift": SHIFT}
LEARNED = {name: jax.device_put(x.astype(np.float32)) for name, x in LEARNED.items()}
BIASES = ["alibi", "t5", "relative keys", "relative keys by head", "transformer-xl", "sum", "shifted"]
FEW = "relative keys by head", "transformer-xl", "sum"
MASK = masks.padding(VALID) & masks.window(3, 2)


class BiasContract:
    """A contract for a class that is also an `AttentionContract`."""

    @pytest.mark.parametrize("name", first(BIASES, *FEW))
    def test_bias_agrees_with_its_formula(self, name):
        query, key, value, _ = arrays()
        array = dense(name, np.asarray(query) * H**-0.5).astype(np.float32)

        def outputs(learned, array, *inputs):
            return [self.attend(*inputs, mask=MASK, bias=bias) for bias in (made(name, learned), array, None)]

        got, expected, without = map(np.asarray, quick(outputs)(LEARNED, array, query, key, value))
        np.testing.assert_allclose(got, expected, atol=2e-5)
        assert np.abs(got - without).max() > 0.01

    @pytest.mark.parametrize("name", first(BIASES, *FEW))
    def test_bias_gradients(self, name):
        """Gradients of queries, keys, values and learned arrays against the definition and a finite difference."""
        query, key, value, upstream = arrays()

        def loss(learned, query, key, value, attend):
            return jnp.sum(attend(query, key, value, mask=MASK, bias=made(name, learned)) * upstream)

        plain = functools.partial(functional.attention, implementation="reference")
        inputs = LEARNED, query, key, value
        grads, expected = (
            quick(jax.grad(functools.partial(loss, attend=attend), (0, 1, 2, 3)))(*inputs)
            for attend in (self.attend, plain)
        )
        chex.assert_trees_all_close(grads, expected, rtol=0, atol=3e-5)
        step = jax.tree.map(lambda x: DRAW.standard_normal(x.shape).astype(np.float32), LEARNED)
        rise = lambda e: jax.tree.map(lambda x, d: x + np.float32(e) * d, jax.device_get(LEARNED), step)
        moved = quick(lambda learned: loss(learned, *inputs[1:], self.attend))
        slope = sum(float(np.sum(grads[0][name] * d)) for name, d in step.items())
        rate = (float(moved(rise(1e-2))) - float(moved(rise(-1e-2)))) / 2e-2
        np.testing.assert_allclose(slope, rate, rtol=2e-2, atol=5e-3)
        assert (slope != 0) == (name != "alibi")

    def test_soft_cap(self):
        self.check_soft_cap()

    def check_soft_cap(self):
        """The value agrees with the formula, and gradients with finite differences of it."""
        query, key, value, upstream = arrays(N, N)
        query = 3 * np.asarray(query)
        logits = np.einsum("btnh,bsnh->bnts", *(np.asarray(x, np.float64) for x in (query, key))) * H**-0.5
        weights = np.exp(2 * np.tanh(logits / 2))
        expected = np.einsum("bnts,bsnj->btnj", weights / weights.sum(-1, keepdims=True), np.asarray(value, np.float64))
        score = functional.soft_cap(2.0)

        def loss(query):
            output = self.attend(query, key, value, score=score)
            return jnp.sum(output * upstream), output

        run = quick(jax.value_and_grad(loss, has_aux=True))
        (_, output), gradient = run(query)
        np.testing.assert_allclose(output, expected, atol=1e-5)
        step = DRAW.standard_normal(query.shape).astype(np.float32)
        rise = [float(run(query + np.float32(e) * step)[0][0]) for e in (1e-2, -1e-2)]
        np.testing.assert_allclose(np.sum(gradient * step), (rise[0] - rise[1]) / 2e-2, rtol=2e-2, atol=1e-2)

    @pytest.mark.parametrize("mask", [None, masks.padding(VALID) & masks.window(1)], ids=["", "mask"])
    def test_sinks(self, mask):
        self.check_sinks(mask)

    def check_sinks(self, mask):
        """A sink is one more key, of zeros, that every query sees: NumPy agrees on the output and all gradients.

        What an empty query and the gradient of its output hold, reaches no sink.
        """
        query, key, value, upstream = (np.asarray(x) for x in arrays(N, N))
        sinks = np.array([0.0, -1.0, 2.0, 5.0], np.float32)
        allowed = np.ones((B, 1, T, S), bool) if mask is None else np.asarray(mask.dense(T, S))
        allowed = np.broadcast_to(allowed, (B, allowed.shape[1], T, S))
        empty = ~allowed.any((1, 3))
        assert empty.any() == (mask is not None)

        @quick
        def run(query, upstream, sinks):
            call = lambda *x: self.attend(*x[:3], mask=mask, scale=0.7, sinks=x[3])
            output, pull = jax.vjp(call, query, key, value, sinks)
            return output, pull(upstream)

        output, grads = run(*(with_rows(x, [empty], np.nan) for x in (query, upstream)), sinks)
        wider = [np.pad(x, ((0, 0), (0, 1), (0, 0), (0, 0))) for x in (key, value)]
        theirs = {
            "allowed": np.pad(allowed, ((0, 0), (0, 0), (0, 0), (0, 1)), constant_values=True),
            "bias": np.where(np.arange(S + 1) == S, sinks[:, None, None], 0)[None],
            "scale": 0.7,
        }
        expected, _ = oracle.attention(query, *wider, **theirs)
        d_query, d_key, d_value, d_bias = oracle.gradients(query, *wider, upstream, **theirs)
        np.testing.assert_allclose(output, expected, atol=1e-5)
        chex.assert_trees_all_close(
            grads, (d_query, d_key[:, :S], d_value[:, :S], d_bias[..., S].sum((0, 2))), rtol=0, atol=2e-5
        )
