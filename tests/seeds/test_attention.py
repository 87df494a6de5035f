"""CHECKLIST section A: attention, with the documents' own numbers."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jaxformer import functional, masks, modules
from jaxformer.inspection.attention_maps import AttentionMap, as_text
from tests.modules.small import built, quick
from tests.seeds.example import OUTPUT, W_K, W_Q, W_V, WEIGHTS, K, Q, V, X
from tests.selection import first

attention_head = quick(functional.attention_head, static_argnames="scale")
attention = quick(functional.attention)
attention_weights = quick(functional.attention_weights)
attention_statistics = quick(functional.attention_statistics, static_argnames="scale")
masked_softmax = quick(functional.masked_softmax)


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def example(x, mask=None):
    """Computes the self-attention of section 9.3 on any input."""
    return attention_head(x @ W_Q, x @ W_K, x @ W_V, mask=mask)


def softmax(*logits):
    return np.asarray(masked_softmax(jnp.asarray([logits], jnp.float32), None))[0]


def test_a1_context_of_a_decoder_step():
    """Eq. 17.1-3: e_ti = f(s_{t-1}, h_i), a = softmax over i, c_t = sum_i a_ti h_i; weights in [0, 1], sum 1.

    It is differentiable (checked against finite differences), so the weights are learned without supervision.
    """
    state, encoded = draw(1, 1, 5), draw(1, 4, 3, seed=1)
    learned = draw(5, 6, seed=2), draw(3, 6, seed=3), draw(6, seed=4)
    step = quick(lambda s, h, w_q, w_k, v: functional.additive_attention(s, h, h, w_query=w_q, w_key=w_k, v=v))
    context, weights = step(state, encoded, *learned)
    assert (context.shape, weights.shape) == ((1, 1, 3), (1, 1, 4))
    assert float(weights.min()) > 0
    assert float(weights.sum()) == pytest.approx(1)
    np.testing.assert_allclose(context[0, 0], sum(weights[0, 0, i] * encoded[0, i] for i in range(4)), atol=1e-6)
    check_grads(
        lambda *args: step(*map(jnp.asarray, args))[0], (state, encoded, *learned), 1, ["rev"], atol=1e-2, rtol=1e-2
    )


def test_a2_additive_scores():
    """Eq. 17.7, 17.15: v_a^T tanh(W_a q + U_a x), with W_a, U_a and v_a learnable."""
    query, x = draw(1, 2, 5), draw(1, 4, 3, seed=1)
    learned = {"w_query": draw(5, 6, seed=2), "w_key": draw(3, 6, seed=3), "v": draw(6, seed=4)}
    _, weights = functional.additive_attention(query, x, x, **learned)
    w, u, v = (np.asarray(a, np.float64) for a in learned.values())
    for t in range(2):
        scores = [v @ np.tanh(w.T @ query[0, t] + u.T @ x[0, i]) for i in range(4)]
        np.testing.assert_allclose(weights[0, t], softmax(*scores), atol=1e-6)
    slopes = quick(jax.grad(lambda p: functional.additive_attention(query, x, x, **p)[0].sum()))(learned)
    assert all(np.abs(np.asarray(slope)).max() > 1e-3 for slope in slopes.values())


def test_a3_any_similarity():
    """Eq. 17.12-14: any f_att(q, X_i), softmax, y = sum a_i X_i; X is key and value. The scaled product is one case."""
    query, x = draw(1, 2, 3), draw(1, 4, 3, seed=1)
    distance = lambda q, k: -jnp.square(q[:, None] - k[None]).sum(-1)
    output, weights = functional.general_attention(query, x, x, distance)
    for t in range(2):
        expected = softmax(*(-((np.asarray(query[0, t]) - np.asarray(x[0, i])) ** 2).sum() for i in range(4)))
        np.testing.assert_allclose(weights[0, t], expected, atol=1e-6)
        np.testing.assert_allclose(output[0, t], expected @ np.asarray(x[0]), atol=1e-6)
    scaled, _ = functional.general_attention(query, x, x, lambda q, k: q @ k.T / math.sqrt(3))
    np.testing.assert_allclose(scaled[0], attention_head(query[0], x[0], x[0])[0], atol=1e-6)
    bilinear, _ = functional.multiplicative_attention(query, x, x, w=jnp.eye(3) / math.sqrt(3))
    np.testing.assert_allclose(bilinear, scaled, atol=1e-6)


def test_a4_scores_and_shapes():
    """e = q x / sqrt D; the input is both key and value: E, A [N_Q, N_X], Y [N_Q, D_X]."""
    query, x = draw(4, 6), draw(3, 6, seed=1)
    output, weights = attention_head(query, x, x)
    assert (output.shape, weights.shape) == ((4, 6), (4, 3))
    score = np.asarray(query @ x.T) / math.sqrt(6)
    expected = np.exp(score) / np.exp(score).sum(1, keepdims=True)
    np.testing.assert_allclose(weights, expected, atol=1e-6)
    np.testing.assert_allclose(output, expected @ np.asarray(x), atol=1e-6)


def test_a5_separate_value_width():
    """K = X W_K [N_X, D_Q], V = X W_V [N_X, D_V]: Y = A V [N_Q, D_V], with the scale of D_Q."""
    x, query, w_key, w_value = draw(3, 6), draw(4, 5, seed=1), draw(6, 5, seed=2), draw(6, 9, seed=3)
    lift = lambda array: array[None, :, None]
    output = attention(lift(query), lift(x @ w_key), lift(x @ w_value))
    assert output.shape == (1, 4, 1, 9)
    scores = np.asarray(query, np.float64) @ np.asarray(x @ w_key, np.float64).T / math.sqrt(5)
    expected = np.exp(scores) / np.exp(scores).sum(1, keepdims=True) @ np.asarray(x @ w_value, np.float64)
    np.testing.assert_allclose(output[0, :, 0], expected, atol=1e-5)


def test_a6_four_queries_three_inputs():
    """Row i of the weights A_ij belongs to query i and sums to 1; Y_1 = A11 V1 + A12 V2 + A13 V3.

    In a transposed display the columns sum to 1. Equation 17.38 has A_ji; 17.42 and 17.44 have A_ij, as here.
    """
    value = draw(3, 2, seed=2)
    output, weights = attention_head(draw(4, 5), draw(3, 5, seed=1), value)
    np.testing.assert_allclose(weights.T.sum(0), 1, rtol=1e-6)
    first = sum(float(weights[0, j]) * value[j] for j in range(3))
    np.testing.assert_allclose(output[0], first, atol=1e-6)


def test_a7_row_form_equals_matrix_form():
    output, weights = example(X)
    for i in range(3):
        np.testing.assert_allclose(output[i], sum(weights[i, j] * V[j] for j in range(3)), atol=1e-6)


def test_a8_worked_example():
    """Q, K, V and the raw scores are as printed; the weights are exact.

    The document prints row 1 as [.045, .769, .186], from exponentials 16.95 and 4.10 instead of 16.9188 and 4.1133.
    The exact row rounds to [.045, .768, .187].
    """
    assert Q.tolist() == [[2, 0], [0, 2], [1, 1]]
    assert K.tolist() == [[0, 2], [2, 0], [1, 1]]
    assert V.tolist() == [[1, 2], [1, 0], [1, 1]]
    assert (Q @ K.T).tolist() == [[0, 4, 2], [4, 0, 2], [2, 2, 2]]
    output, weights = example(X)
    np.testing.assert_allclose(weights, WEIGHTS, atol=1e-6)
    np.testing.assert_allclose(output, OUTPUT, atol=2e-6)
    np.testing.assert_allclose(weights[0], [0.045, 0.769, 0.186], atol=1.5e-3)  # as printed, within its error
    np.testing.assert_allclose(output, [[1, 0.28], [1, 1.72], [1, 1]], atol=5e-3)


def test_a9_tokens_1_and_2_attend_to_each_other():
    """Tokens 1 and 2 attend to each other, and their own raw scores are 0. Token 3 averages the values."""
    output, weights = example(X)
    assert np.asarray(weights).argmax(1)[:2].tolist() == [1, 0]
    assert np.diag(Q @ K.T)[:2].tolist() == [0, 0]
    np.testing.assert_allclose(weights[2], 1 / 3, atol=1e-6)
    np.testing.assert_allclose(output[2], V.mean(0), atol=1e-6)


def test_a10_weights_are_rows_of_probabilities():
    """Rows sum to 1, entries are positive, and attention is not symmetric, as in the table of "The cat sat"."""
    _, weights = attention_head(draw(5, 4), draw(5, 4, seed=1), draw(5, 4))
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-6)
    assert (np.asarray(weights) >= 0).all()
    assert not np.allclose(weights, weights.T, atol=0.05)
    table = np.array([[0.70, 0.15, 0.15], [0.10, 0.60, 0.30], [0.05, 0.75, 0.20]])
    np.testing.assert_allclose(table.sum(1), 1)
    assert table[1, 2] != table[2, 1]
    # the table can be weights of attention: softmax of its logarithms returns it
    np.testing.assert_allclose([softmax(*row) for row in np.log(table)], table, rtol=1e-5)


def test_a11_cross_attention_contains_self_attention():
    """Queries come from t decoder states, keys and values from M memory states; the weights are [t, M].

    With the same kernels and the sequence itself as the memory, the layer is the self-attention layer, row by row.
    """
    (alone, params), (crossed, _) = (
        built(lambda rngs, layer=layer: layer(8, 2, rngs=rngs))
        for layer in (modules.SelfAttention, modules.CrossAttention)
    )
    kernel, x = params["kernel"], draw(1, 6, 8)
    shared = {"query": kernel[:, :, 0], "key_value": kernel[:, :, 1:], "output": params["output"]}
    expected = alone.apply(params, x)
    memory = crossed.call(modules.CrossAttention.project, shared, x)
    for rows in (slice(0, 6), slice(1, 3)):  # all states, and t = 2 of them over M = 6
        np.testing.assert_allclose(crossed.apply(shared, x[:, rows], memory), expected[:, rows], atol=1e-5)
    query, _, _ = alone.call(modules.SelfAttention.project, params, x[:, 1:3])
    assert attention_weights(query, memory.key).shape == (1, 2, 2, 6)


def test_a12_soft_lookup():
    """A query that matches one key strongly returns its value, as from a dictionary; keys and values are separate."""
    key, value = jnp.eye(4), draw(4, 3)
    for index in range(4):
        output, weights = attention_head(100 * key[index : index + 1], key, value)
        np.testing.assert_allclose(output[0], value[index], atol=1e-6)
        np.testing.assert_allclose(weights[0], np.eye(4)[index], atol=1e-6)


@pytest.mark.parametrize("dim", first([4, 64, 512, 1024, 12288], 64, 512))
def test_a13_scaling_keeps_the_variance(dim):
    """Var(q . k) = d for unit variance, d sigma^4 in general; the scale of attention makes it 1, and sigma^4."""
    num = 512 if dim < 5000 else 128
    query, key = jnp.asarray(np.random.default_rng(dim).standard_normal((2, 1, num, 1, dim), np.float32))

    def variance(sigma, scale=None):
        return float(attention_statistics(sigma * query, sigma * key, scale=scale).variance.mean())

    tolerance = 10 * math.sqrt(2 / (num * dim)) + 5 * math.sqrt(2) / num
    assert variance(1.0, scale=1.0) == pytest.approx(dim, rel=tolerance)
    assert variance(1.0) == pytest.approx(1, rel=tolerance)
    assert variance(2.0, scale=1.0) == pytest.approx(16 * dim, rel=tolerance)
    assert variance(2.0) == pytest.approx(16, rel=tolerance)


def test_a14_softmax_values():
    np.testing.assert_allclose(softmax(1, 2, 3), [0.0900, 0.2447, 0.6652], atol=5e-5)
    np.testing.assert_allclose(softmax(10, 20, 30), [2.06e-9, 4.54e-5, 0.9999546], rtol=1e-3)
    np.testing.assert_allclose(softmax(2, 1), [0.7311, 0.2689], atol=5e-5)
    np.testing.assert_allclose(softmax(20, 10), [0.9999546, 0.0000454], rtol=1e-3)


def test_a15_saturated_softmax_has_no_slope():
    """The slope a (1 - a) is .19661 at [2, 1], 4.54e-5 at [20, 10], 4331 times smaller."""
    key = jnp.array([2.0, 1.0]).reshape(1, 2, 1, 1)
    figures = [attention_statistics(jnp.full((1, 1, 1, 1), size), key) for size in (1.0, 10.0)]
    gradient = quick(jax.grad(lambda x: functional.masked_softmax(x[None], None)[0, 0]))
    for one, logits in zip(figures, ([2.0, 1.0], [20.0, 10.0]), strict=True):
        np.testing.assert_allclose(one.slope.item(), gradient(jnp.array(logits))[0], rtol=1e-3)
    mild, saturated = (one.slope.item() for one in figures)
    assert mild == pytest.approx(0.19661, abs=1e-5)
    assert saturated == pytest.approx(4.54e-5, rel=1e-3)
    assert mild / saturated == pytest.approx(4331, rel=2e-3)


def test_a16_temperature():
    """Added constants change nothing, scaling does: .8808 at T = .5, .6225 at 2, .5250 at 10; limits: argmax, mean."""
    np.testing.assert_allclose(softmax(2, 1), softmax(102, 101), rtol=1e-5)
    for temperature, expected in ((0.5, 0.8808), (1, 0.7311), (2, 0.6225), (10, 0.5250), (1e-3, 1), (1e5, 0.5)):
        query, key = jnp.array([[1.0]]), jnp.array([[2.0], [1.0]])
        _, weights = attention_head(query, key, key, scale=1 / temperature)
        assert float(weights[0, 0]) == pytest.approx(expected, abs=5e-5)


def test_a17_z16_linear_in_values_not_in_inputs():
    """f(2X) has row 1 = [2, .00701], 2 f(X) has [2, .55494]. 000 and 001 call attention linear; 004 is right."""
    plain, doubled = example(X)[0], example(2 * X)[0]
    np.testing.assert_allclose(doubled[0], [2, 0.00701], atol=1e-5)
    np.testing.assert_allclose(2 * plain[0], [2, 0.55494], atol=1e-5)
    twice, _ = attention_head(Q, K, 2 * V)
    np.testing.assert_allclose(twice, 2 * plain, rtol=1e-6)
    both, _ = attention_head(Q, K, V + V[::-1])
    np.testing.assert_allclose(both, plain + attention_head(Q, K, V[::-1])[0], rtol=1e-6)


def test_a18_z16_permutation_equivariance():
    """f(sX) = s f(X), not f(X), although 001 says invariant. A causal mask breaks it, as positions do."""
    order = np.array([2, 1, 0])
    plain = example(X)[0]
    np.testing.assert_allclose(example(X[order])[0], plain[order], atol=1e-6)
    assert not np.allclose(example(X[order])[0], plain, atol=0.1)
    masked = lambda x: example(x, masks.causal())[0]
    assert not np.allclose(masked(X[order]), masked(X)[order], atol=0.1)


def test_a19_weights_depend_on_the_data():
    """The share of token 1 that token 0 takes depends on what the tokens are; a convolution's is its fixed kernel."""
    other = X.at[1].set(jnp.array([2.0, 0.0, 0.0, 1.0]))
    assert np.abs(example(X)[1][0] - example(other)[1][0]).max() > 0.1
    shares = quick(jax.jacobian(lambda x: functional.convolution(x[None], draw(3, 4, 4))[0, 0]))
    np.testing.assert_allclose(shares(X), shares(other), atol=1e-6)
    assert np.abs(shares(X)[:, 1]).max() > 0.1


def test_a20_queries_are_independent():
    query, x = draw(4, 6), draw(3, 6, seed=1)
    output, _ = attention_head(query, x, x)
    np.testing.assert_allclose(attention_head(query[2:3], x, x)[0], output[2:3], atol=1e-6)
    moved, _ = attention_head(query.at[0].set(9), x, x)
    np.testing.assert_array_equal(moved[1:], output[1:])


def test_a22_output_and_weights_come_together():
    """Z14: `attention_head` returns the pair, `attention` the output, `attention_weights` the map of chosen heads."""
    output, weights = example(X)
    lift = lambda x: jnp.asarray(x)[None, :, None]
    np.testing.assert_allclose(attention(lift(Q), lift(K), lift(V))[0, :, 0], output, atol=1e-6)
    np.testing.assert_allclose(attention_weights(lift(Q), lift(K))[0, 0], weights, atol=1e-6)


def test_a22_labeled_map():
    """A T' x T map as text, with words on both sides; each row is darkest at its largest weight."""
    _, weights = example(X)
    lines = as_text(AttentionMap(("The", "cat", "sat"), ("Le", "chat", "dort"), np.asarray(weights))).split("\n")
    assert [line.split()[0] for line in lines[:3]] == ["Le", "chat", "dort"]
    assert lines[-1].split() == ["1", "The", "2", "cat", "3", "sat"]
    cells = [[line[5 + 3 * j] for j in range(3)] for line in lines[:3]]
    shade = lambda cell: " .:-=+*#%@".index(cell)
    assert [[shade(cell) for cell in row] for row in cells] == [[0, 7, 2], [7, 0, 2], [3, 3, 3]]


@pytest.mark.parametrize(
    ("queries", "memory", "lengths"),
    [
        ((2, 5), (2, 9, 7), (9, 9)),  # a question, and the regions of an image
        ((4, 6), (2, 12, 3), (12, 8)),  # letters to be written, and frames of sound
        ((3, 8), (2, 6, 4), (6, 2)),  # views on the way, and the words of an instruction
    ],
)
def test_i8_one_layer_for_other_tasks(queries, memory, lengths):
    """The layer of captions takes any memory: a query gets a weighted mean of what is real, by the additive score."""
    num, dim = queries
    net, params = built(lambda rngs: modules.Alignment(dim, memory[-1], 5, rngs=rngs))
    query, states = draw(2, num, dim), draw(*memory, seed=1)
    valid = np.arange(memory[1]) < np.array(lengths)[:, None]
    look = lambda layer, query, states: layer(query, layer.keys(states), states, valid=jnp.asarray(valid))
    context, weights = net.call(look, params, query, states)
    query, states, own = (jax.tree.map(lambda x: np.asarray(x, np.float64), x) for x in (query, states, params))
    inside = (query @ own["w_query"]["kernel"])[:, :, None] + (states @ own["w_key"]["kernel"])[:, None]
    exps = np.exp(np.tanh(inside) @ own["v"]) * valid[:, None]
    expected = exps / exps.sum(-1, keepdims=True)
    np.testing.assert_allclose(weights, expected, atol=1e-6)
    np.testing.assert_allclose(context, expected @ states, atol=1e-5)
