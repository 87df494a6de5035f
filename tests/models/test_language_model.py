"""Properties of language models: tied and pre-norm, untied and post-norm, and masked."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, models
from jaxformer.models import choices
from tests.models.small import LANGUAGE_CONFIGS, B, Small, V, different, entry, language_model, replaced
from tests.modules.small import int32, quick
from tests.selection import first

SLOW = pytest.mark.parametrize("name", first(LANGUAGE_CONFIGS, "tied"))
TABLE, OUTPUT = "decoder.embeddings.tokens.table", "decoder.output.kernel"
TOKENS = int32([[1, 2, 9, 10, 3, 8], [1, 10, 2, 9, 0, 0]])
VALID = jax.device_put(np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]], bool))
PADDED = functional.Tokens(TOKENS, VALID)
T = TOKENS.shape[1]


def changed(at, token):
    """The batch with another token in these places."""
    tokens = np.array(TOKENS)
    tokens[at] = token
    return tokens


def shallow(config, **changes):
    """The same with one layer: gradients of two take longer to compile."""
    return dataclasses.replace(config, num_layers=1, **changes)


def logits(small, tokens=TOKENS, *, params=None, **options):
    return np.asarray(small.apply(small.params if params is None else params, tokens, **options))


@SLOW
def test_causality_by_gradients(name):
    """Logits at t have slope exactly 0 on later tokens, not 0 on itself and earlier ones."""
    small, unused = Small(shallow(LANGUAGE_CONFIGS[name]), models.LanguageModel), V - 2

    def logit(x):
        tokens = jnp.arange(T, dtype=jnp.int32)[None]
        table = jnp.zeros((V, 8)).at[:T].set(x).at[T:].set(entry(small.params, TABLE)[T:])
        params = jax.tree.map(lambda leaf: leaf, small.params)
        params["decoder"]["embeddings"]["tokens"]["table"] = table
        return small.net.apply(params, tokens)[0, :, unused]

    jacobian = quick(jax.jacrev(logit))(np.asarray(entry(small.params, TABLE))[:T])  # [T, T, D]
    np.testing.assert_array_equal(np.abs(np.asarray(jacobian)).sum(-1) > 0, np.tri(T, dtype=bool))


def test_without_the_causal_mask_later_tokens_are_visible():
    """The label of a row is its next token: with the mask it changes no earlier row, without it every row."""
    small = language_model("tied")
    every = lambda ids: functional.Tokens(ids, np.ones_like(VALID))
    rows = lambda small: different(
        *(logits(small, every(tokens)) for tokens in (TOKENS, changed((slice(None), 3), 5)))
    ).all(0)
    np.testing.assert_array_equal(rows(small), np.arange(T) >= 3)
    seeing = Small(dataclasses.replace(small.config, causal=False), models.LanguageModel)
    assert rows(seeing).all()
    padded = [logits(seeing, functional.Tokens(ids, VALID)) for ids in (TOKENS, np.where(VALID, TOKENS, 7))]
    np.testing.assert_array_equal(different(*padded) & np.asarray(VALID), False)


@SLOW
def test_the_contents_of_padding_do_not_matter(name):
    """At the end, which the causal mask hides, and at the beginning, which only `valid` hides."""
    small = language_model(name)
    for valid in (np.asarray(VALID), np.asarray(VALID)[:, ::-1]):
        ids = TOKENS, np.where(valid, TOKENS, 7)
        plain, other = (logits(small, functional.Tokens(each, valid)) for each in ids)
        np.testing.assert_array_equal(different(plain, other) & np.asarray(valid), False)
    plain = logits(small, PADDED)
    alone = logits(small, np.asarray(TOKENS)[1:, :4])
    np.testing.assert_allclose(alone[0], plain[1, :4], atol=2e-5)


@SLOW
def test_examples_are_independent(name):
    small = language_model(name)
    plain, other = logits(small), logits(small, changed(0, 5))
    np.testing.assert_array_equal(plain[1], other[1])
    assert different(plain[0], other[0]).all()


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "feed_forward"])
def test_each_dropout_rate_is_used(rate):
    """Each alone changes the result, as a function of the key; without a key there is no dropout."""
    none = {"dropout": 0.0, "attention_dropout": 0.0, "feed_forward": choices.Plain()}
    plain = shallow(LANGUAGE_CONFIGS["tied"], **none)
    noisy = Small(
        dataclasses.replace(plain, **{rate: choices.Plain(dropout=0.4) if rate == "feed_forward" else 0.4}),
        models.LanguageModel,
    )
    one, same, other = (logits(noisy, key=jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert different(one, other)[:, 2:].all()
    programs = [each.apply.lower(each.params, TOKENS) for each in (noisy, Small(plain, models.LanguageModel))]
    assert programs[0].as_text() == programs[1].as_text()


@SLOW
def test_bfloat16_is_close(name):
    """Compute in bfloat16, parameters and logits in float32: within a few roundings of float32."""
    small = Small(dataclasses.replace(LANGUAGE_CONFIGS[name], compute_dtype="bfloat16"), models.LanguageModel)
    got, expected = logits(small), logits(language_model(name))
    assert got.dtype == np.float32
    assert {x.dtype for x in jax.tree.leaves(small.net.shapes)} == {jnp.dtype("float32")}
    assert np.abs(got - expected).max() < 0.05 * np.abs(expected).max()


def test_tied_weights_share_one_array():
    assert entry(language_model("tied").params, OUTPUT) is None
    assert entry(language_model("untied").params, OUTPUT).shape == (8, V)
    small = language_model("tied")
    separate = Small(dataclasses.replace(small.config, tie_embeddings=False), models.LanguageModel)
    table = entry(small.params, TABLE)
    split = {"decoder": small.params["decoder"] | {"output": {"kernel": np.asarray(table).T}}}
    np.testing.assert_allclose(logits(separate, params=split), logits(small), atol=1e-5)


def test_captured_attention():
    """Queries and keys of every layer; as weights they are causal."""
    small = language_model("tied")
    call = functools.partial(small.call, models.LanguageModel.captured, small.params, PADDED)
    found = call(names=("decoder.self",))["decoder.self"]
    assert found.query.shape == found.key.shape == (2, B, T, 2, 4)
    weights, last = quick(lambda found: [found.layer(i).weights() for i in (1, -1)])(found)
    allowed = np.tri(T, dtype=bool) & np.asarray(VALID)[:, None, None]
    np.testing.assert_array_equal(np.asarray(weights) > 0, np.broadcast_to(allowed, weights.shape))
    np.testing.assert_array_equal(last, weights)
    every = quick(lambda found: found.weights(heads=[1]))(found)
    assert every.shape == (2, B, 1, T, T)
    np.testing.assert_allclose(every[1], weights[:, 1:], atol=1e-6)
    with pytest.raises(ValueError, match="layers count from 0 to 1, got 2"):
        found.layer(2)
    with pytest.raises(ValueError, match=r"unknown attention names \['decoder.cross'\]; there are \['decoder.self'\]"):
        call(names=("decoder.cross",))


PACKED = {"positions": int32([[0, 1, 2, 0, 1, 2]] * 2), "segments": int32([[1, 1, 1, 2, 2, 2]] * 2)}


@pytest.mark.parametrize("name", first([*LANGUAGE_CONFIGS, "rotary"], "rotary"))
def test_packed_texts_equal_separate_ones(name):
    """Logits, loss and weights of two texts in a row; relative positions need not restart."""
    given = dict(PACKED)
    if name == "rotary":
        small = Small(dataclasses.replace(LANGUAGE_CONFIGS["tied"], positions=choices.Rotary()), models.LanguageModel)
        del given["positions"]
    else:
        small = language_model(name)

    @quick
    def run(params, tokens, labels):
        bound = small.net.bind(params)
        weights = bound.captured(tokens, names=("decoder.self",))["decoder.self"].layer(1).weights()
        return bound(tokens), bound.loss(tokens, labels=labels), weights

    split = np.asarray(TOKENS).reshape(-1, 3)
    labels = np.roll(split, 1, 0)
    packed, loss, weights = run(small.params, functional.Tokens(TOKENS, **given), labels.reshape(-1, T))
    alone, expected_loss, _ = run(small.params, split, labels)
    np.testing.assert_allclose(packed.reshape(-1, 3, V), alone, atol=2e-5)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    expected = np.kron(np.eye(2, dtype=bool), np.tri(3, dtype=bool))
    np.testing.assert_array_equal(np.asarray(weights) > 0, np.broadcast_to(expected, weights.shape))


@pytest.mark.parametrize("positions", first([choices.Alibi(), choices.Rotary()], choices.Alibi()))
def test_positions_of_few_bits_in_a_wide_window(positions):
    """The size of the window did not fit in their type."""
    small = Small(
        dataclasses.replace(LANGUAGE_CONFIGS["tied"], positions=positions, attention_window=300), models.LanguageModel
    )
    expected = logits(small, functional.Tokens(TOKENS, positions=int32([range(0, 20 * T, 20)] * 2)))
    given = np.array([range(0, 20 * T, 20)] * 2, np.int8)
    np.testing.assert_allclose(logits(small, functional.Tokens(TOKENS, positions=given)), expected, atol=1e-5)


@pytest.mark.parametrize("positions", [[0, 1, 2, 0, 1, 2], [5, 4, 3, 2, 1, 0], [2, 3, 4, 2, 2, 2], [0, 1, 2, 3, 4, 5]])
def test_later_tokens_are_never_visible(positions):
    """Neither later in the row nor at a later position; in their natural order, positions change nothing."""
    small, at = language_model("untied"), lambda ids: functional.Tokens(ids, positions=int32([positions] * 2))
    plain = logits(small, at(TOKENS))
    for t in range(T):
        seen = different(plain, logits(small, at(changed((slice(None), t), 11)))).any(0)
        np.testing.assert_array_equal(seen & ((np.arange(T) < t) | (np.asarray(positions) < positions[t])), False)
        assert seen[t]
    if positions == sorted(positions):
        np.testing.assert_allclose(plain, logits(small), atol=1e-5)


@pytest.mark.parametrize("shape", first([(1, 0), (0, 3)], (1, 0)))
def test_empty_texts_and_batches_have_empty_logits_and_no_loss(shape):
    small, tokens = language_model("tied"), int32(np.zeros(shape))
    loss = lambda params: small.net.bind(params).loss(tokens, labels=tokens)
    (total, count), slopes = quick(jax.value_and_grad(loss, has_aux=True))(small.params)
    assert logits(small, tokens).shape == (*shape, V)
    assert (float(total), float(count)) == (0.0, 0.0)
    assert not any(np.asarray(slope).any() for slope in jax.tree.leaves(slopes))


MASKED_CONFIG = models.EncoderConfig(
    V,
    d_model=8,
    num_heads=2,
    d_ff=12,
    num_layers=2,
    norm_position="pre",
    positions=choices.Learned(),
    max_positions=9,
)
TEXTS = jnp.asarray([[1, 5, 6, 2, 1, 7, 8, 9, 2], [1, 4, 12, 5, 2, 0, 0, 0, 0]], jnp.int32)
REAL = TEXTS > 0
PADDED_TEXTS = functional.Tokens(TEXTS, REAL)
SEGMENTS = jnp.asarray([[1, 1, 1, 1, 2, 2, 2, 2, 2], [1, 1, 1, 1, 1, 0, 0, 0, 0]], jnp.int32)
POSITIONS = jnp.asarray([[0, 1, 2, 3, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 0, 0, 0, 0]], jnp.int32)
PIECES = (0, 4), (4, 9)  # the sequences of the first row
CHOSEN = jnp.asarray([[1, 6, 7], [2, 0, 0]], jnp.int32)
WHERE = jnp.asarray([[1, 1, 1], [1, 0, 0]], bool)


@functools.cache
def base():
    return Small(MASKED_CONFIG, models.MaskedLanguageModel)


def masked_logits(tokens=PADDED_TEXTS, *masked_positions):
    return np.asarray(base().apply(base().params, tokens, *masked_positions))


def padded(ids):
    return functional.Tokens(ids, REAL)


def test_every_token_attends_to_both_sides_and_no_padding():
    plain = masked_logits()
    assert different(plain, masked_logits(padded(TEXTS.at[0, 8].set(3))))[0].all()
    np.testing.assert_array_equal(plain[1, :5], masked_logits(padded(jnp.where(REAL, TEXTS, 7)))[1, :5])


def test_packed_sequences_equal_separate_ones():
    """The second sequence of a row, with its own positions, has the same result as in a separate row."""
    packed = masked_logits(functional.Tokens(TEXTS, REAL, POSITIONS, SEGMENTS))
    tokens, valid = np.zeros((2, 2, 9), np.int32)
    for row, (start, stop) in enumerate(PIECES):
        tokens[row, : stop - start], valid[row, : stop - start] = TEXTS[0, start:stop], 1
    alone = masked_logits(functional.Tokens(tokens, valid > 0))
    for row, (start, stop) in enumerate(PIECES):
        np.testing.assert_allclose(packed[0, start:stop], alone[row, : stop - start], atol=2e-5)
    one = np.ones_like(SEGMENTS)
    assert different(packed, masked_logits(functional.Tokens(TEXTS, REAL, POSITIONS, one)))[0].all()


def test_logits_at_chosen_positions_equal_rows_of_the_full_pass():
    expected = np.take_along_axis(masked_logits(), np.asarray(CHOSEN)[..., None], 1)
    np.testing.assert_allclose(masked_logits(PADDED_TEXTS, CHOSEN), expected, atol=2e-6)


def test_cross_entropy_equals_that_of_the_logits():
    """Value and every gradient, at the chosen positions only, with dropout and token types."""
    config = dataclasses.replace(MASKED_CONFIG, dropout=0.2, num_layers=1, num_token_types=3)
    small = Small(config, models.MaskedLanguageModel)
    labels, key = jnp.asarray([[3, 4, 5], [6, 7, 8]], jnp.int32), jax.random.key(3)
    tokens = functional.Tokens(TEXTS, REAL, POSITIONS, SEGMENTS, types=SEGMENTS)

    def whole(params):
        rows = small.net.apply(params, tokens, CHOSEN, key=key)
        return functional.cross_entropy(rows, labels, where=WHERE)

    def fused(params):
        return small.net.bind(params).loss(tokens, CHOSEN, labels=labels, where=WHERE, key=key)

    slopes = [jax.value_and_grad(loss, has_aux=True) for loss in (whole, fused)]
    results = quick(lambda params: [slope(params) for slope in slopes])(small.params)  # what they share compiles once
    assert float(results[1][0][1]) == 4
    chex.assert_trees_all_close(*results, rtol=1e-4, atol=2e-5)


def test_the_head_is_tied_to_the_table_and_has_a_bias():
    assert {"transform", "norm", "output_bias", "encoder"} == base().params.keys()
    bias = entry(base().params, "output_bias")
    moved = base().apply(replaced(base().params, {"output_bias": bias.at[5].add(2.0)}), PADDED_TEXTS)
    np.testing.assert_allclose(moved - masked_logits(), np.zeros((2, 9, V)) + 2.0 * (np.arange(V) == 5), atol=1e-5)
    table = entry(base().params, "encoder.embeddings.tokens.table")
    other = replaced(base().params, {"encoder.embeddings.tokens.table": table.at[3].add(1.0)})  # occurs nowhere
    assert (np.asarray(base().apply(other, PADDED_TEXTS)) != masked_logits()).any((0, 1)).tolist() == [
        token == 3 for token in range(V)
    ]


def test_padding_counts_only_where_it_is_chosen():
    """Without masked positions, the labels of valid tokens count; those at chosen positions all do."""
    net, tokens = base().net, functional.Tokens(PADDED_TEXTS.ids, PADDED_TEXTS.valid)
    labels, valid = PADDED_TEXTS.ids, np.asarray(PADDED_TEXTS.valid)
    params = base().params
    for inputs in ((tokens,), (tokens, None)):
        _, count = net.bind(params).loss(*inputs, labels=labels)
        assert int(count) == valid.sum() < valid.size
    chosen = jnp.zeros((len(valid), 2), jnp.int32)
    assert int(net.bind(params).loss(tokens, chosen, labels=labels[:, :2])[1]) == chosen.size
