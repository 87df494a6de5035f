"""CHECKLIST section Z as far as no other file here covers it, and the contracts and quizzes on attention (X9, X10)."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks, modules
from jaxformer.data.batch import Batch
from jaxformer.data.examples import pad_texts
from jaxformer.data.packing import PackedTexts
from jaxformer.data.token_cache import Ragged
from jaxformer.tokenizers.special_tokens import SpecialTokens
from tests.modules.small import built, normal, quick
from tests.seeds.example import K, Q, V


def test_z2_rows_times_matrices():
    """001 multiplies W [d_a, d] by the columns of X^T and E [d, V] by one-hot columns; here rows come first.

    With the transposes as kernels, linear layers, a table of words and a whole attention layer are the same maps.
    """
    words, w_query, w_key, w_value, w_output = (
        np.asarray(normal(*shape, seed=i)) for i, shape in enumerate([(6, 11), *[(4, 6)] * 3, (6, 4)])
    )
    ids = np.array([3, 7, 5], np.int32)
    columns = words @ np.eye(11, dtype=np.float32)[:, ids]  # [d, n]
    scores = (w_query @ columns).T @ (w_key @ columns) / 2
    mixed = w_value @ columns @ np.asarray(jax.nn.softmax(scores, -1)).T
    net = lambda make: modules.pure(lambda _, rngs: make(rngs), None)
    table = net(lambda rngs: modules.Embedding(11, 6, scale=1.0, rngs=rngs))
    linear = net(lambda rngs: modules.Linear(6, 4, bias=False, rngs=rngs))
    attention = net(lambda rngs: modules.CrossAttention(6, 1, head_dim=4, rngs=rngs))

    @quick
    def rows(table_of_words, w_query, key_value, w_output):
        x = table.apply({"table": table_of_words}, jnp.asarray(ids)[None])
        layer = attention.bind({"query": w_query[:, None], "key_value": key_value, "output": {"kernel": w_output}})
        return x, linear.apply({"kernel": w_query}, x), layer(x, layer.project(x))

    key_value = np.stack([w_key.T, w_value.T], 1)[:, None]
    every = rows(words.T, w_query.T, key_value, w_output.T[None])
    for found, expected in zip(every, (columns, w_query @ columns, w_output @ mixed), strict=True):
        np.testing.assert_allclose(found[0], expected.T, atol=1e-5)


@pytest.mark.parametrize(("dim", "value_dim"), [(4, 4), (4, 9), (64, 2)])
def test_z4_z10_the_scale_is_of_the_key_width(dim, value_dim):
    """The default scale is the root of one head's key width (d_k, d_a, d_h, D_Q, C'), not of the value's width.

    The naive listing of 002 does not scale: ``scale=1.0``.
    """
    query, key, value = normal(1, 3, 2, dim), normal(1, 5, 2, dim, seed=1), normal(1, 5, 2, value_dim, seed=2)
    attend = quick(functional.attention, static_argnames="scale")
    plain = attend(query, key, value)
    np.testing.assert_allclose(plain, attend(query, key, value, scale=1 / math.sqrt(dim)), atol=1e-6)
    unscaled = attend(query / math.sqrt(dim), key, value, scale=1.0)
    np.testing.assert_allclose(plain, unscaled, atol=1e-5)
    assert plain.shape == (1, 3, 2, value_dim)


def test_z4_a_layer_scales_by_its_heads():
    """The scale is sqrt(d / h), not sqrt(d): a layer of two heads equals itself with the scale written out."""

    def make(scale):
        def attention(query, key, value, **options):
            return functional.attention(query, key, value, **options, **({} if scale is None else {"scale": scale}))

        return built(lambda rngs: modules.SelfAttention(8, 2, attention=attention, rngs=rngs))

    x = normal(1, 5, 8)
    (plain, params), (by_head, _), (by_width, _) = make(None), make(4**-0.5), make(8**-0.5)
    np.testing.assert_allclose(plain.apply(params, x), by_head.apply(params, x), atol=1e-6)
    assert np.abs(np.asarray(plain.apply(params, x) - by_width.apply(params, x))).max() > 1e-2


def test_z8_softmax_is_over_the_keys():
    """Rows (dim=1, dim=-1) sum to 1, or the columns of a transposed display. The matrix here is not square."""
    weights = quick(functional.attention_weights)(normal(1, 3, 1, 4), normal(1, 5, 1, 4, seed=1))[0, 0]
    assert weights.shape == (3, 5)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    assert not np.allclose(weights.sum(0), 3 / 5, atol=0.05)


def test_z9_scores_and_weights():
    """S is unscaled in 003 and scaled elsewhere, and A the raw scores in 17.6.3: here a score function sees S scaled.

    What is called weights has been through the softmax.
    """
    seen = []
    _, weights = functional.attention_head(Q, K, V, score=lambda logits: seen.append(logits) or logits)
    np.testing.assert_allclose(seen[0] * math.sqrt(2), Q @ K.T, atol=1e-5)
    np.testing.assert_allclose(weights, jax.nn.softmax(seen[0], -1), atol=1e-6)


@pytest.mark.parametrize("special", [SpecialTokens(), SpecialTokens(pad=9, bos=7, eos=8, unk=3)])
def test_z12_one_first_and_one_last_token(special):
    """START and STOP of a target, BOS and EOS, [CLS] and [SEP] of an encoder: the tokenizer's bos and eos in all.

    No id is a constant: other tokens, in other places of the vocabulary, serve as well.
    """
    pad, bos, eos = special.pad, special.bos, special.eos
    text = np.array([4, 5], np.int32)
    target = Batch.from_tokens([text], [text], (1, 4, 4), special)
    assert target.source.ids[0].tolist() == [4, 5, eos, pad]
    assert (target.target.ids[0].tolist(), target.labels[0].tolist()) == ([bos, 4, 5, pad], [4, 5, eos, pad])
    assert pad_texts([text], (1, 5), special).ids.tolist() == [[bos, 4, 5, eos, pad]]
    packed = PackedTexts(Ragged(np.array([4, 5, 4, 5]), np.array([0, 2, 4])), special, 9, 1, seed=0).batch(0)
    assert packed.tokens.ids[0].tolist() == [bos, 4, 5, eos, bos, 4, 5, eos, pad]
    assert packed.tokens.segments[0].tolist() == [1, 1, 1, 1, 2, 2, 2, 2, 0]


def test_x9_modules_are_silent(capsys):
    """The modules of 002 print shapes in forward; these print nothing."""
    net, params = built(lambda rngs: modules.SelfAttention(8, 2, rngs=rngs))
    net.net.apply(params, normal(1, 5, 8))
    assert capsys.readouterr() == ("", "")


def test_x10_quizzes():
    """Q K^T is similarity: among keys of equal length the nearest to a query has the largest weight. Rows sum to 1.

    The quiz says "usually": rows always sum to 1, unless they are empty, and then to 0.
    """
    angle = jnp.linspace(0, 2, 5)
    key = jnp.stack([jnp.cos(angle), jnp.sin(angle)], -1)
    head = quick(functional.attention_head)
    _, weights = head(key + 0.1, key, key)
    np.testing.assert_array_equal(np.asarray(weights).argmax(-1), range(5))
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)
    _, weights = head(Q, K, V, mask=masks.dense(np.tri(3, k=-1, dtype=bool)))
    np.testing.assert_allclose(weights.sum(-1), [0, 1, 1], atol=1e-6)
