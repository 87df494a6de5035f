"""The definition of attention: its contract, and what surrounds it."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer import functional, masks
from jaxformer.functional.attention import api
from jaxformer.functional.attention.base import make_request
from tests.contracts import numpy_attention
from tests.contracts.attention import CASES, VALID, AttentionContract, B, S, T, arrays
from tests.contracts.biases import BiasContract


class TestReference(AttentionContract, BiasContract):
    implementation = "reference"


def test_default_is_an_implementation_by_name():
    query, key, value, _ = arrays()
    named = functional.attention(query, key, value, implementation="reference")
    np.testing.assert_array_equal(functional.attention(query, key, value), named)
    with pytest.raises(ValueError, match=r"unknown attention implementation 'fast'; there are \['blockwise', 'cudnn'"):
        functional.attention(query, key, value, implementation="fast")


@pytest.mark.parametrize(
    ("platform", "lengths", "expected"),
    [
        ("cpu", (256, 255), "reference"),
        ("cpu", (256, 256), "blockwise"),
        ("cpu", (64, 1024), "blockwise"),
        ("gpu", (1024, 1024), "reference"),
        ("gpu", (1024, 2048), "blockwise"),
    ],
)
def test_long_sequences_go_block_by_block(monkeypatch, platform, lengths, expected):
    """Sooner on a CPU, whose cache is what they win by; in float32, which cuDNN does not take."""
    device = types.SimpleNamespace(platform=platform, device_kind="some NVIDIA")
    monkeypatch.setattr(jax, "devices", lambda: [device])
    query, key = (jax.ShapeDtypeStruct((1, length, 2, 8), jnp.float32) for length in lengths)
    assert api.choose(make_request(query, key, key)) == expected


def test_oracle_gradients_are_finite_differences():
    """The NumPy gradients that the contract trusts are themselves the slopes of the NumPy output."""
    given = [np.asarray(x, np.float64) for x in arrays(2, 1)]
    options = {
        "allowed": CASES["mask [1, T, S]"][1][:, None],
        "bias": np.asarray(CASES["padding"][2]["bias"][:, :2], float),
    }
    found = numpy_attention.gradients(*given, **options)
    draw = np.random.default_rng(3).standard_normal
    loss = lambda q, k, v, bias: np.sum(numpy_attention.attention(q, k, v, **(options | {"bias": bias}))[0] * given[3])
    point = [*given[:3], np.broadcast_to(options["bias"], (B, 2, T, S))]
    for i, gradient in enumerate(found):
        step = 1e-6 * draw(point[i].shape)
        moved = [[x + sign * step if i == j else x for j, x in enumerate(point)] for sign in (1, -1)]
        rise = (loss(*moved[0]) - loss(*moved[1])) / 2
        np.testing.assert_allclose(np.sum(gradient * step), rise, rtol=1e-6)


def test_head_is_what_is_lifted():
    """One head of one example, computed alone, is that slice of the whole, to the bit; so are its weights."""
    query, key, value, _ = arrays(4, 4)
    mask = masks.causal(2)
    whole = functional.attention(query, key, value, mask=mask)
    output, weights = functional.attention_head(query[1, :, 2], key[1, :, 2], value[1, :, 2], mask=mask)
    np.testing.assert_allclose(output, whole[1, :, 2], atol=1e-6)
    np.testing.assert_allclose(weights, functional.attention_weights(query, key, mask=mask)[1, 2], atol=1e-6)


def test_grouped_heads_share_consecutively():
    """Query heads 0, 1 use key head 0 and heads 2, 3 use key head 1: the same as repeating the key heads."""
    query, key, value, _ = arrays(4, 2)
    repeated = functional.attention(query, *(jnp.repeat(x, 2, axis=2) for x in (key, value)))
    np.testing.assert_allclose(functional.attention(query, key, value), repeated, atol=1e-6)


@pytest.mark.parametrize("name", ["grouped", "mask [B, N, T, S]", "padding", "mask [B, N, T, 1]", "one head"])
def test_weights_of_chosen_heads_and_rows(name):
    (query, key, _, _), ours, theirs = AttentionContract.request(name)
    _, expected = numpy_attention.attention(query, key, key, **theirs)
    whole = functional.attention_weights(query, key, **ours)
    np.testing.assert_allclose(whole, expected, atol=1e-6)
    heads = [0] if query.shape[2] == 1 else [3, 1]
    some = functional.attention_weights(query, key, rows=[4, 0], heads=heads, **ours)
    np.testing.assert_allclose(some, expected[:, heads][:, :, [4, 0]], atol=1e-6)


def test_weights_keep_the_contract():
    """An unseen key that holds NaN leaves weights and their gradients alone."""
    query, key, _, _ = arrays()
    dirty = jnp.where(jnp.asarray(VALID)[:, :, None, None], key, jnp.nan)
    total = lambda q, k: jnp.sum(functional.attention_weights(q, k, mask=masks.padding(VALID), rows=[1]) ** 2)
    for clean, got in zip(*(jax.grad(total, (0, 1))(query, k) for k in (key, dirty)), strict=True):
        np.testing.assert_array_equal(clean, got)


@pytest.mark.parametrize(("name", "chosen"), [("rows", [T]), ("rows", [-1]), ("heads", [0, 4])])
def test_weights_refuse_what_is_not_there(name, chosen):
    query, key, _, _ = arrays()
    count = {"rows": T, "heads": 4}[name]
    with pytest.raises(ValueError, match=rf"{name} must be numbers from 0 to {count - 1}"):
        functional.attention_weights(query, key, **{name: chosen})


def test_masked_softmax_of_an_empty_row_has_no_slope():
    logits = jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    mask = jnp.array([[True, False, True], [False, False, False]])
    weights, pull = jax.vjp(lambda x: functional.masked_softmax(x, mask), logits)
    np.testing.assert_allclose(weights, [[1 / (1 + np.e**2), 0, 1 / (1 + np.e**-2)], [0, 0, 0]], rtol=1e-6)
    (slope,) = pull(jnp.array([[1.0, 9.0, 0.0], [1.0, 2.0, jnp.inf]]))
    np.testing.assert_allclose(slope[0, 1], 0)
    np.testing.assert_array_equal(slope[1], 0)


def test_agrees_with_jax_nn():
    """Where both define the result: Boolean mask with no empty row, bias, grouped heads, equal value dim."""
    (query, key, value, _), _, _ = AttentionContract.request("mask [B, N, T, S]")
    mask, bias = np.array(CASES["mask [B, N, T, S]"][1]), CASES["mask [B, N, T, S]"][2]["bias"]
    mask[..., 0] |= ~mask.any(-1)
    peer = jax.nn.dot_product_attention(query, key, value, bias=bias, mask=jnp.asarray(mask))
    np.testing.assert_allclose(functional.attention(query, key, value, mask=mask, bias=bias), peer, atol=2e-6)


def test_agrees_with_flax():
    query, key, value, _ = arrays(4, 4, 4)
    mask = np.tril(np.ones((T, S), bool), 2)
    peer = nnx.dot_product_attention(query, key, value, mask=jnp.asarray(np.broadcast_to(mask, (B, 4, T, S))))
    np.testing.assert_allclose(functional.attention(query, key, value, mask=mask), peer, atol=2e-6)


def pulled(attend, *given):
    output, pull = jax.vjp(attend, *given)
    return pull(output)


LIFTED = {
    # how many products of [T, S] by a head dim there must be
    "forward": (lambda attend: attend, 2),
    "gradient": (lambda attend: functools.partial(pulled, attend), 5),
}


@pytest.mark.parametrize("name", ["forward", "gradient"])
def test_lifting_takes_no_more_memory(name):
    """Beside what is given and returned, against einsums over batch and heads."""
    ours, theirs = (x.memory_analysis().temp_size_in_bytes for x in lifted_and_by_hand(name))
    assert ours < 1.1 * theirs


@pytest.mark.parametrize("name", LIFTED)
def test_lifting_costs_no_more(name):
    """One head of one example, lifted by vmap, against einsums over batch and heads: operations, and bytes moved.

    The contract of empty rows and unseen keys is in these bytes: it takes a `where` for each array.
    """
    ours, theirs = (x.cost_analysis() or {} for x in lifted_and_by_hand(name))
    assert theirs["flops"] > LIFTED[name][1] * 2 * 2 * 8 * 256**2 * 64
    assert ours["flops"] < 1.05 * theirs["flops"]
    assert ours["bytes accessed"] < 1.4 * theirs["bytes accessed"]


def lifted_and_by_hand(name):
    """Both compiled, causal, grouped heads, softmax in float32."""
    batch, length, heads, key_heads, dim = 2, 256, 8, 4, 64
    mask = np.tri(length, dtype=bool)

    def by_hand(query, key, value):
        grouped = query.reshape(batch, length, key_heads, heads // key_heads, dim)
        logits = jnp.einsum("btkgh,bskh->bkgts", grouped, key, preferred_element_type=jnp.float32) * dim**-0.5
        weights = jax.nn.softmax(jnp.where(mask, logits, -1e30), axis=-1)
        return jnp.einsum("bkgts,bskj->btkgj", weights.astype(value.dtype), value).reshape(query.shape)

    lifted = functools.partial(functional.attention, mask=masks.causal(), implementation="reference")
    shapes = [jax.ShapeDtypeStruct((batch, length, n, dim), jnp.float32) for n in (heads, key_heads, key_heads)]
    return [jax.jit(LIFTED[name][0](attend)).lower(*shapes).compile() for attend in (lifted, by_hand)]


@pytest.mark.parametrize("implementation", ["reference", "blockwise", "xla"])
def test_a_scale_known_only_when_the_program_runs(implementation):
    """It may be learned; where it is an array that is known, it is a number."""
    query, key, value, _ = arrays()
    options = {"mask": masks.causal(1), "implementation": implementation}

    def loss(query, scale):
        return jnp.sin(functional.attention(query, key, value, scale=scale, **options)).sum()

    by_query, by_scale = jax.jit(jax.grad(loss, (0, 1)))(query, jnp.float32(0.3))
    np.testing.assert_allclose(by_query, jax.grad(loss)(query, 0.3), atol=1e-5)
    np.testing.assert_allclose(by_query, jax.grad(loss)(query, jnp.float32(0.3)), atol=1e-5)
    np.testing.assert_allclose(by_scale, (loss(query, 0.31) - loss(query, 0.29)) / 0.02, rtol=2e-2)
