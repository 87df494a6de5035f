"""Properties of the masked language model."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, models, pure
from jaxformer.models import choices
from tests.models.small import Small, different, entry, replaced
from tests.modules.small import quick

V = 13
CONFIG = models.EncoderConfig(
    V,
    d_model=8,
    num_heads=2,
    d_ff=12,
    num_layers=2,
    norm_position="pre",
    positions=choices.Learned(),
    max_positions=9,
)
TOKENS = jnp.asarray([[1, 5, 6, 2, 1, 7, 8, 9, 2], [1, 4, 12, 5, 2, 0, 0, 0, 0]], jnp.int32)
VALID = TOKENS > 0
PADDED = functional.Tokens(TOKENS, VALID)
SEGMENTS = jnp.asarray([[1, 1, 1, 1, 2, 2, 2, 2, 2], [1, 1, 1, 1, 1, 0, 0, 0, 0]], jnp.int32)
POSITIONS = jnp.asarray([[0, 1, 2, 3, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 0, 0, 0, 0]], jnp.int32)
PIECES = (0, 4), (4, 9)  # the sequences of the first row
MASKED = jnp.asarray([[1, 6, 7], [2, 0, 0]], jnp.int32)
WHERE = jnp.asarray([[1, 1, 1], [1, 0, 0]], bool)


@functools.cache
def base():
    return Small(CONFIG, models.MaskedLanguageModel)


def logits(tokens=PADDED, *masked_positions):
    return np.asarray(base().apply(base().params, tokens, *masked_positions))


def padded(ids):
    return functional.Tokens(ids, VALID)


def test_every_token_attends_to_both_sides_and_no_padding():
    plain = logits()
    assert different(plain, logits(padded(TOKENS.at[0, 8].set(3))))[0].all()
    np.testing.assert_array_equal(plain[1, :5], logits(padded(jnp.where(VALID, TOKENS, 7)))[1, :5])


def test_packed_sequences_equal_separate_ones():
    """The second sequence of a row, with its own positions, has the same result as in a separate row."""
    packed = logits(functional.Tokens(TOKENS, VALID, POSITIONS, SEGMENTS))
    tokens, valid = np.zeros((2, 2, 9), np.int32)
    for row, (start, stop) in enumerate(PIECES):
        tokens[row, : stop - start], valid[row, : stop - start] = TOKENS[0, start:stop], 1
    alone = logits(functional.Tokens(tokens, valid > 0))
    for row, (start, stop) in enumerate(PIECES):
        np.testing.assert_allclose(packed[0, start:stop], alone[row, : stop - start], atol=2e-5)
    one = np.ones_like(SEGMENTS)
    assert different(packed, logits(functional.Tokens(TOKENS, VALID, POSITIONS, one)))[0].all()


def test_logits_at_chosen_positions_equal_rows_of_the_full_pass():
    expected = np.take_along_axis(logits(), np.asarray(MASKED)[..., None], 1)
    np.testing.assert_allclose(logits(PADDED, MASKED), expected, atol=2e-6)


def test_cross_entropy_equals_that_of_the_logits():
    """Value and every gradient, at the chosen positions only, with dropout and token types."""
    config = dataclasses.replace(CONFIG, dropout=0.2, num_layers=1, num_token_types=3)
    small = Small(config, models.MaskedLanguageModel)
    labels, key = jnp.asarray([[3, 4, 5], [6, 7, 8]], jnp.int32), jax.random.key(3)
    tokens = functional.Tokens(TOKENS, VALID, POSITIONS, SEGMENTS, types=SEGMENTS)

    def whole(params):
        rows = small.net.apply(params, tokens, MASKED, key=key)
        return functional.cross_entropy(rows, labels, where=WHERE)

    def fused(params):
        return small.net.bind(params).loss(tokens, MASKED, labels=labels, where=WHERE, key=key)

    slopes = [jax.value_and_grad(loss, has_aux=True) for loss in (whole, fused)]
    results = quick(lambda params: [slope(params) for slope in slopes])(small.params)  # what they share compiles once
    assert float(results[1][0][1]) == 4
    chex.assert_trees_all_close(*results, rtol=1e-4, atol=2e-5)


@pytest.mark.full
def test_experts_are_balanced_in_training():
    """The loss includes the balancing losses of all layers, which padding does not change."""
    experts = choices.Experts(num_experts=3, load_balancing_weight=0.5)
    config = dataclasses.replace(CONFIG, feed_forward=experts, dropout=0.0)
    small = Small(config, models.MaskedLanguageModel)

    def loss(tokens=PADDED, **given):
        given |= {"labels": jnp.take_along_axis(TOKENS, MASKED, 1), "where": WHERE}
        return small.call(models.MaskedLanguageModel.loss, small.params, tokens, MASKED, **given)

    (plain, count), (training, _) = loss(), loss(key=jax.random.key(0))
    assert 0.9 * 0.5 * count < training - plain < 3.1 * 0.5 * count
    assert loss(padded(jnp.where(VALID, TOKENS, 7)), key=jax.random.key(0))[0] == training


def test_the_head_is_tied_to_the_table_and_has_a_bias():
    assert {"transform", "norm", "output_bias", "encoder"} == base().params.keys()
    bias = entry(base().params, "output_bias")
    moved = base().apply(replaced(base().params, {"output_bias": bias.at[5].add(2.0)}), PADDED)
    np.testing.assert_allclose(moved - logits(), np.zeros((2, 9, V)) + 2.0 * (np.arange(V) == 5), atol=1e-5)
    table = entry(base().params, "encoder.embeddings.tokens.table")
    other = replaced(base().params, {"encoder.embeddings.tokens.table": table.at[3].add(1.0)})  # occurs nowhere
    assert (np.asarray(base().apply(other, PADDED)) != logits()).any((0, 1)).tolist() == [
        token == 3 for token in range(V)
    ]


def test_captured_attention():
    """It takes the inputs of the logits: with other token types or positions, other queries are captured."""
    captured = base().call(models.MaskedLanguageModel.captured, base().params, PADDED)["encoder.self"]
    assert captured.query.shape == (2, 2, 9, 2, 4)

    @quick
    def queries(params, types, positions):
        tokens = functional.Tokens(TOKENS, VALID, positions, jnp.ones_like(types), types)
        return small.net.bind(params).captured(tokens)["encoder.self"].query

    small = Small(dataclasses.replace(CONFIG, num_layers=1, num_token_types=2), models.MaskedLanguageModel)
    zeros = jnp.zeros_like(TOKENS)
    plain = queries(small.params, zeros, zeros)
    assert (plain != queries(small.params, zeros + 1, zeros)).any()
    assert (plain != queries(small.params, zeros, zeros + 1)).any()


@pytest.mark.full
def test_initial_logits_are_modest():
    """At the start every token is about as likely as another: the loss is near log V."""
    config = dataclasses.replace(CONFIG, vocab_size=300, d_model=64, num_heads=4, d_ff=128)
    net = pure(models.MaskedLanguageModel, config)
    fresh = quick(lambda key: net.apply(net.init(key), TOKENS))(jax.random.key(0))
    total, count = functional.cross_entropy(fresh, TOKENS)
    assert abs(float(total / count) - np.log(300)) < 1.0


def test_padding_counts_only_where_it_is_chosen():
    """Without masked positions, the labels of valid tokens count; those at chosen positions all do."""
    net, tokens = base().net, functional.Tokens(PADDED.ids, PADDED.valid)
    labels, valid = PADDED.ids, np.asarray(PADDED.valid)
    params = base().params
    for inputs in ((tokens,), (tokens, None)):
        _, count = net.bind(params).loss(*inputs, labels=labels)
        assert int(count) == valid.sum() < valid.size
    chosen = jnp.zeros((len(valid), 2), jnp.int32)
    assert int(net.bind(params).loss(tokens, chosen, labels=labels[:, :2])[1]) == chosen.size
