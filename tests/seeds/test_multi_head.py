"""CHECKLIST section M, and the exercises and listings about heads (X3, X5, X7)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer import functional, modules
from jaxformer.dims import resolve_head_dim
from jaxformer.inspection.attention_maps import AttentionWeights, select
from jaxformer.planning.graph import products
from tests.modules.small import built, count, normal


def layer(width, num_heads, **options):
    return built(lambda rngs: modules.SelfAttention(width, num_heads, rngs=rngs, **options))


def test_m1_heads_attend_separately_and_are_concatenated():
    """Heads of d / h attend separately; then come concatenation and W^O [d, d]."""
    net, params = layer(8, 2)
    x = normal(1, 5, 8)
    query, key, value = net.call(modules.SelfAttention.project, params, x)
    heads = [functional.attention_head(query[0, :, n], key[0, :, n], value[0, :, n])[0] for n in range(2)]
    expected = jnp.concatenate(heads, -1) @ params["output"]["kernel"].reshape(8, 8)
    np.testing.assert_allclose(net.apply(params, x)[0], expected, atol=1e-5)


def test_m2_head_width():
    """512 / 8 = 64; 8 x 8 = 64 (X10)."""
    assert resolve_head_dim(512, 8, 8) == 64
    assert resolve_head_dim(64, 8, 8) == 8


def test_m3_heads_are_a_batch_dimension():
    """Heads reshaped to (n, h, d_h) and moved to the front are one more batch dimension, moved back before W^O."""
    query, key, value = (normal(1, 5, 3, 4, seed=i) for i in range(3))
    as_batch = [x.transpose(2, 1, 0, 3) for x in (query, key, value)]
    folded = functional.attention(*as_batch).transpose(2, 1, 0, 3)
    np.testing.assert_allclose(functional.attention(query, key, value), folded, atol=1e-6)


def test_m4_x7_stacked_matrices():
    """A fused kernel holds the per-head matrices side by side: one product without bias gives queries, keys, values.

    Z18: the documents split [D, 3D] into Q, K, V; here the kernel is [D, K, G + 2, H], so that heads can be sharded.
    """
    net, params = layer(8, 2)
    kernel, x = params["kernel"], normal(2, 5, 8)
    assert kernel.shape == (8, 2, 3, 4)
    for which, stacked in enumerate(net.call(modules.SelfAttention.project, params, x)):
        matrix = kernel[:, :, which].reshape(8, 8)  # W of shape (D, h d_head)
        np.testing.assert_allclose(stacked.reshape(2, 5, 8), x @ matrix, atol=1e-5)
        for head in range(2):
            np.testing.assert_allclose(stacked[:, :, head], x @ kernel[:, head, which], atol=1e-5)


def test_m5_divisibility_and_shapes():
    """The message names both numbers; d = 8, h = 2, x (1, 5, 8): queries of heads (1, 5, 2, 4), output (1, 5, 8)."""
    for kind in (modules.SelfAttention, modules.CrossAttention):
        with pytest.raises(ValueError, match=r"d_model \(10\) must be divisible by num_heads \(3\)"):
            kind(10, 3, rngs=nnx.Rngs(0))
    net, params = layer(8, 2)
    x = normal(1, 5, 8)
    assert net.call(modules.SelfAttention.project, params, x)[0].shape == (1, 5, 2, 4)
    assert net.apply(params, x).shape == (1, 5, 8)
    assert not any("bias" in jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params))


def test_m6_the_built_in_has_biases():
    """The document says that PyTorch's layer "does the same thing", but it has 288 parameters at d = 8, not 256.

    Its output is (1, 5, 8), and its weights, the mean over heads, (1, 5, 5); `tests/parity` runs the layer itself.
    """
    assert count(layer(8, 2)[1]) == 256
    net, params = layer(8, 2, bias=True)
    assert count(params) == 288
    x = normal(1, 5, 8)
    query, key, _ = net.call(modules.SelfAttention.project, params, x)
    heads = functional.attention_weights(query, key)
    words = tuple("abcde")
    maps = AttentionWeights(words, words, np.asarray(heads))  # the one example stands as the layer
    mean = select(maps, layer=0).weights
    assert (net.apply(params, x).shape, mean.shape) == ((1, 5, 8), (5, 5))
    np.testing.assert_allclose(mean, (heads[0, 0] + heads[0, 1]) / 2, atol=1e-6)
    np.testing.assert_allclose(mean.sum(-1), 1, rtol=1e-6)


@pytest.mark.parametrize("num_heads", [1, 2, 4, 8])
def test_m7_x3_parameters_do_not_depend_on_heads(num_heads):
    """4 d^2 = 16,384 parameters at d = 64 for 1, 2, 4, 8 heads, and as many operations; output (1, 10, 64)."""
    net, params = layer(64, num_heads)
    assert count(params) == 16_384
    assert jax.eval_shape(net.apply, params, normal(1, 10, 64)).shape == (1, 10, 64)
    assert products(net.net.apply, params, normal(1, 10, 64)).flops == 2 * (4 * 10 * 64**2 + 2 * 10**2 * 64)


def test_m8_one_head_with_identity_output():
    """h = 1 and W^O = I is single-head attention; before W^O the heads are independent."""
    net, params = layer(8, 1)
    params = params | {"output": {"kernel": jnp.eye(8)[None]}}
    x = normal(1, 5, 8)
    query, key, value = (h[0, :, 0] for h in net.call(modules.SelfAttention.project, params, x))
    np.testing.assert_allclose(net.apply(params, x)[0], functional.attention_head(query, key, value)[0], atol=1e-5)
    query, key, value = (normal(1, 5, 3, 4, seed=i) for i in range(3))
    plain = functional.attention(query, key, value)
    moved = functional.attention(query.at[:, :, 0].set(1), key.at[:, :, 0].set(2), value.at[:, :, 0].set(3))
    np.testing.assert_array_equal(plain[:, :, 1:], moved[:, :, 1:])


def test_m9_roles_of_heads():
    """ "The black cat sat on the mat": a probe reads heads that link cat-sat, cat-the, sat-on, black-cat.

    Nothing enforces such roles: the same layer without them attends uniformly.
    """
    words = "the black cat sat on the mat".split()
    at = {word: words.index(word) for word in words}
    roles = [("cat", "sat"), ("cat", "the"), ("sat", "on"), ("black", "cat")]
    x = jnp.eye(8)[jnp.array([at[word] for word in words])][None]  # the second "the" is the first again
    net, params = layer(8, 4)
    kernel = jnp.zeros((8, 4, 3, 2))  # the third axis: query, key, value
    for head, (one, other) in enumerate(roles):
        kernel = kernel.at[at[one], head, 0, 0].set(5).at[at[other], head, 1, 0].set(5)
    query, key, _ = net.call(modules.SelfAttention.project, params | {"kernel": kernel}, x)
    weight, place = functional.top_alignments(query, key, 1)
    for head, (one, other) in enumerate(roles):
        assert words[int(place[0, head, at[one], 0])] == other
        assert float(weight[0, head, at[one], 0]) > 0.49  # "the" is there twice
    query, key, _ = net.call(modules.SelfAttention.project, params | {"kernel": 0 * kernel}, x)
    np.testing.assert_allclose(functional.attention_entropy(query, key), np.log(7), rtol=1e-5)


def test_x5_self_attention_shapes():
    """X (2, 5, 32), d_q = d_v = 64: output (2, 5, 64), weights (2, 5, 5)."""
    x, w_q, w_k, w_v = normal(2, 5, 32), normal(32, 64, seed=1), normal(32, 64, seed=2), normal(32, 64, seed=3)
    output, weights = jax.vmap(functional.attention_head)(x @ w_q, x @ w_k, x @ w_v)
    assert (output.shape, weights.shape) == ((2, 5, 64), (2, 5, 5))
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
