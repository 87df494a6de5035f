"""Properties of classifiers: pooling, padding, the encoder that they share with others; V2: images, also resized."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, models, pure
from jaxformer.models import choices
from tests.models.small import Small, different, entry
from tests.modules.small import normal, quick
from tests.selection import first

SIZES = {"d_model": 8, "num_heads": 2, "d_ff": 12, "num_layers": 2, "norm_position": "pre", "dropout": 0.0}
CONFIG = models.ClassifierConfig(13, num_classes=3, **SIZES)
PLAIN = dataclasses.replace(CONFIG, num_layers=0, pooling="mean", positions=None, final_norm=False)
TOKENS = jnp.asarray([[1, 5, 6, 2, 0, 0], [1, 7, 8, 9, 10, 2]], jnp.int32)
VALID = TOKENS > 0
PADDED = functional.Tokens(TOKENS, VALID)


@functools.cache
def small(pooling):
    return Small(dataclasses.replace(CONFIG, pooling=pooling), models.Classifier)


@pytest.mark.parametrize("pooling", ["class_token", "mean"])
def test_padding_and_other_examples_change_nothing(pooling):
    model, padded = small(pooling), lambda ids: functional.Tokens(ids, VALID)
    logits = model.apply(model.params, PADDED)
    assert (logits.shape, logits.dtype) == ((2, 3), jnp.float32)
    np.testing.assert_array_equal(logits, model.apply(model.params, padded(jnp.where(VALID, TOKENS, 7))))
    np.testing.assert_allclose(logits[:1], model.apply(model.params, TOKENS[:1, :4]), atol=2e-5)
    changed = model.apply(model.params, padded(TOKENS.at[1, 4].set(3)))
    assert different(logits, changed).tolist() == [False, True]
    empty = model.apply(model.params, functional.Tokens(TOKENS, VALID.at[0].set(False)))
    assert np.isfinite(empty).all()


def test_pooling_uses_the_states():
    for pooling in ("class_token", "mean"):
        model = small(pooling)
        encode = quick(lambda params, model=model: model.net.bind(params).encoder(PADDED)[0].states)
        states = np.asarray(encode(model.params))
        pooled = states[:, 0] if pooling == "class_token" else np.stack([states[0, :4].mean(0), states[1].mean(0)])
        kernel, bias = (np.asarray(entry(model.params, f"output.{name}")) for name in ("kernel", "bias"))
        np.testing.assert_allclose(model.apply(model.params, PADDED), pooled @ kernel + bias, atol=2e-5)


def test_without_layers_it_is_the_average_of_token_vectors():
    """Order does not matter, and the encoder has a table and nothing else."""
    model = Small(PLAIN, models.Classifier)
    assert list(model.params["encoder"]) == ["embeddings"]
    logits = model.apply(model.params, PADDED)
    table = np.asarray(entry(model.params, "encoder.embeddings.tokens.table")) * 8**0.5
    kernel, bias = (np.asarray(entry(model.params, f"output.{name}")) for name in ("kernel", "bias"))
    expected = np.stack([table[np.asarray(row)[np.asarray(row) > 0]].mean(0) for row in TOKENS]) @ kernel + bias
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    np.testing.assert_allclose(model.apply(model.params, TOKENS[1:, ::-1]), logits[1:], atol=1e-5)


def test_l14_a_negation_turns_what_follows():
    """An average cannot: whatever its parameters, "not" adds the same to the logits of every word that follows.

    So it cannot make "not good" bad and "not bad" good at once. With attention, what it adds depends on the word.
    """
    none, good, bad = 5, 6, 7

    def added(model, word):
        with_negation, without = (
            np.asarray(model.apply(model.params, jnp.asarray([text]))) for text in ([none, word], [word])
        )
        return 2 * with_negation - without

    average, attention = Small(PLAIN, models.Classifier), small("class_token")
    np.testing.assert_allclose(added(average, good), added(average, bad), atol=1e-5)
    assert np.abs(added(attention, good) - added(attention, bad)).max() > 0.1


def test_the_encoder_equals_that_of_the_masked_language_model():
    config = models.EncoderConfig(13, **SIZES)
    masked = pure(models.MaskedLanguageModel, config).shapes["encoder"]
    assert masked == pure(models.Classifier, CONFIG).shapes["encoder"]


@pytest.mark.full
def test_training_balances_the_experts_of_all_layers():
    """By an additional loss, which is 0 without a key, without experts and without layers."""
    experts = choices.Experts(num_experts=3, load_balancing_weight=0.5)
    config = dataclasses.replace(CONFIG, feed_forward=experts)
    run = lambda model, **given: model.call(models.Classifier.training_logits, model.params, PADDED, **given)
    model, key = Small(config, models.Classifier), jax.random.key(0)
    logits, balance = run(model, key=key)
    np.testing.assert_allclose(logits, model.apply(model.params, PADDED), atol=1e-6)
    assert 0.9 * 0.5 < balance < 3.1 * 0.5
    assert run(model)[1] == 0
    assert run(small("class_token"), key=key)[1] == 0
    assert run(Small(dataclasses.replace(config, num_layers=0, pooling="mean"), models.Classifier), key=key)[1] == 0


def test_captured_attention():
    model = small("class_token")

    @quick
    def run(params):
        bound = model.net.bind(params)
        return bound.captured(PADDED)["encoder.self"], bound.run(PADDED, capture=("encoder.self",))

    captured, (logits, intermediates) = run(model.params)
    assert captured.query.shape == (2, 2, 6, 2, 4)
    np.testing.assert_allclose(logits, model.apply(model.params, PADDED), atol=1e-6)
    np.testing.assert_allclose(intermediates["encoder.self"].query, captured.query, atol=1e-6)


IMAGES = normal(2, 6, 4, 3)


@functools.cache
def vision(pooling):
    config = models.VisionTransformerConfig(image_size=(6, 4), patch_size=2, pooling=pooling, **SIZES, num_classes=3)
    return Small(config, models.VisionTransformer)


@pytest.mark.parametrize("pooling", first(["class_token", "mean"], "mean"))
def test_pooling_uses_the_encoder(pooling):
    """The encoder equals that of `make_encoder`; the mean is over patches only."""
    model = vision(pooling)
    encoder = pure(models.make_encoder, model.net.config)
    states = np.asarray(quick(encoder.apply)(model.params["encoder"], IMAGES)[0].states)
    assert states.shape == (2, 7 if pooling == "class_token" else 6, 8)
    pooled = states[:, 0] if pooling == "class_token" else states.mean(1)
    output = model.params["output"]
    expected = pooled @ np.asarray(output["kernel"]) + np.asarray(output["bias"])
    np.testing.assert_allclose(model.apply(model.params, IMAGES), expected, atol=2e-5)


def test_without_positions_the_order_of_patches_is_unknown():
    model = vision("mean")
    turned = jnp.concatenate([IMAGES[:, 2:4], IMAGES[:, :2], IMAGES[:, 4:]], 1)  # two rows of patches change places
    silent = jax.tree.map(lambda x: x, model.params)
    silent["encoder"]["embeddings"]["positions"]["table"] = jnp.zeros((6, 8))
    np.testing.assert_allclose(model.apply(silent, turned), model.apply(silent, IMAGES), atol=1e-5)
    assert np.abs(model.apply(model.params, turned) - model.apply(model.params, IMAGES)).max() > 1e-3


@pytest.mark.full
@pytest.mark.parametrize("pooling", ["class_token", "mean"])
def test_another_image_size(pooling):
    """Only the table differs, by interpolation; the same size changes nothing."""
    model = vision(pooling)
    config, params = models.with_image_size(model.net.config, model.params, (10, 8))
    assert config.image_size == (10, 8)
    images = normal(2, 10, 8, 3)
    assert pure(models.VisionTransformer, config).apply(params, images).shape == (2, 3)
    first = pooling == "class_token"
    table = model.params["encoder"]["embeddings"]["positions"]["table"]
    options = {"num_class_rows": int(first), "method": "bicubic"}
    expected = functional.resize_grid_positions(table, (3, 2), (5, 4), **options)
    np.testing.assert_array_equal(params["encoder"]["embeddings"]["positions"]["table"], expected)
    same = models.with_image_size(model.net.config, model.params, (6, 4))[1]
    chex.assert_trees_all_equal(same, model.params)
    with pytest.raises(ValueError, match=r"multiple of patch_size 2, got \(9, 8\)"):
        models.with_image_size(model.net.config, model.params, (9, 8))
