"""Forward values and gradients against those of JAX and Flax, which need no other installation."""

import functools
import inspect
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.nnx.nn.attention import dot_product_attention_weights

from jaxformer import functional, masks, modules
from tests.modules.small import built, normal, quick

pytestmark = pytest.mark.parity

D, N, H, B, T, S = 16, 4, 4, 2, 5, 7
VALID = np.array([[1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0, 0]], bool)
ALLOWED = np.random.default_rng(5).random((B, N, T, S)) > 0.4
ALLOWED[..., 0] = True  # what they make of empty rows is a test of its own


def pulled(function, upstream, *arrays):
    output, pull = jax.vjp(function, *arrays)
    return output, pull(upstream)


def agree(ours, theirs, *arrays, tolerance=3e-5):
    """Checks that values and gradients of `arrays` are the same."""
    upstream = normal(*jax.eval_shape(theirs, *arrays).shape, seed=9)
    (output, slopes), (expected, slopes_theirs) = (
        quick(functools.partial(pulled, f))(upstream, *arrays) for f in (ours, theirs)
    )
    np.testing.assert_allclose(output, expected, atol=tolerance, rtol=1e-4)
    for got, want in zip(slopes, slopes_theirs, strict=True):
        assert float(jnp.abs(want).max()) > 1e-3
        np.testing.assert_allclose(got, want, atol=tolerance, rtol=1e-4)


# name: lengths, key heads, ours, theirs
CASES = {
    "nothing": ((T, S), N, {}, {}),
    "scale": ((T, S), N, {"scale": 0.3}, {"scale": 0.3}),
    "causal": ((T, S), N, {"mask": masks.causal()}, {"is_causal": True}),
    "mask": ((T, S), N, {"mask": masks.dense(ALLOWED)}, {"mask": ALLOWED}),
    "lengths": ((T, S), N, {"mask": masks.lengths([7, 3])}, {"key_value_seq_lengths": np.array([7, 3], np.int32)}),
    "window": ((T, T), N, {"mask": masks.window(2, 1)}, {"local_window_size": (2, 1)}),
    "causal window": ((S, S), N, {"mask": masks.window(3)}, {"local_window_size": (3, 0), "is_causal": True}),
    "grouped": ((T, S), 2, {"mask": masks.dense(ALLOWED)}, {"mask": ALLOWED}),
    "multi-query": ((T, S), 1, {"mask": masks.causal()}, {"is_causal": True}),
    "several blocks": ((300, 520), 2, {"mask": masks.causal(200)}, {"mask": np.tri(300, 520, 200, bool)[None, None]}),
}


@pytest.mark.parametrize("implementation", ["reference", "blockwise"])
@pytest.mark.parametrize("name", CASES)
def test_jax_nn(name, implementation):
    (num_queries, num_keys), heads, ours, theirs = CASES[name]
    theirs = {k: jnp.asarray(v) if isinstance(v, np.ndarray) else v for k, v in theirs.items()}
    agree(
        lambda q, k, v: functional.attention(q, k, v, implementation=implementation, **ours),
        lambda q, k, v: jax.nn.dot_product_attention(q, k, v, **theirs),
        normal(B, num_queries, N, H),
        normal(B, num_keys, heads, H, seed=1),
        normal(B, num_keys, heads, H, seed=2),
    )


@pytest.mark.parametrize("implementation", ["reference", "blockwise"])
@pytest.mark.parametrize("heads", [4, 2])
def test_jax_nn_with_a_bias(heads, implementation):
    """The gradient of the bias agrees too, also under a mask."""
    shared = {"mask": jnp.asarray(ALLOWED)}
    agree(
        lambda q, k, v, b: functional.attention(q, k, v, bias=b, implementation=implementation, **shared),
        lambda q, k, v, b: jax.nn.dot_product_attention(q, k, v, b, **shared),
        normal(B, T, N, H),
        normal(B, S, heads, H, seed=1),
        normal(B, S, heads, H, seed=2),
        normal(B, N, T, S, seed=3),
    )


@pytest.mark.parametrize("implementation", ["reference", "blockwise"])
def test_nnx_function(implementation):
    """Flax's function calls that of `jax.nn`, and its own code when it returns weights."""
    arrays = normal(B, T, N, H), normal(B, S, N, H, seed=1), normal(B, S, N, H, seed=2), normal(1, N, T, S, seed=3)
    mask = jnp.asarray(ALLOWED)
    agree(
        lambda q, k, v, b: functional.attention(q, k, v, bias=b, mask=mask, implementation=implementation),
        lambda q, k, v, b: nnx.dot_product_attention(q, k, v, b, mask),
        *arrays,
    )
    weights = dot_product_attention_weights(arrays[0], arrays[1], arrays[3], mask)
    got = functional.attention_weights(*arrays[:2], bias=arrays[3], mask=mask)
    np.testing.assert_allclose(got, weights, atol=2e-6)


def theirs_with(query, key, value, output, biases):
    """Returns the layer of Flax with these kernels, ``[D, N, H]`` and ``[N, H, D]``."""
    layer = nnx.MultiHeadAttention(N, D, num_kv_heads=key.shape[1], decode=False, rngs=nnx.Rngs(0))
    parts = (layer.query, layer.key, layer.value, layer.out)
    for part, kernel, bias in zip(parts, (query, key, value, output), biases, strict=True):
        part.kernel[...] = kernel
        part.bias[...] = bias
    return layer


@pytest.mark.parametrize("heads", [4, 2])
def test_nnx_self_attention(heads):
    """The layer here has query, key and value heads in one kernel; the mask is padding."""
    net, params = built(lambda rngs: modules.SelfAttention(D, N, num_kv_heads=heads, bias=True, rngs=rngs))
    split = lambda x: (x[..., :-2, :].reshape(*x.shape[:-3], N, H), x[..., -2, :], x[..., -1, :])
    output = params["output"]
    layer = theirs_with(*split(params["kernel"]), output["kernel"], (*split(params["bias"]), output["bias"]))
    agree(
        lambda x: net.net.apply(params, x, mask=masks.padding(VALID)),
        lambda x: layer(x, mask=jnp.asarray(VALID)[:, None, None]),
        normal(B, S, D),
        tolerance=3e-4,
    )


@pytest.mark.parametrize("heads", [4, 2])
def test_nnx_cross_attention(heads):
    """Gradients of the queries' sequence and of the memory."""
    net, params = built(lambda rngs: modules.CrossAttention(D, N, num_kv_heads=heads, bias=True, rngs=rngs))
    split = lambda x: (x[..., 0, :], x[..., 1, :])
    output = params["output"]
    biases = params["query_bias"], *split(params["key_value_bias"]), output["bias"]
    layer = theirs_with(params["query"], *split(params["key_value"]), output["kernel"], biases)
    ours = lambda x, memory: net.net.apply(params, x, net.net.bind(params).project(memory), mask=masks.padding(VALID))
    theirs = lambda x, memory: layer(x, memory, mask=jnp.broadcast_to(jnp.asarray(VALID)[:, None, None], (B, 1, T, S)))
    agree(ours, theirs, normal(B, T, D), normal(B, S, D, seed=1), tolerance=3e-4)


@pytest.mark.parametrize(
    ("ours", "theirs"), [(functional.rms_norm, nnx.RMSNorm), (functional.layer_norm, nnx.LayerNorm)]
)
def test_nnx_norms(ours, theirs):
    """Flax's epsilon is 1e-6 in both; here it is 1e-5 in `layer_norm`."""

    def norm(x, scale):
        layer = theirs(D, rngs=nnx.Rngs(0))
        layer.scale[...] = scale
        return layer(x)

    agree(lambda x, scale: ours(x, scale, epsilon=1e-6), norm, 3 * normal(B, T, D) + 1, normal(D, seed=1))


def test_empty_rows_differ_from_jax_nn():
    """An intended difference: a query without keys gets the mean of all values there, and 0 here."""
    query, key, value = normal(B, T, N, H), normal(B, S, N, H, seed=1), normal(B, S, N, H, seed=2)
    none = jnp.zeros((1, 1, T, S), bool)
    mean = jnp.broadcast_to(value.mean(1, keepdims=True), (B, T, N, H))
    for theirs in (jax.nn.dot_product_attention, nnx.dot_product_attention):
        np.testing.assert_allclose(theirs(query, key, value, mask=none), mean, atol=1e-6)
    valid = jnp.asarray(VALID)
    holes = jnp.where(valid[..., None, None], value, jnp.nan)
    assert jnp.isnan(jax.nn.dot_product_attention(query, key, holes, mask=valid[:, None, None])).any()
    for implementation in ("reference", "blockwise", "xla"):
        ours = lambda value, mask, name=implementation: functional.attention(
            query, key, value, mask=mask, implementation=name
        )
        assert not ours(value, masks.dense(none)).any()
        np.testing.assert_array_equal(ours(holes, masks.padding(valid)), ours(value, masks.padding(valid)))


def test_the_attention_function_of_flax_layers_in_the_documentation():
    """With a mask, and in cached steps, whose single query is at a late position that only the mask of Flax knows."""
    attend = lambda query, key, value, mask=None, **_: functional.attention(
        query, key, value, mask=None if mask is None else masks.from_binary(mask)
    )
    source = "".join(inspect.getsource(attend).split()).replace("functional.", "F.").removeprefix("attend=")
    page = pathlib.Path(__file__).parents[2] / "docs" / "map.md"
    assert source in "".join(page.read_text(encoding="utf-8").split())
    x, outputs = normal(B, T, D), []
    for options in ({}, {"attention_fn": attend}):
        layer = nnx.MultiHeadAttention(N, D, decode=False, rngs=nnx.Rngs(0), **options)
        full = layer(x, mask=nnx.make_causal_mask(x[..., 0]))
        layer.set_view(decode=True)
        layer.init_cache(x.shape)
        steps = jnp.concatenate([layer(x[:, t : t + 1]) for t in range(T)], 1)
        np.testing.assert_allclose(steps, full, atol=1e-5)
        outputs.append(full)
    np.testing.assert_allclose(*outputs, atol=1e-5)
