"""CHECKLIST section F: the feed-forward network and its nonlinearity."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer import functional, modules, training
from tests.modules.small import built, count, normal
from tests.training.small import settings


def network(x, w_in, b_in, w_out):
    """Computes two layers without a last bias, on rows: x w_in, not the W x of the documents' vectors (Z2)."""
    lift = lambda a: jnp.asarray(a, jnp.float32)
    return np.asarray(functional.feed_forward(lift(x), lift(w_in), lift(b_in), lift(w_out), None))


@pytest.mark.parametrize(("d_model", "d_ff"), [(512, 2048), (768, 3072)])
def test_f1_four_times_as_wide(d_model, d_ff):
    """d_ff = 4 d, and row i depends on row i only.

    000 gives W1 in R^(d x d_ff) but writes W1 x, which needs d_ff x d. Here it is x W1, with that shape.
    """
    shapes = modules.pure(lambda config, rngs: modules.FeedForward(d_model, rngs=rngs), None).shapes
    assert shapes["up"]["kernel"].shape == (d_model, d_ff)
    assert shapes["down"]["kernel"].shape == (d_ff, d_model)


def test_f1_position_wise():
    net, params = built(lambda rngs: modules.FeedForward(8, rngs=rngs))
    x = normal(1, 5, 8)
    moved = net.apply(params, x.at[0, 2].set(9))
    same = np.asarray(moved == net.apply(params, x)).all(-1)[0]
    assert same.tolist() == [True, True, False, True, True]


def test_f2_document_feed_forward():
    """d = 8: 32 hidden units, two linears with bias, 552 parameters, exact GELU, (1, 5, 8) -> (1, 5, 8)."""
    net, params = built(lambda rngs: modules.FeedForward(8, activation=functional.gelu, rngs=rngs))
    assert count(params) == 552
    assert params["up"]["kernel"].shape == (8, 32)
    assert net.apply(params, normal(1, 5, 8)).shape == (1, 5, 8)


def test_f3_gelu_values():
    """x Phi(x): five values, and the minimum -.16997 at -.7518."""
    result = functional.gelu(jnp.array([-1.0, -0.5, 0.5, 1.0, 2.0]))
    np.testing.assert_allclose(result, [-0.158655, -0.154269, 0.345731, 0.841345, 1.954500], atol=2e-6)
    x = np.linspace(-4, 4, 200)  # the grid of the document's plot
    curve = np.asarray(functional.gelu(jnp.asarray(x, jnp.float32)))
    assert curve.min() == pytest.approx(-0.16997, abs=1e-4)
    assert x[curve.argmin()] == pytest.approx(-0.7518, abs=0.03)
    assert float(jax.grad(functional.gelu)(-0.7518)) == pytest.approx(0, abs=1e-4)


def test_f4_relu_values():
    assert functional.relu(jnp.array([2.0, -1.0, 0.0, -3.0, 5.0])).tolist() == [2, 0, 0, 0, 5]
    assert jax.vmap(jax.grad(functional.relu))(jnp.array([2.0, -1.0, 0.0, 5.0])).tolist() == [1, 0, 0, 1]


def test_f5_linear_layers_collapse():
    """Without a nonlinearity, a hundred layers are one matrix."""
    x, matrices = normal(3, 4), [normal(4, 4, seed=i) / 2 for i in range(100)]
    stacked, product = x, np.eye(4)
    for matrix in matrices:
        stacked, product = functional.linear(stacked, matrix, None), product @ np.asarray(matrix, np.float64)
    np.testing.assert_allclose(stacked, x @ product, rtol=1e-3, atol=1e-5 * np.abs(product).max())


def test_f6_relu_is_not_additive():
    """f = 2x: f(-1) + f(1) = f(0); g = relu(2x): 2, but g(0) = 0."""
    f, g = (lambda x: 2.0 * x), (lambda x: functional.relu(2.0 * x))
    minus, plus, zero = jnp.array(-1.0), jnp.array(1.0), jnp.array(0.0)
    assert float(f(minus) + f(plus)) == float(f(zero)) == 0
    assert (float(g(minus) + g(plus)), float(g(zero))) == (2, 0)


INPUTS = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], float)


def test_f7_xor():
    """The best linear fit is the constant .5; threshold units A + B - 2 both give 0, 1, 1, 0 exactly.

    With ReLUs the document's thresholds .5, .5, 1.5 give 0, .5, .5, 0: exact is relu(a) + relu(b) - 2 relu(a + b - 1).
    """
    target = np.array([0, 1, 1, 0.0])
    affine = np.c_[INPUTS, np.ones(4)]
    np.testing.assert_allclose(affine @ np.linalg.lstsq(affine, target, rcond=None)[0], 0.5)
    w_in, w_out = [[1, 0, 1], [0, 1, 1]], [[1], [1], [-2]]
    steps = (INPUTS @ np.array(w_in) > [0.5, 0.5, 1.5]) @ np.array(w_out)
    np.testing.assert_array_equal(steps[:, 0], target)
    np.testing.assert_allclose(network(INPUTS, w_in, [-0.5, -0.5, -1.5], w_out)[:, 0], [0, 0.5, 0.5, 0])
    np.testing.assert_allclose(network(INPUTS, w_in, [0, 0, -1], w_out)[:, 0], target)


def test_f8_more_units_more_bends():
    """n ReLUs make n bends; the error of interpolating a smooth curve falls as n^-2."""
    x = np.linspace(0, 1, 401)[:, None]
    errors = []
    for units in (4, 8, 16):
        knots = np.linspace(0, 1, units + 1)[:-1]
        curve = np.sin(3 * np.linspace(0, 1, units + 1))
        slopes = np.diff(curve) * units
        result = network(x, np.ones((1, units)), -knots, np.diff(slopes, prepend=0)[:, None])[:, 0]
        bends = np.flatnonzero(np.abs(np.diff(result, 2)) > 1e-5)
        assert len(np.unique(np.round(x[bends + 1, 0] * units))) == units - 1  # the first knot lies on the edge
        errors.append(np.abs(result - np.sin(3 * x[:, 0])).max())
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.2)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.2)


def test_f9_worked_network():
    """[3, 4] -> h [3, 4, 0] -> [3, 4]; [4, 2] -> h [4, 2, 1] -> [4.5, 1.5]."""
    w_in = np.array([[1, 0], [0, 1], [0.5, -0.5]]).T
    w_out = np.array([[1, 0, 0.5], [0, 1, -0.5]]).T
    np.testing.assert_allclose(network([[3, 4], [4, 2]], w_in, np.zeros(3), np.eye(3)), [[3, 4, 0], [4, 2, 1]])
    np.testing.assert_allclose(network([[3, 4], [4, 2]], w_in, np.zeros(3), w_out), [[3, 4], [4.5, 1.5]])


def test_f10_gates_and_scores():
    """The weights of 9.8.13 as printed give (1, 1) -> (.65, 1.40), h3 = 1.5, and (2.5, 1) -> (1.025, .95), h3 = .75.

    The document's (1.3, 1.8) and (2.2, .5), and h3 = 0 in the second, do not follow from them. h3 > 0 exactly when
    weight > size - 3.
    """
    w_in = np.array([[1, 0], [0, 1], [-0.5, 0.5]]).T
    w_out = np.array([[0.3, 0.2, 0.1], [0.1, 0.1, 0.8]]).T
    points = [[1, 1], [2.5, 1]]
    np.testing.assert_allclose(network(points, w_in, [0, 0, 1.5], np.eye(3))[:, 2], [1.5, 0.75])
    np.testing.assert_allclose(network(points, w_in, [0, 0, 1.5], w_out), [[0.65, 1.40], [1.025, 0.95]], atol=1e-6)
    grid = np.stack(np.meshgrid(np.linspace(0, 6, 25), np.linspace(0, 6, 25)), -1).reshape(-1, 2)
    open_gate = network(grid, w_in, [0, 0, 1.5], np.eye(3))[:, 2] > 0
    np.testing.assert_array_equal(open_gate, grid[:, 1] > grid[:, 0] - 3)


def test_f11_a_probability_below_zero():
    """quality = .3 s + .2 w + .8 relu(w/s - 1.5), defect = -.1 s - .1 w + .9 relu(w/s - 1.5): a network of three units.

    The document calls the second a probability, but at (1, 1) it is -.2.
    """
    parts = np.array([[1, 1], [1, 2], [2, 3]], float)
    lifted = np.c_[parts, parts[:, 1] / parts[:, 0]]  # density is not linear in size and weight
    scores = network(lifted, np.eye(3), [0, 0, -1.5], np.array([[0.3, 0.2, 0.8], [-0.1, -0.1, 0.9]]).T)
    np.testing.assert_allclose(scores, [[0.5, -0.2], [1.1, 0.15], [1.2, -0.5]], atol=1e-6)


def fitted(module, x, y, steps=400):
    """The predictions of a module of one output, trained by the trainer on the mean squared error."""
    optimizer = training.make_optimizer(training.AdamConfig(learning_rate=0.03, warmup_steps=10), steps=steps)
    net = modules.pure(lambda config, rngs: module(rngs), None)

    def loss(params, batch, key):
        error = net.apply(params, batch["x"])[:, -1, 0] - batch["y"]
        return jnp.square(error).sum(), jnp.float32(error.size), {}

    batch = {"x": np.asarray(x, np.float32), "y": np.asarray(y, np.float32)}
    state = training.create(net.init, optimizer, jax.random.key(0))
    result = training.fit(
        training.make_step(loss, optimizer), state, lambda start: itertools.repeat(batch), config=settings(steps)
    )
    return np.asarray(net.apply(result.state.params, x)[:, -1, 0])


class Ablated(nnx.Module):
    """One attention layer with its residual over the features of each token, then a feed-forward network or none."""

    def __init__(self, feed_forward, *, rngs):
        self.features = modules.Linear(2, 8, rngs=rngs)
        self.attention = modules.SelfAttention(8, 2, rngs=rngs)
        self.feed_forward = modules.FeedForward(8, 16, rngs=rngs) if feed_forward else None
        self.output = modules.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        x = functional.residual(self.features(x), self.attention)
        return self.output(x if self.feed_forward is None else functional.residual(x, self.feed_forward))


def test_f12_attention_alone_is_weaker():
    """A token alone has weight 1, so attention is linear in it: trained on XOR it stays at .5, the best linear fit.

    With a feed-forward network behind it, the same layer learns XOR.
    """
    x, xor = jnp.asarray(INPUTS, jnp.float32)[:, None], np.array([0, 1, 1, 0.0])
    alone, whole = (fitted(lambda rngs, ffn=ffn: Ablated(ffn, rngs=rngs), x, xor) for ffn in (False, True))
    np.testing.assert_allclose(alone, 0.5, atol=0.02)
    np.testing.assert_allclose(whole, xor, atol=0.02)


def test_f12_z11_either_nonlinearity_helps():
    """Z11: the activation is an argument: ReLU (000, 001, 003, 17.60) or GELU (listings). Both break additivity."""
    x, w_in, w_out = normal(2, 4), normal(4, 8), normal(8, 4, seed=1)
    gaps = {}
    for name, activation in (("relu", functional.relu), ("gelu", functional.gelu), ("none", lambda x: x)):
        f = functools.partial(
            functional.feed_forward, w_in=w_in, b_in=None, w_out=w_out, b_out=None, activation=activation
        )
        gaps[name] = float(jnp.abs(f(x[:1]) + f(x[1:]) - f(x[:1] + x[1:])).max())
    assert gaps["none"] < 1e-4
    assert min(gaps["relu"], gaps["gelu"]) > 0.1
