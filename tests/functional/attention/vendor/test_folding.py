"""Under `jax.vmap` a kernel is called once, with a larger batch; cuDNN's own rule for it takes no mask of one head."""

import functools
import importlib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks, targets
from jaxformer.functional.attention.vendor.folding import foldable
from tests.selection import first

M, B, T, S, N, H = 3, 2, 4, 6, 2, 8
RNG = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(RNG.standard_normal(shape), jnp.float32)


def coin(*shape):
    return jnp.asarray(RNG.random(shape) < 0.8).at[..., 0].set(True)


@jax.custom_batching.custom_vmap
def stiff(x):
    """Is the identity, and refuses `jax.vmap`, as cuDNN does with masks of one head."""
    return x


@stiff.def_vmap
def _(size, mapped, x):
    raise TypeError("cannot reshape")


def plain(query, key, value, bias, mask):
    return jax.nn.dot_product_attention(query, key, value, bias, mask, implementation="xla")


@jax.custom_vjp
def kernel(query, key, value, bias, mask):
    return stiff(plain(query, key, value, bias, mask))


def _forward(*given):
    output, pull = jax.vjp(plain, *given)
    return stiff(output), pull


kernel.defvjp(_forward, lambda pull, upstream: pull(stiff(upstream)))

ARRAYS = normal(M, B, T, N, H), normal(M, B, S, 1, H), normal(M, B, S, 1, H)
CASES = {
    "mask of each row": ((0, 0, 0, None, 0), None, coin(M, B, 1, T, S)),
    "mask of all rows": ((0, 0, 0, None, 0), None, coin(M, 1, 1, T, S)),
    "mask that is not mapped": ((0, 0, 0, None, None), None, coin(B, 1, T, S)),
    "bias of all rows": ((0, 0, 0, None, None), normal(1, N, T, S), coin(1, 1, T, S)),
    "bias of its own": ((0, 0, 0, 0, None), normal(M, 1, N, T, S), None),
    "only the mask": ((None, None, None, None, 0), None, coin(M, B, 1, T, S)),
    "mapped last": ((0, -1, 0, None, -1), None, coin(B, 1, T, S, M)),
}


@pytest.mark.parametrize(
    "name", first(CASES, "mask that is not mapped", "bias of its own", "only the mask", "mapped last")
)
def test_the_numbers_are_those_of_a_loop(name):
    """Values and gradients, for every combination of mapped arguments, with the batch shared or not."""
    axes, bias, mask = CASES[name]
    given = [jnp.moveaxis(x, 0, -1) if axis == -1 else x for x, axis in zip(ARRAYS, axes, strict=False)]
    given = [x[0] if axis is None else x for x, axis in zip(given, axes, strict=False)]
    upstream = normal(M, B, T, N, H)

    def results(call):
        def one(query, key, value, bias, mask, upstream):
            output, pull = jax.vjp(lambda *x: call(*x, mask), query, key, value, bias)
            return output, pull(upstream), jax.grad(lambda query: call(query, key, value, bias, mask).sum())(query)

        def total(*arrays):
            return (jax.vmap(call, axes)(*arrays, mask) * upstream).sum()

        inside = jax.vmap(one, (*axes, 0))(*given, bias, mask, upstream)
        return inside, jax.grad(total, range(4 if bias is not None else 3))(*given, bias)

    with pytest.raises(TypeError, match="cannot reshape"):
        jax.jit(results, static_argnums=0)(kernel)
    got, want = (jax.jit(results, static_argnums=0)(call) for call in (foldable(kernel), plain))
    assert jax.tree.structure(got) == jax.tree.structure(want)
    chex.assert_trees_all_close(got, want, rtol=0, atol=1e-5)


def test_without_vmap_nothing_is_computed_twice():
    """The gradient uses what the kernel saved."""
    calls = []

    def counted(*given):
        calls.append(given[0].shape)
        return kernel(*given)

    query, key, value = (x[0] for x in ARRAYS)
    loss = lambda call, query: (call(query, key, value, None, coin(B, 1, T, S)) ** 2).sum()
    slope = jax.jit(jax.grad(functools.partial(loss, foldable(counted))))
    text = slope.lower(query).compile().as_text()
    plainly = jax.jit(jax.grad(functools.partial(loss, kernel))).lower(query).compile().as_text()
    assert text.count(" dot(") == plainly.count(" dot(") > 0
    np.testing.assert_allclose(slope(query).shape, query.shape)
    assert calls == [query.shape]


@pytest.mark.full
def test_layers_and_nested_maps():
    """A scan over layers within two maps, with the layers recomputed in the backward pass."""
    query, key, value = (normal(2, M, B, T, N, H) for _ in range(3))
    mask = coin(2, M, B, 1, T, T)

    def loss(call, query, key, value, mask):
        layer = jax.checkpoint(lambda x, _: (x + call(x, key, value, None, mask), None))
        return (jax.lax.scan(layer, query, jnp.arange(2))[0] ** 2).sum()

    def slopes(call):
        one = jax.grad(functools.partial(loss, call), range(3))
        return jax.vmap(jax.vmap(one))(query, key, value, mask)

    found, expected = (jax.jit(slopes, static_argnums=0)(call) for call in (foldable(kernel), plain))
    chex.assert_trees_all_close(found, expected, rtol=1e-4, atol=1e-4)


class Gpu:
    platform, device_kind = "gpu", "NVIDIA H100"


@pytest.fixture
def _front_end(monkeypatch):
    """Turns off the checks of JAX that require a GPU, so that programs can be traced, but not run."""
    stablehlo = importlib.import_module("jax._src.cudnn.fused_attention_stablehlo")
    monkeypatch.setattr(stablehlo, "check_cudnn_version", lambda: 91300)
    monkeypatch.setattr(stablehlo, "check_compute_capability", lambda capability: True)
    monkeypatch.setattr(stablehlo, "is_cuda_compute_capability_equal", lambda capability: False)
    monkeypatch.setattr(targets, "devices", lambda: [Gpu()])


MASKS = {
    "causal": lambda valid: masks.causal(),
    "padding": masks.padding,
    "causal & padding": lambda valid: masks.causal() & masks.padding(valid),
}


@pytest.mark.usefixtures("_front_end")
@pytest.mark.parametrize("name", MASKS)
def test_cudnn_can_be_mapped(name):
    """JAX's own front end of cuDNN takes the folded arrays, forward and backward, with masks of one head."""
    query, valid = jax.ShapeDtypeStruct((M, B, 64, N, 64), jnp.bfloat16), jax.ShapeDtypeStruct((M, B, 64), bool)

    def attend(query, valid):
        return functional.attention(query, query, query, mask=MASKS[name](valid), implementation="cudnn")

    # Squares, because JAX 0.10 fails if the upstream gradient is the same for all mapped elements.
    loss = lambda query, valid: jnp.square(attend(query, valid).astype(jnp.float32)).sum()
    text = str(jax.make_jaxpr(jax.vmap(attend))(query, valid))
    assert f"bf16[{M * B},64,{N},64]" in text
    assert f"bf16[{M * B},{N},64,64]" not in text  # no mask of each head
    with jax.numpy_dtype_promotion("standard"):
        for slope in (jax.vmap(jax.grad(loss)), jax.grad(lambda *given: jax.vmap(loss)(*given).sum())):
            assert jax.eval_shape(slope, query, valid) == query
        row = jax.ShapeDtypeStruct(query.shape[1:], query.dtype), jax.ShapeDtypeStruct(valid.shape[1:], bool)
        text = str(jax.make_jaxpr(jax.grad(loss))(*row))
    assert text.count("dot_product_attention_fwd_wrapper") == text.count("dot_product_attention_bwd_wrapper") == 1
