"""A scan over stacked blocks is the loop over them."""

import collections
import functools
import importlib
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import axes, functional, masks, modules, targets
from jaxformer.modules.stack import UNROLLED
from tests.modules.small import built, normal, quick

D, N, DEPTH = 8, 2, 3


def make_block(rngs, dropout=0.0):
    attention = modules.SelfAttention(D, N, rngs=rngs)
    feed_forward = modules.FeedForward(D, 12, rngs=rngs)
    return modules.Block(attention, feed_forward, norm=lambda: modules.LayerNorm(D), dropout=dropout)


def stack(remat=False, dropout=0.0):
    return built(lambda rngs: modules.Stack(lambda r: make_block(r, dropout), DEPTH, remat=remat, rngs=rngs))


@pytest.mark.parametrize("key", [None, jax.random.key(5)], ids=["", "dropout"])
def test_scan_equals_loop(key):
    net, params = stack(dropout=0.3)
    block, _ = built(lambda rngs: make_block(rngs, 0.3))
    x = expected = normal(2, 5, D)
    keys = [None] * DEPTH if key is None else jax.random.split(key, DEPTH)
    for i in range(DEPTH):
        layer = jax.tree.map(lambda leaf: leaf[i], params["layers"])  # noqa: B023
        expected = block.apply(layer, expected, mask=masks.causal(), key=keys[i])
    got = net.apply(params, x, mask=masks.causal(), key=key)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    if key is not None:
        assert not np.allclose(got, net.apply(params, x, mask=masks.causal()), atol=1e-2)


def test_remat_changes_nothing_but_memory():
    """Same value, same gradients, with dropout: its bits are recomputed and equal."""
    x, key = normal(2, 40, D), jax.random.key(1)
    found, held = [], []
    for remat in (False, True):
        net, params = stack(remat, dropout=0.3)
        loss = lambda p, x: jnp.sum(net.net.apply(p, x, mask=masks.causal(), key=key) ** 2)  # noqa: B023
        found.append(quick(jax.value_and_grad(loss, (0, 1)))(params, x))
        pull = jax.eval_shape(lambda p, x: jax.vjp(loss, p, x)[1], params, x)  # noqa: B023
        held.append(sum(leaf.size for leaf in jax.tree.leaves(pull)))
    assert held[1] < 0.6 * held[0]
    for a, b in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6 * float(jnp.abs(b).max()))


def primitives(jaxpr):
    """Yields the names of all primitives, those of inner programs as often as these are called."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for leaf in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            if hasattr(leaf, "eqns"):
                yield from primitives(leaf)


def attending(**options):
    """Counts the primitives in the gradient of a stack of blocks whose attention has these options."""

    def make(rngs):
        attention = modules.SelfAttention(
            16, 2, attention=functools.partial(functional.attention, **options), rngs=rngs
        )
        return modules.Block(attention, modules.FeedForward(16, 12, rngs=rngs), norm=lambda: modules.LayerNorm(16))

    def gradient(remat, dtype, mask=None):
        net, params = built(lambda rngs: modules.Stack(make, DEPTH, remat=remat, rngs=rngs))
        x = normal(2, 8, 16).astype(dtype)
        loss = lambda params: (
            net.net.apply(params, x, mask=masks.causal() if mask is None else mask).astype(jnp.float32).sum()
        )
        return collections.Counter(primitives(jax.make_jaxpr(jax.grad(loss))(params).jaxpr))

    return gradient


@pytest.mark.full
@pytest.mark.parametrize(("remat", "times"), [(False, 1), (True, 2)])
def test_a_fused_attention_is_computed_once(remat, times, monkeypatch):
    """Its results are kept, as those of matrix products; with `remat` it is computed again in the backward pass."""
    count = attending(implementation="blockwise")(remat, jnp.float32)
    assert count["exp"] == 2 * times + 1  # two of each forward pass, and one of the backward pass
    # On an NVIDIA GPU; tracing asks for the version of a library that is not here.
    fused = importlib.import_module("jax._src.cudnn.fused_attention_stablehlo")
    monkeypatch.setattr(fused, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(fused, "check_compute_capability", lambda capability: True)
    with targets.compiling_for([SimpleNamespace(platform="gpu", device_kind="NVIDIA H100")]):
        for mask in (masks.causal(), masks.padding(jnp.ones((2, 8), bool))):
            count = attending(implementation="cudnn")(remat, jnp.bfloat16, mask)
            assert count["dot_product_attention_fwd_wrapper"] == times
            assert count["dot_product_attention_bwd_wrapper"] == 1


def test_capture_gives_every_layer():
    net, params = stack()
    x = normal(2, 5, D)
    plain = net.apply(params, x, mask=masks.causal())
    got, intermediates = net.call(modules.Stack.run, params, x, mask=masks.causal(), capture=("self",))
    np.testing.assert_array_equal(got, plain)
    assert intermediates.keys() == {"self"}
    assert intermediates["self"].query.shape == intermediates["self"].key.shape == (3, 2, 5, 2, 4)
    first = jax.tree.map(lambda leaf: leaf[0], params["layers"])
    norm = functional.layer_norm(x, first["attention_norm"]["scale"], first["attention_norm"]["bias"])
    attention, _ = built(lambda rngs: modules.SelfAttention(D, N, rngs=rngs))
    query, _, _ = attention.call(modules.SelfAttention.project, first["attention"], norm)
    np.testing.assert_allclose(intermediates["self"].layer(0).query, query, atol=1e-5)


def test_a_stack_returns_an_array_with_its_final_norm():
    """It returned a tuple, and a pre-norm stack had no place for its final norm."""
    net, params = stack()
    own, normed = built(lambda rngs: modules.Stack(make_block, DEPTH, norm=modules.LayerNorm(D), rngs=rngs))
    assert params.keys() == {"layers"}  # the names in models and checkpoints
    assert normed.keys() == {"layers", "norm"}
    x = normal(2, 5, D)
    plain, ended = net.apply(params, x), own.apply(params | {"norm": normed["norm"]}, x)
    np.testing.assert_allclose(ended, functional.layer_norm(plain, **normed["norm"]), atol=1e-5)
    assert not np.allclose(plain.std(-1), 1, atol=1e-2)


def test_one_trace_for_every_depth():
    """Compile time does not grow with depth: the block is traced once."""
    spy = chex.assert_max_traces(functional.attention, n=1)

    def make(rngs):
        attention = modules.SelfAttention(D, N, attention=spy, rngs=rngs)
        return modules.Block(attention, modules.FeedForward(D, 12, rngs=rngs), norm=lambda: modules.LayerNorm(D))

    net, params = built(lambda rngs: modules.Stack(make, 20, rngs=rngs))
    jax.eval_shape(net.net.apply, params, normal(1, 2, D))


def unrolled(depth, **options):
    """Returns the number of layers that an iteration of the compiled loop has."""
    net, params = built(lambda rngs: modules.Stack(make_block, depth, rngs=rngs, **options))
    (loop,) = (e for e in jax.make_jaxpr(net.net.apply)(params, normal(1, 2, D)).eqns if e.primitive.name == "scan")
    return loop.params["unroll"]


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_a_few_layers_are_unrolled(platform):
    """On one CPU or GPU; with `remat` XLA would keep what is to be recomputed."""
    few = UNROLLED.get(platform, 1)
    with targets.compiling_for([SimpleNamespace(platform=platform, device_kind="")]):
        assert unrolled(few) == few
        assert unrolled(few + 1) == unrolled(2, remat=True) == 1
        with axes.placing(lambda x, names: x):
            assert unrolled(2) == 1
