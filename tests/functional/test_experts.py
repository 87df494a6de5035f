"""Mixtures of experts agree with a loop over tokens, also for dropped tokens and padding."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional
from tests.modules.small import quick
from tests.selection import first

TOKENS, D, F, E = 11, 4, 6, 5
DRAW = np.random.default_rng(0)
X = DRAW.standard_normal((TOKENS, D))
LOGITS = 2 * DRAW.standard_normal((TOKENS, E))
KERNELS = {"w_in": DRAW.standard_normal((E, D, F)), "w_out": DRAW.standard_normal((E, F, D))}
GATE = DRAW.standard_normal((E, D, F))
single = lambda x: x if isinstance(x, jax.Array) else jax.device_put(np.float32(x))


def by_hand(count, *, gate=None, capacity=None, normalize=True):
    """Computes one token after another in float64; first choices of all tokens come before second ones."""
    probabilities = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    order = np.argsort(-probabilities, axis=-1)[:, :count]
    room = np.full(E, TOKENS * count if capacity is None else capacity)
    result = np.zeros((TOKENS, D))
    for choice in range(count):
        for token in range(TOKENS):
            expert = order[token, choice]
            if room[expert] == 0:
                continue
            room[expert] -= 1
            weight = probabilities[token, expert]
            weight /= probabilities[token, order[token]].sum() if normalize else 1
            up = X[token] @ KERNELS["w_in"][expert]
            if gate is None:
                hidden = np.maximum(up, 0)
            else:
                g = X[token] @ gate[expert]
                hidden = g / (1 + np.exp(-g)) * up
            result[token] += weight * (hidden @ KERNELS["w_out"][expert])
    return result


def computed(count, *, gate=None, capacity=None, normalize=True, x=X, kernels=KERNELS, logits=LOGITS):
    routing = functional.route(single(logits), count, normalize=normalize)
    experts = functional.Experts(
        single(kernels["w_in"]), single(kernels["w_out"]), None if gate is None else single(gate)
    )
    activation = functional.relu if gate is None else jax.nn.silu
    return functional.mixture_of_experts(single(x), routing, experts, activation=activation, capacity=capacity)


@pytest.mark.parametrize("count", first([1, 2, E], 2))
@pytest.mark.parametrize("capacity", first([None, TOKENS * E, 3, 1], 3))
@pytest.mark.parametrize("gate", [pytest.param(None, marks=pytest.mark.full), GATE], ids=["", "gated"])
def test_agrees_with_a_loop_over_tokens(count, capacity, gate):
    for normalize in (True, False):
        options = {"gate": gate, "capacity": capacity, "normalize": normalize}
        np.testing.assert_allclose(quick(lambda: computed(count, **options))(), by_hand(count, **options), atol=2e-5)  # noqa: B023


def test_one_expert_is_the_feed_forward_network():
    x, w_in, w_out = single(X), single(KERNELS["w_in"][:1]), single(KERNELS["w_out"][:1])

    def both(x, w_in, w_out):
        routing = functional.route(jnp.zeros((TOKENS, 1)), 1)
        mixture = functional.mixture_of_experts(x, routing, functional.Experts(w_in, w_out))
        return mixture, functional.feed_forward(x, w_in[0], None, w_out[0], None)

    np.testing.assert_allclose(*quick(both)(x, w_in, w_out), atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("capacity", first([None, 3], 3))
def test_gradients(capacity):
    """Gradients agree with finite differences; an unused expert and a dropped token get 0."""
    logits = single(LOGITS).at[:, 4].set(-30)

    def loss(x, w_in, w_out, logits):
        return jnp.sum(
            jnp.sin(computed(2, capacity=capacity, x=x, kernels={"w_in": w_in, "w_out": w_out}, logits=logits))
        )

    inputs = single(X), *map(single, KERNELS.values()), logits
    grads = quick(jax.grad(loss, (0, 1, 2, 3)))(*inputs)
    value = quick(loss)
    assert not np.asarray(grads[1][4]).any()
    for i, gradient in enumerate(grads):
        step = single(np.random.default_rng(i).standard_normal(gradient.shape))
        moved = lambda e: float(value(*(x + e * step if j == i else x for j, x in enumerate(inputs))))  # noqa: B023
        np.testing.assert_allclose(
            float((gradient * step).sum()), (moved(1e-3) - moved(-1e-3)) / 2e-3, rtol=3e-2, atol=2e-2
        )
    if capacity is not None:
        turned_away = ~by_hand(2, capacity=1).any(-1)
        alone = quick(jax.grad(lambda x: jnp.sum(computed(2, capacity=1, x=x))))(single(X))
        assert turned_away.any()
        assert not np.asarray(alone)[turned_away].any()


def test_balance():
    """The loss is 1 for an even distribution and E for a single expert; padding does not count."""

    def losses(even, crowded):
        even, one = functional.route(even, 1), functional.route(crowded, 1)
        both = functional.Routing(*(jnp.concatenate(pair) for pair in zip(even, one, strict=True)))
        alone = map(functional.load_balancing_loss, (even, one))
        return *alone, functional.load_balancing_loss(both, jnp.arange(11) < 5)

    even, one, padded = quick(losses)(single(3 * np.eye(E)), single(np.tile([[9.0, 0, 0, 0, 0]], (6, 1))))
    np.testing.assert_allclose([even, padded], 1, rtol=1e-6)
    np.testing.assert_allclose(one, E, rtol=1e-2)
    slope = quick(jax.grad(lambda logits: functional.load_balancing_loss(functional.route(logits, 1))))(single(LOGITS))
    counts = np.bincount(LOGITS.argmax(-1), minlength=E)
    assert slope[:, counts.argmax()].sum() > 0 > slope[:, counts.argmin()].sum()


def test_z_loss_counts_valid_tokens_only():
    valid = np.arange(TOKENS) % 2 == 0
    expected = (np.log(np.exp(LOGITS).sum(-1)) ** 2)[::2].mean()
    np.testing.assert_allclose(quick(functional.router_z_loss)(single(LOGITS), valid), expected, rtol=1e-5)


REAL = jax.device_put(np.arange(TOKENS) % 3 > 0)


def test_losses_of_padding_that_is_nan():
    """Neither losses nor gradients change; the gradient of the balance goes through `route`."""
    clean, dirty = (single(np.where(np.asarray(REAL)[:, None], LOGITS, x)) for x in (0, np.nan))
    balance = lambda x, **options: functional.load_balancing_loss(functional.route(x, 2, **options), REAL)
    np.testing.assert_array_equal(*map(quick(balance), (dirty, clean)))
    for loss in (lambda x: balance(x, valid=REAL), lambda x: functional.router_z_loss(x, REAL)):
        got, expected = (quick(jax.value_and_grad(loss))(x) for x in (dirty, clean))
        chex.assert_trees_all_equal(got, expected)
        assert np.asarray(expected[1])[np.asarray(REAL)].any()


@pytest.mark.full
@pytest.mark.parametrize("capacity", [None, 2])
def test_padding_goes_to_no_expert(capacity):
    """Real tokens get the output that they get alone, padding gets 0, and NaN there reaches no gradient."""

    def loss(x, logits, w_in, valid):
        experts = functional.Experts(w_in, single(KERNELS["w_out"]), single(GATE))
        output = functional.mixture_of_experts(x, functional.route(logits, 2, valid=valid), experts, capacity=capacity)
        return jnp.sin(output).sum(), output

    x, logits = (jnp.where(REAL[:, None], single(array), jnp.nan) for array in (X, LOGITS))
    real, w_in = np.asarray(REAL), single(KERNELS["w_in"])
    slope = quick(jax.grad(loss, (0, 1, 2), has_aux=True))
    (*by_token, by_kernel), output = slope(x, logits, w_in, REAL)
    (*wanted, expected_kernel), expected = slope(x[real], logits[real], w_in, None)
    np.testing.assert_allclose(by_kernel, expected_kernel, atol=1e-5)
    for got, want in zip((output, *by_token), (expected, *wanted), strict=True):
        np.testing.assert_allclose(got[real], want, atol=1e-5)
        assert not np.asarray(got)[~real].any()


def test_room():
    assert functional.expert_capacity(64, 8, 2, 1.0) == 16
    assert functional.expert_capacity(3, 8, 1, 1.0) == 1
    assert functional.expert_capacity(100, 10, 1, 1.1) == 11  # as decimals, not as the floats nearest to them
    assert functional.expert_capacity(101, 10, 1, 1.1) == 12


@pytest.mark.parametrize("capacity", [None, 1])
def test_no_tokens(capacity):
    """The output is empty, and kernels get a gradient of 0."""
    nothing = {"x": X[:0], "logits": LOGITS[:0], "capacity": capacity}
    assert computed(2, **nothing).shape == (0, D)
    slope = quick(jax.grad(lambda w_in: computed(2, kernels={**KERNELS, "w_in": w_in}, **nothing).sum()))
    assert not np.asarray(slope(single(KERNELS["w_in"]))).any()


@pytest.mark.full
def test_bfloat16_sums_in_float32():
    routing = functional.route(single(LOGITS), 2)
    narrow = functional.Experts(*(single(k).astype(jnp.bfloat16) for k in KERNELS.values()))
    for capacity in (None, 6):
        got = functional.mixture_of_experts(single(X).astype(jnp.bfloat16), routing, narrow, capacity=capacity)
        assert got.dtype == jnp.bfloat16
        np.testing.assert_allclose(np.asarray(got, np.float64), by_hand(2, capacity=capacity), atol=0.3, rtol=0.05)
