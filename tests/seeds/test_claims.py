"""CHECKLIST section L: what the documents claim of small tasks, as properties of the parts that they are about."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import decoding, functional, masks, modules
from jaxformer.models import EncoderConfig, choices
from jaxformer.models.encoder import make_encoder
from jaxformer.modules import pure
from tests.modules.small import built, drawn, normal, quick


def encoder(**settings):
    return pure(make_encoder, EncoderConfig(vocab_size=11, d_model=8, num_heads=2, d_ff=16, num_layers=2, **settings))


def influence(make, length):
    """The size of the gradient of the first output with respect to each input."""
    module, params = built(make)
    slope = jax.grad(lambda x: module.net.apply(params, x)[0, 0].sum())
    return np.abs(np.asarray(quick(slope)(normal(1, length, 8)))).sum((0, 2))


def test_l1_path_length():
    """One step of attention reaches every position; two convolutions of 3 reach 2 away; a recurrence goes through all.

    The recurrent layer reads from both sides, and what came through 23 cells has less influence than what came through
    one.
    """
    attention = influence(lambda rngs: modules.AttentionLayer(modules.SelfAttention(8, 2, rngs=rngs)), 24)
    assert attention.min() > attention.max() / 1e3
    convolution = influence(lambda rngs: modules.ConvolutionStack(8, 2, rngs=rngs), 24)
    assert (np.flatnonzero(convolution) <= 2).all()
    recurrent = influence(lambda rngs: modules.RecurrentLayer(8, bidirectional=True, rngs=rngs), 24)
    assert 0 < recurrent[-1] < recurrent[1] / 1e3


@pytest.mark.parametrize("distance", [5, 500])
def test_l2_one_sharp_weight_copies(distance):
    """A key that matches at a large scale is copied exactly, from any distance."""
    keys = normal(distance + 1, 16)
    keys = keys / jnp.linalg.norm(keys, axis=1, keepdims=True)
    values = normal(distance + 1, 4, seed=1)
    output, weights = functional.attention_head(keys[:1], keys[::-1], values, scale=1e3)
    assert float(weights[0, distance]) == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(output[0], values[distance], atol=1e-5)


def test_l9_hundreds_of_residual_layers():
    """300 residual layers of small output begin near the identity, forward and backward; plain ones lose everything."""
    kernels = normal(300, 16, 16) / 4

    def stack(arrange, x):
        layer = lambda x, kernel: (arrange(x, lambda y: jnp.tanh(y @ kernel) * 1e-3), None)
        return jax.lax.scan(layer, x, kernels)[0]

    x = normal(16)
    for arrange, near in ((functional.residual, True), (lambda x, f: f(x), False)):
        output, pullback = jax.vjp(functools.partial(stack, arrange), x)
        for one, other in ((output, x), (pullback(x)[0], x)):
            cosine = (one @ other) / jnp.maximum(jnp.linalg.norm(one) * jnp.linalg.norm(other), 1e-30)
            assert (float(cosine) > 0.9) == near


def test_l10_positions_beyond_training():
    """Sinusoids, rotations and ALiBi are defined at every position; a table of learned vectors has an end.

    Rotations depend on distances alone, however far away they are.
    """
    query, key = normal(1, 1, 1, 8), normal(1, 1, 1, 8, seed=1)
    score = lambda t, s: float(
        jnp.vdot(functional.rotary(query, jnp.array([t])), functional.rotary(key, jnp.array([s])))
    )
    assert score(100_003, 100_000) == pytest.approx(score(3, 0), abs=0.05)
    assert abs(score(3, 0) - score(0, 0)) > 0.2
    assert np.abs(functional.sinusoidal(jnp.array([100_000]), dim=8)).max() <= 1
    bias = functional.alibi(2).tile(query, jnp.array([100_003]), jnp.array([100_000]))
    np.testing.assert_allclose(bias, functional.alibi(2).tile(query, jnp.array([3]), jnp.array([0])), atol=1e-5)
    assert (np.asarray(bias) < 0).all()
    net = encoder(positions=choices.Learned(), max_positions=4)
    with pytest.raises(ValueError, match="no learned position beyond 4"):
        net.apply(drawn(net.shapes), jnp.ones((1, 5), jnp.int32))


def test_l11_normalization_under_padding():
    """A block with layer norm computes a text alone as in a padded batch, one with statistics of the batch does not.

    Padding is masked in attention, and its vectors are not zeros.
    """
    batch, valid = normal(2, 6, 8), np.arange(6) < np.array([[4], [6]])
    over_batch = lambda x: (x - x.mean((0, 1), keepdims=True)) / x.std((0, 1), keepdims=True)

    def gap(norm):
        def make(rngs):
            return modules.Block(modules.SelfAttention(8, 2, rngs=rngs), modules.FeedForward(8, rngs=rngs), norm=norm)

        net, params = built(make)
        padded = net.apply(params, batch, mask=masks.padding(valid))
        return np.abs(np.asarray(padded[:1, :4] - net.apply(params, batch[:1, :4]))).max()

    assert gap(lambda: modules.LayerNorm(8)) < 1e-5
    assert gap(lambda: over_batch) > 0.1


def test_l12_two_heads_copy_two_tokens():
    """Two heads copy two different tokens side by side; one head can only mix them into one vector."""
    keys, values = jnp.eye(4), normal(4, 2)
    wanted = np.concatenate([values[1], values[3]])
    one = lambda query: functional.attention_head(query[None], keys, values, scale=1e3)[0][0]
    np.testing.assert_allclose(np.concatenate([one(keys[1]), one(keys[3])]), wanted, atol=1e-5)
    both = functional.attention_head((keys[1] + keys[3])[None], keys, jnp.tile(values, (1, 2)), scale=1e3)[0][0]
    middle = (values[1] + values[3]) / 2
    np.testing.assert_allclose(both, np.concatenate([middle, middle]), atol=1e-5)


def test_l13_units_that_are_off():
    """A ReLU that is off passes no gradient, so a unit that is off for all inputs stays off; a GELU passes some."""
    off = -jnp.linspace(0.1, 2.0, 8)
    slope = lambda f: np.asarray(jax.vmap(jax.grad(f))(off))
    np.testing.assert_array_equal(slope(functional.relu), 0)
    assert (slope(functional.gelu) != 0).all()


def test_l16_sums_of_log_probabilities_prefer_short_outputs():
    """Without a length penalty a beam ends after one word, although each word of the longer output is more probable."""
    table = np.full((5, 5), -20.0, np.float32)
    table[1, 2], table[1, 3] = np.log(0.4), np.log(0.6)  # end at once, or begin the longer one
    table[3, 4] = table[4, 2] = np.log(0.7)
    table[3, 3] = table[4, 4] = np.log(0.3)
    step = lambda tokens, state: (jnp.asarray(table)[tokens], state)
    for penalty, expected in ((0.0, [2, 0, 0]), (1.0, [3, 4, 2])):
        state = decoding.TreeState(jnp.zeros((1, 2)))
        limits = decoding.Limits(max_length=3, bos=1, eos=2)
        found = decoding.beam_search(step, state, limits, beam_size=2, length_penalty=penalty, stopping="limit")
        assert np.asarray(found.tokens[0, 0]).tolist() == expected


@pytest.mark.parametrize(("positions", "same"), [(None, True), (choices.Sinusoidal(), False)])
def test_l18_sets_need_no_positions_and_series_do(positions, same):
    """Without positions the mean state of a series is that of the reversed one, as it should be for a set."""
    net = encoder(positions=positions)
    params, tokens = drawn(net.shapes), jnp.array([[3, 1, 4, 1, 5, 9]])
    pooled = quick(lambda tokens: net.apply(params, tokens)[0].states.mean(1))
    assert np.allclose(pooled(tokens), pooled(tokens[:, ::-1]), atol=1e-4) == same
