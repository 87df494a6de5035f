"""The block: the published orders written out, its dropout sites, and the cached step."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks, modules
from jaxformer.functional.dropout import fold_in_name
from tests.modules.small import built, normal, quick

D, N, F = 8, 2, 12
VALID = np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], bool)


@functools.cache
def block(arrange, cross, dropout=0.0, norm=modules.LayerNorm):
    def make(rngs):
        return modules.Block(
            modules.SelfAttention(D, N, dropout=dropout, rngs=rngs),
            modules.FeedForward(D, F, dropout=dropout, rngs=rngs),
            cross=modules.CrossAttention(D, N, dropout=dropout, rngs=rngs) if cross else None,
            norm=lambda: norm(D),
            arrangement=arrange,
            dropout=dropout,
        )

    return built(make)


@functools.cache
def sublayers():
    attention, _ = built(lambda rngs: modules.SelfAttention(D, N, rngs=rngs))
    cross, _ = built(lambda rngs: modules.CrossAttention(D, N, rngs=rngs))
    feed_forward, _ = built(lambda rngs: modules.FeedForward(D, F, rngs=rngs))
    return attention, cross, feed_forward


def parts(params):
    """The sublayers and norms of a block as plain functions."""
    attention, cross, feed_forward = sublayers()
    memory = lambda m: cross.call(modules.CrossAttention.project, params["cross"], m)
    norm = lambda name, x: functional.layer_norm(x, params[name]["scale"], params[name]["bias"])
    return (
        lambda x, **kw: attention.apply(params["attention"], x, **kw),
        lambda x, m, **kw: cross.apply(params["cross"], x, memory(m), **kw),
        lambda x: feed_forward.apply(params["feed_forward"], x),
        norm,
    )


def test_post_norm_encoder_block():
    """Z = LN(X + MHA(X)); Y = LN(Z + FFN(Z))."""
    net, params = block(functional.post_norm, cross=False)
    attend, _, think, norm = parts(params)
    x = normal(2, 5, D)
    z = norm("attention_norm", x + attend(x, mask=masks.padding(VALID)))
    y = norm("feed_forward_norm", z + think(z))
    np.testing.assert_allclose(net.apply(params, x, mask=masks.padding(VALID)), y, atol=1e-5)


def test_pre_norm_decoder_block():
    """Z = X + MHA(LN X); C = Z + Cross(LN Z, memory); Y = C + FFN(LN C)."""
    net, params = block(functional.pre_norm, cross=True)
    attend, look, think, norm = parts(params)
    x, memory = normal(2, 4, D), normal(2, 5, D, seed=1)
    z = x + attend(norm("attention_norm", x), mask=masks.causal())
    c = z + look(norm("cross_norm", z), memory, mask=masks.padding(VALID))
    y = c + think(norm("feed_forward_norm", c))
    got = net.apply(params, x, memory, mask=masks.causal(), memory_mask=masks.padding(VALID))
    np.testing.assert_allclose(got, y, atol=1e-5)


def test_sandwich_block():
    """Z = X + LN'(MHA(LN X)); Y = Z + LN'(FFN(LN Z))."""
    net, params = block(
        functional.sandwich_norm, cross=False, norm=lambda d: modules.NormPair(lambda: modules.LayerNorm(d))
    )
    attend, _, think, _ = parts(params)
    norm = lambda name, part, x: functional.layer_norm(x, params[name][part]["scale"], params[name][part]["bias"])
    x = normal(2, 5, D)
    z = x + norm("attention_norm", "after", attend(norm("attention_norm", "before", x)))
    y = z + norm("feed_forward_norm", "after", think(norm("feed_forward_norm", "before", z)))
    np.testing.assert_allclose(net.apply(params, x), y, atol=1e-5)


@pytest.mark.full
def test_dropout_sites_are_independent():
    """With every sublayer replaced by ones, the masks of attention, cross and feed-forward outputs differ."""
    net, params = block(functional.pre_norm, cross=True, dropout=0.5)
    key = jax.random.key(0)
    ones = jnp.ones((4, 5, D))
    names = ("attention", "cross", "feed forward", "weights", "cross weights", "hidden")
    drop = quick(lambda key: [functional.dropout(ones, rate=0.5, key=fold_in_name(key, name)) for name in names])
    found = list(map(np.asarray, drop(key)))
    for i, a in enumerate(found):
        for b in found[:i]:
            assert 0.3 < float((a == b).mean()) < 0.7
    # and the block's own: zero what each sublayer gives except its bias-like constant, and compare
    silent = jax.tree.map(np.zeros_like, params)
    silent["feed_forward"]["down"]["bias"] = np.ones(D, np.float32)
    got = net.apply(silent, np.zeros((4, 5, D), np.float32), np.zeros((4, 3, D), np.float32), key=key)
    np.testing.assert_array_equal(got, found[2])
