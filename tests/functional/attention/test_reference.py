"""The definition of attention: its contract, and the cost of lifting it by vmap; tests/parity has other libraries."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from jaxformer import functional, masks
from tests.contracts.attention import CASES, AttentionContract, arrays
from tests.contracts.biases import BiasContract
from tests.contracts.jaxprs import equations
from tests.modules.small import normal, quick


class TestReference(AttentionContract, BiasContract):
    implementation = "reference"


def test_one_head_equals_a_slice_of_the_result():
    """One head of one example, computed alone, equals that slice of the full result; so do its weights."""
    mask = masks.causal(2)

    def run(query, key, value):
        one = functional.attention_head(query[1, :, 2], key[1, :, 2], value[1, :, 2], mask=mask)
        full = functional.attention(query, key, value, mask=mask), functional.attention_weights(query, key, mask=mask)
        return one, (full[0][1, :, 2], full[1][1, 2])

    chex.assert_trees_all_close(*quick(run)(*arrays(4, 4)[:3]), rtol=0, atol=1e-6)


def test_bfloat16_queries_are_not_rounded_again():
    """The scale, here no power of two, multiplies the float32 logits of narrow queries and keys."""
    query, key = (np.asarray(normal(9, 6, seed=seed)).astype(jnp.bfloat16) for seed in (0, 1))
    _, weights = quick(functional.attention_head)(query, key, key)
    wide = [x.astype(np.float32) for x in (query, key)]
    np.testing.assert_allclose(weights, scipy.special.softmax(wide[0] @ wide[1].T * 6**-0.5, -1), atol=1e-6)


def pulled(attend, *inputs):
    output, pull = jax.vjp(attend, *inputs)
    return pull(output)


LIFTED = {
    # the number of products of [T, S] by a head dim
    "forward": (lambda attend: attend, 2),
    "gradient": (lambda attend: functools.partial(pulled, attend), 5),
}


@pytest.mark.parametrize("name", ["forward", "gradient"])
def test_lifting_takes_no_more_memory(name):
    """Temporary memory is compared with einsums over batch and heads."""
    ours, theirs = (x.memory_analysis().temp_size_in_bytes for x in lifted_and_by_hand(name))
    assert ours < 1.1 * theirs


@pytest.mark.parametrize("name", LIFTED)
def test_lifting_costs_no_more(name):
    """One head of one example, lifted by vmap, against einsums over batch and heads: operations and bytes moved.

    The bytes include the contract of empty rows and unseen keys, which needs a `where` for each array.
    """
    ours, theirs = (x.cost_analysis() or {} for x in lifted_and_by_hand(name))
    assert theirs["flops"] > LIFTED[name][1] * 2 * 2 * 8 * 256**2 * 64
    assert ours["flops"] < 1.05 * theirs["flops"]
    assert ours["bytes accessed"] < 1.4 * theirs["bytes accessed"]


def lifted_and_by_hand(name):
    """Returns both compiled programs: causal, grouped heads, softmax in float32."""
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


def test_nothing_is_replaced_if_all_values_are_finite():
    """With a mask that promises it, result and gradients are the same, and no keys or values are copied."""
    query, key, value, upstream = arrays()
    allowed = np.asarray(CASES["mask [B, N, T, S]"][1])

    def loss(query, key, value, finite):
        return jnp.sum(functional.attention(query, key, value, mask=masks.dense(allowed, finite=finite)) * upstream)

    gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2)), static_argnums=3)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6),
        *(gradients(query, key, value, finite) for finite in (True, False)),
    )
    programs = [jax.make_jaxpr(loss, static_argnums=3)(query, key, value, x).jaxpr for x in (False, True)]
    selects = [[e.primitive.name for e, _ in equations(x)].count("select_n") for x in programs]
    assert selects[1] < selects[0] - 3


def test_one_head_takes_masks_and_biases_of_one_head():
    query, key, value = (jax.device_put(np.asarray(x)[0, :, 0]) for x in arrays()[:3])
    options = {"mask": masks.causal(1), "bias": functional.alibi(1)}

    def run(*inputs):
        whole = functional.attention(*(x[None, :, None] for x in inputs), **options)
        return functional.attention_head(*inputs, **options)[0], whole[0, :, 0]

    np.testing.assert_allclose(*quick(run)(query, key, value), atol=1e-5)
