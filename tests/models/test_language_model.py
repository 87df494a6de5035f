"""Properties of the language model, tied and pre-norm, untied and post-norm."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks, models, pure
from tests.models.small import LANGUAGE_CONFIGS, B, Small, V, different, entry, language_model
from tests.modules.small import quick
from tests.selection import first

BOTH = pytest.mark.parametrize("name", LANGUAGE_CONFIGS)
SLOW = pytest.mark.parametrize("name", first(LANGUAGE_CONFIGS, "tied"))
TABLE, OUTPUT = "decoder.embeddings.tokens.table", "decoder.output.kernel"
TOKENS = jnp.asarray([[1, 2, 9, 10, 3, 8], [1, 10, 2, 9, 0, 0]], jnp.int32)
VALID = jnp.asarray([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]], bool)
T = TOKENS.shape[1]


def logits(small, tokens=TOKENS, *, params=None, **options):
    return small.apply(small.params if params is None else params, tokens, **options)


@SLOW
def test_causality_by_gradients(name):
    """Logits at t have slope exactly 0 on later tokens, not 0 on itself and earlier ones."""
    small, unused = language_model(name), V - 2

    def logit(x):
        tokens = jnp.arange(T, dtype=jnp.int32)[None]
        table = jnp.zeros((V, 8)).at[:T].set(x).at[T:].set(entry(small.params, TABLE)[T:])
        params = jax.tree.map(lambda leaf: leaf, small.params)
        params["decoder"]["embeddings"]["tokens"]["table"] = table
        return small.net.apply(params, tokens)[0, :, unused]

    jacobian = quick(jax.jacrev(logit))(entry(small.params, TABLE)[:T])  # [T, T, D]
    np.testing.assert_array_equal(np.abs(np.asarray(jacobian)).sum(-1) > 0, np.tri(T, dtype=bool))


def test_without_the_causal_mask_the_future_is_seen():
    """The label of a row is its next token: with the mask it changes nothing before it, without it every row."""
    changed = TOKENS.at[:, 3].set(5)
    small = language_model("tied")
    rows = lambda small: different(logits(small), logits(small, changed)).all(0)
    np.testing.assert_array_equal(rows(small), np.arange(T) >= 3)
    seeing = Small(dataclasses.replace(small.config, causal=False), models.LanguageModel)
    assert rows(seeing).all()
    padded = [logits(seeing, tokens, valid=VALID) for tokens in (TOKENS, jnp.where(VALID, TOKENS, 7))]
    np.testing.assert_array_equal(different(*padded) & np.asarray(VALID), False)


@BOTH
def test_what_padding_holds_does_not_matter(name):
    """At the end, which the causal mask hides, and at the beginning, which only `valid` does."""
    small = language_model(name)
    for valid in (VALID, VALID[:, ::-1]):
        plain, other = (logits(small, tokens, valid=valid) for tokens in (TOKENS, jnp.where(valid, TOKENS, 7)))
        np.testing.assert_array_equal(different(plain, other) & np.asarray(valid), False)
    plain = logits(small, valid=VALID)
    alone = logits(small, TOKENS[1:, :4])
    np.testing.assert_allclose(alone[0], plain[1, :4], atol=2e-5)


@BOTH
def test_examples_are_independent(name):
    small = language_model(name)
    plain, other = logits(small), logits(small, TOKENS.at[0].set(5))
    np.testing.assert_array_equal(plain[1], other[1])
    assert different(plain[0], other[0]).all()


@SLOW
def test_cross_entropy_is_that_of_the_logits(name):
    """Value and every gradient, padding and dropout included; only the logits do not exist."""
    small = Small(dataclasses.replace(LANGUAGE_CONFIGS[name], dropout=0.2), models.LanguageModel)
    labels, key = jnp.roll(TOKENS, -1, 1), jax.random.key(3)

    def whole(params):
        logits = small.net.apply(params, TOKENS, valid=VALID, key=key)
        return functional.cross_entropy(logits, labels, where=VALID, smoothing=0.1, z_loss=0.01)

    def fused(params):
        options = {"valid": VALID, "key": key, "smoothing": 0.1, "z_loss": 0.01}
        return small.net.bind(params).cross_entropy(TOKENS, labels, **options)

    results = [quick(jax.value_and_grad(loss, has_aux=True))(small.params) for loss in (whole, fused)]
    assert float(results[1][0][1]) == 10
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5)


@SLOW
def test_steps_equal_the_rows_of_the_whole(name):
    """Three hypotheses of each text, folded over a sequence inside one jitted loop."""
    small, beam_size = language_model(name), 3
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, V, (B, beam_size, T)), jnp.int32)

    @quick
    def run(params):
        bound = small.net.bind(params)
        context, state = bound.start(batch_size=B, beam_size=beam_size, length=T)

        def body(carry):
            t, state, logits = carry
            row, state = bound.step(tokens[:, :, t], state, context)
            return t + 1, state, logits.at[:, :, t].set(row)

        carry = 0, state, jnp.zeros((B, beam_size, T, V))
        return jax.lax.while_loop(lambda carry: carry[0] < T, body, carry)[2]

    expected = logits(small, tokens.reshape(-1, T)).reshape(B, beam_size, T, V)
    np.testing.assert_allclose(run(small.params), expected, atol=3e-5)


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "activation_dropout"])
def test_each_dropout_rate_has_its_place(rate):
    """Each alone changes the result, as a function of the key; without a key there is none."""
    none = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    noisy = Small(dataclasses.replace(LANGUAGE_CONFIGS["tied"], **(none | {rate: 0.4})), models.LanguageModel)
    one, same, other = (logits(noisy, key=jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert different(one, other)[:, 2:].all()
    np.testing.assert_array_equal(logits(noisy), logits(language_model("tied")))


@BOTH
def test_bfloat16_is_close(name):
    """Compute in bfloat16, parameters and logits in float32: within a few roundings of float32."""
    small = Small(dataclasses.replace(LANGUAGE_CONFIGS[name], compute_dtype="bfloat16"), models.LanguageModel)
    got, expected = logits(small), np.asarray(logits(language_model(name)))
    assert got.dtype == jnp.float32
    assert {x.dtype for x in jax.tree.leaves(small.net.shapes)} == {jnp.dtype("float32")}
    assert np.abs(got - expected).max() < 0.05 * np.abs(expected).max()


def test_tied_weights_share_one_array():
    assert entry(language_model("tied").params, OUTPUT) is None
    assert entry(language_model("untied").params, OUTPUT).shape == (8, V)
    small = language_model("tied")
    separate = Small(dataclasses.replace(small.config, tie_embeddings=False), models.LanguageModel)
    table = entry(small.params, TABLE)
    split = {"decoder": small.params["decoder"] | {"output": {"kernel": table.T}}}
    np.testing.assert_allclose(logits(separate, params=split), logits(small), atol=1e-5)


def test_captured_attention():
    """Queries and keys of every layer; as weights they are causal."""
    small = language_model("tied")
    call = functools.partial(small.call, models.LanguageModel.captured, small.params, TOKENS)
    found = call(names=("decoder.self",), valid=VALID)["decoder.self"]
    assert found.query.shape == found.key.shape == (3, B, T, 2, 4)
    weights = found.layer(1).weights()
    allowed = masks.causal() & masks.padding(VALID)
    np.testing.assert_array_equal(weights > 0, np.broadcast_to(allowed.dense(T, T), weights.shape))
    np.testing.assert_array_equal(found.layer(-2).weights(), weights)
    with pytest.raises(ValueError, match="layers count from 0 to 2, got 3"):
        found.layer(3)
    with pytest.raises(ValueError, match=r"unknown attention names \['decoder.cross'\]; there are \['decoder.self'\]"):
        call(names=("decoder.cross",))


PACKED = {"positions": jnp.asarray([[0, 1, 2, 0, 1, 2]] * 2), "segments": jnp.asarray([[1, 1, 1, 2, 2, 2]] * 2)}


@pytest.mark.parametrize("name", first([*LANGUAGE_CONFIGS, "rotary"], "tied", "rotary"))
def test_packed_texts_are_those_alone(name):
    """Logits, loss and weights of two texts in a row; positions that are only relative need not begin again."""
    given = dict(PACKED)
    if name == "rotary":
        small = Small(dataclasses.replace(LANGUAGE_CONFIGS["tied"], positions="rotary"), models.LanguageModel)
        del given["positions"]
    else:
        small = language_model(name)
    split = TOKENS.reshape(-1, 3)
    np.testing.assert_allclose(logits(small, **given).reshape(-1, 3, V), logits(small, split), atol=2e-5)
    loss = functools.partial(small.call, models.LanguageModel.cross_entropy, small.params)
    labels = jnp.roll(split, 1, 0)
    np.testing.assert_allclose(loss(TOKENS, labels.reshape(-1, T), **given), loss(split, labels), rtol=1e-5)
    call = functools.partial(small.call, models.LanguageModel.captured, small.params, names=("decoder.self",))
    weights = call(TOKENS, **given)["decoder.self"].layer(1).weights()
    expected = np.kron(np.eye(2, dtype=bool), np.tri(3, dtype=bool))
    np.testing.assert_array_equal(weights > 0, np.broadcast_to(expected, weights.shape))


@pytest.mark.parametrize("positions", [[0, 1, 2, 0, 1, 2], [5, 4, 3, 2, 1, 0], [2, 3, 4, 2, 2, 2], [0, 1, 2, 3, 4, 5]])
def test_no_positions_show_what_comes_later(positions):
    """Neither later in the row nor at a later position; in their natural order, positions change nothing."""
    small, given = language_model("untied"), jnp.asarray([positions] * 2)
    plain = logits(small, positions=given)
    for t in range(T):
        seen = different(plain, logits(small, TOKENS.at[:, t].set(11), positions=given)).any(0)
        np.testing.assert_array_equal(seen & ((np.arange(T) < t) | (np.asarray(positions) < positions[t])), False)
        assert seen[t]
    if positions == sorted(positions):
        np.testing.assert_allclose(plain, logits(small), atol=1e-5)


def test_attention_function_reaches_every_layer():
    """The seam for kernels: a model built with another attention function uses it everywhere."""
    seen = []

    def spy(query, key, value, **options):
        seen.append((query.shape[1], key.shape[1]))
        return functional.attention(query, key, value, **options)

    net = pure(models.LanguageModel, LANGUAGE_CONFIGS["tied"], attention=spy)
    jax.eval_shape(net.apply, net.shapes, TOKENS)
    assert set(seen) == {(T, T)}


def test_longer_than_the_learned_positions():
    small, message = language_model("tied"), "a sequence of length 8 has no learned position beyond 7"
    with pytest.raises(ValueError, match=message):
        logits(small, jnp.ones((1, 8), jnp.int32))
    with pytest.raises(ValueError, match=message):
        small.call(models.LanguageModel.start, small.params, batch_size=1, beam_size=1, length=8)


def test_a_model_needs_a_vocabulary():
    with pytest.raises(ValueError, match="vocab_size must be at least 1, got 0"):
        pure(models.LanguageModel, models.LanguageModelConfig()).shapes


@SLOW
def test_initial_logits_are_modest(name):
    """At the start every token is about as likely as another: the loss is near log V, so training starts well."""
    sizes = {"vocab_size": 300, "d_model": 64, "num_heads": 4, "d_ff": 128}
    net = pure(models.LanguageModel, dataclasses.replace(LANGUAGE_CONFIGS[name], **sizes))
    fresh = quick(lambda key: net.apply(net.init(key), TOKENS))(jax.random.key(0))
    total, count = functional.cross_entropy(fresh, jnp.roll(TOKENS, -1, 1))
    assert abs(float(total / count) - np.log(300)) < 1.0


@pytest.mark.parametrize("shape", [(1, 0), (0, 3)])
def test_empty_texts_and_batches_have_empty_logits_and_no_loss(shape):
    small, tokens = language_model("tied"), jnp.zeros(shape, jnp.int32)
    loss = lambda params: small.net.bind(params).cross_entropy(tokens, tokens)
    (total, count), slopes = quick(jax.value_and_grad(loss, has_aux=True))(small.params)
    assert logits(small, tokens).shape == (*shape, V)
    assert (float(total), float(count)) == (0.0, 0.0)
    assert not any(np.asarray(slope).any() for slope in jax.tree.leaves(slopes))
