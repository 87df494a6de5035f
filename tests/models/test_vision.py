"""V2: properties of the vision Transformer: its encoder, its pooling, other image sizes."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, models, pure
from jaxformer.models import choices
from tests.models.small import Small
from tests.modules.small import normal, quick

SIZES = {"d_model": 8, "num_heads": 2, "d_ff": 12, "num_layers": 2, "dropout": 0.0, "num_classes": 3}
IMAGES = normal(2, 6, 4, 3)


@functools.cache
def small(pooling="class_token"):
    config = models.VisionTransformerConfig(image_size=(6, 4), patch_size=2, pooling=pooling, **SIZES)
    return Small(config, models.VisionTransformer)


@pytest.mark.parametrize("pooling", ["class_token", "mean"])
def test_pooling_uses_the_encoder(pooling):
    """The encoder equals that of `make_encoder`; the mean is over patches only."""
    model = small(pooling)
    encoder = pure(models.make_encoder, model.net.config)
    states = np.asarray(quick(encoder.apply)(model.params["encoder"], IMAGES)[0].states)
    assert states.shape == (2, 7 if pooling == "class_token" else 6, 8)
    pooled = states[:, 0] if pooling == "class_token" else states.mean(1)
    output = model.params["output"]
    expected = pooled @ np.asarray(output["kernel"]) + np.asarray(output["bias"])
    np.testing.assert_allclose(model.apply(model.params, IMAGES), expected, atol=2e-5)


def test_without_positions_the_order_of_patches_is_unknown():
    model = small("mean")
    turned = jnp.concatenate([IMAGES[:, 2:4], IMAGES[:, :2], IMAGES[:, 4:]], 1)  # two rows of patches change places
    silent = jax.tree.map(lambda x: x, model.params)
    silent["encoder"]["embeddings"]["positions"]["table"] = jnp.zeros((6, 8))
    np.testing.assert_allclose(model.apply(silent, turned), model.apply(silent, IMAGES), atol=1e-5)
    assert np.abs(model.apply(model.params, turned) - model.apply(model.params, IMAGES)).max() > 1e-3


@pytest.mark.full
def test_capturing_does_not_change_the_logits():
    model = small()
    bind = model.net.bind
    run = quick(lambda params: (bind(params).run(IMAGES, capture=("encoder.self",))[0], bind(params).captured(IMAGES)))
    logits, captured = run(model.params)
    np.testing.assert_allclose(logits, model.apply(model.params, IMAGES), atol=1e-6)
    weights = captured["encoder.self"].layer(1).weights(rows=[0])
    assert weights.shape == (2, 2, 1, 7)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)


def test_training_balances_experts():
    experts = choices.Experts(num_experts=3, load_balancing_weight=0.5)
    config = dataclasses.replace(small().config, feed_forward=experts)
    model = Small(config, models.VisionTransformer)
    train = quick(lambda params, key: model.net.bind(params).training_logits(IMAGES, key=key))
    logits, balance = train(model.params, jax.random.key(0))
    np.testing.assert_allclose(logits, model.apply(model.params, IMAGES), atol=1e-6)
    assert 0.9 * 0.5 < balance < 3.1 * 0.5


@pytest.mark.full
@pytest.mark.parametrize("pooling", ["class_token", "mean"])
def test_another_image_size(pooling):
    """Only the table differs, by interpolation; the same size changes nothing."""
    model = small(pooling)
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
