"""Optimizers from configuration."""

import dataclasses
import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer import models, pure, training
from jaxformer.models import choices
from jaxformer.training import optimizers
from tests.modules.small import quick


@pytest.mark.parametrize(("cooldown", "expected"), [(0.04, [1.0] * 10), (0.5, [1.0] * 6 + [0.8, 0.6, 0.4, 0.2])])
def test_cooldown_is_a_fraction_of_the_training(cooldown, expected):
    """A fraction that rounds to no step is one step, whose rate is that of the schedule."""
    config = training.AdamConfig(learning_rate=1.0, schedule=training.ConstantRate(), warmup_steps=0, cooldown=cooldown)
    rate = optimizers.make_schedule(config, steps=10)
    assert [float(rate(step)) for step in range(10)] == pytest.approx(expected)


def test_decay_spares_biases_and_norms():
    """By the ends of their names: cross-attention has two biases."""
    config = training.AdamConfig(weight_decay=0.5, learning_rate=1.0, warmup_steps=1, schedule=training.ConstantRate())
    optimizer = optimizers.make_optimizer(config, steps=10)
    params = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2), "scale": jnp.ones(2), "query_bias": jnp.ones(2)}
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)
    assert float(updates["kernel"][0, 0]) == pytest.approx(-0.5)
    assert not updates["bias"].any()
    assert not updates["scale"].any()
    assert not updates["query_bias"].any()


SIZES = {"d_model": 8, "num_heads": 2, "d_ff": 16}
ONE_LAYER = SIZES | {"num_encoder_layers": 1, "num_decoder_layers": 1, "tie_embeddings": "none"}
EVERY = {"attention_bias": True, "attention_sinks": True, "qk_norm": True, "output_bias": True, "embedding_norm": True}
GRID = models.GridConfig(image_size=(8, 8), widths=(4, 8), num_blocks=1)
NETWORKS = [
    *(
        pure(models.EncoderDecoder, models.EncoderDecoderConfig(12, 12, positions=positions, **ONE_LAYER, **EVERY))
        for positions in (choices.Learned(), choices.T5(), choices.RelativeKeys(), choices.TransformerXL())
    ),
    pure(models.LanguageModel, models.LanguageModelConfig(12, feed_forward=choices.Experts(), **SIZES)),
    pure(
        models.LanguageModel,
        models.LanguageModelConfig(12, feed_forward=choices.Gated(), norm=choices.RMSNorm(), **SIZES),
    ),
    pure(models.MaskedLanguageModel, models.EncoderConfig(12, num_token_types=2, **SIZES)),
    pure(models.Classifier, models.ClassifierConfig(12, num_classes=3, **SIZES)),
    pure(models.VisionTransformer, models.VisionTransformerConfig(num_classes=3, **SIZES)),
    pure(
        models.ResidualNetwork,
        models.ResidualNetworkConfig(widths=(4, 8), attention=choices.GainAttention(), num_classes=3),
    ),
    *(
        pure(models.Seq2Seq, models.Seq2SeqConfig(12, 12, attention=kind, tie_embeddings="none"))
        for kind in (choices.Additive(), choices.General(), None)
    ),
    pure(
        models.RecurrentCaptioner,
        models.RecurrentCaptionerConfig(vocab_size=12, image=GRID, attention=choices.HardAttention()),
    ),
    pure(models.RecurrentCaptioner, models.RecurrentCaptionerConfig(vocab_size=12, image=GRID, context_gate=True)),
    pure(models.TransformerCaptioner, models.TransformerCaptionerConfig(12, image=GRID, **SIZES)),
]


def test_decay_of_each_parameter_of_all_models():
    """Matrices, tables and the two vectors that are multiplied like them: the class vector and v of alignment."""
    names = {True: set(), False: set()}
    for net in NETWORKS:
        for path, decays in by_path(optimizers._decayed(net.shapes)).items():
            whole = path.endswith("/table") or "/positions/" in path
            names[decays].add("/".join(path.split("/")[-2:]) if whole else path.rpartition("/")[2])
    tables = {"tokens/table", "types/table", "positions/table"}
    kernels = {"kernel", "query", "key_value", "router", "up", "down", "input", "hidden", "positions/kernel"}
    assert names[True] == tables | kernels | {"class_vector", "v"}
    biases = {"bias", "query_bias", "key_value_bias", "input_bias", "hidden_bias", "output_bias", "bias/table"}
    others = {"sinks", "positions/content", "positions/position", "gain", "baseline"}
    assert names[False] == biases | {"scale"} | others


def test_a_moving_average_keeps_its_decay_under_clipping_and_any_rate():
    config = training.AdamConfig(clip_norm=0.1, weight_decay=0.5, learning_rate=1.0, warmup_steps=5)
    params = {"kernel": jnp.ones((2, 2)), "mean": jnp.float32(3.0)}
    plain = optimizers.make_optimizer(config, steps=10)
    optimizer = optimizers.averaging(plain, {"kernel": False, "mean": True}, decay=0.9)
    state, alone = optimizer.init(params), plain.init({"kernel": params["kernel"]})
    for seen in (8.0, -1.0):
        gradient = {"kernel": jnp.full((2, 2), 7.0), "mean": params["mean"] - seen}  # of (mean - seen) ** 2 / 2
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimizer.update(gradient, state, params)
            own, alone = plain.update({"kernel": gradient["kernel"]}, alone, {"kernel": params["kernel"]})
        assert float(params["mean"] + updates["mean"]) == pytest.approx(0.9 * float(params["mean"]) + 0.1 * seen)
        assert (updates["kernel"] == own["kernel"]).all()
        params = jax.tree.map(jnp.add, params, updates)


MUON = training.MuonConfig(learning_rate=1.0, warmup_steps=0, schedule=training.ConstantRate())


def update(optimizer, gradients, state, params):
    """As the training step does: the counters of optax are multiplied by floats."""
    with jax.numpy_dtype_promotion("standard"):
        return quick(optimizer.update)(gradients, state, params)[0]


def by_path(tree):
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): x
        for path, x in jax.tree_util.tree_leaves_with_path(tree)
    }


@functools.cache
def muon_updates():
    """The first updates of a small model, whose kernels have stacked layers and several heads, and their gradients."""
    config = models.EncoderDecoderConfig(
        20, 20, d_model=8, num_heads=2, d_ff=16, num_encoder_layers=2, num_decoder_layers=1
    )
    net = pure(models.EncoderDecoder, config)
    params, draw = quick(net.init)(jax.random.key(0)), np.random.default_rng(1).standard_normal
    gradients = jax.tree.map(lambda x: jnp.asarray(draw(x.shape), x.dtype), params)
    optimizer = training.make_optimizer(MUON, steps=10, axes=net.axes)
    return net, params, gradients, by_path(update(optimizer, gradients, optimizer.init(params), params))


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("encoder/stack/layers/attention/kernel", lambda x, layer: x[layer, :, :, 1].reshape(8, 8)),  # keys
        ("encoder/stack/layers/attention/output/kernel", lambda x, layer: x[layer].reshape(8, 8)),
        ("encoder/stack/layers/feed_forward/up/kernel", lambda x, layer: x[layer]),
        ("encoder/stack/layers/feed_forward/down/kernel", lambda x, layer: x[layer]),
        ("decoder/stack/layers/cross/query", lambda x, layer: x[0].reshape(8, 8)),
    ],
)
@pytest.mark.parametrize("layer", [0, 1])
def test_muon_moves_each_matrix_by_an_orthogonal_one(name, side, layer):
    """The singular vectors are those of the gradient, by SVD in float64, and all singular values are near one number.

    Five steps of Newton and Schulz bring them to within 0.7 and 1.2 (Jordan et al. 2024).
    """
    _, _, gradients, updates = muon_updates()
    gradient, moved = (np.float64(side(np.asarray(x), layer)) for x in (by_path(gradients)[name], updates[name]))
    left, _, right = np.linalg.svd(gradient, full_matrices=False)
    values = left.T @ -moved @ right.T / (0.2 * math.sqrt(max(gradient.shape)))
    np.testing.assert_allclose(values, np.diag(np.diag(values)), atol=0.02)
    assert np.all((np.diag(values) > 0.65) & (np.diag(values) < 1.25))


def test_muon_has_a_matrix_for_each_query_head_of_a_key_head_and_each_offset_of_a_convolution():
    """Two key heads with two query heads each, and a window of 3 x 1; all singular values are near one number."""
    axes = {"attention": ("model", "heads", "kv", "head_dim"), "convolution": (None, None, "model", "hidden")}
    draw = np.random.default_rng(1).standard_normal
    shapes = {"attention": (8, 2, 4, 4), "convolution": (3, 1, 8, 8)}
    gradients = {name: jnp.asarray(draw(shape), jnp.float32) for name, shape in shapes.items()}
    optimizer = training.make_optimizer(MUON, steps=10, axes=axes)
    moved = update(optimizer, gradients, optimizer.init(gradients), gradients)
    matrices = [np.asarray(moved["attention"])[:, :, part].reshape(8, 8) for part in range(4)]
    matrices += list(np.asarray(moved["convolution"])[:, 0])
    values = np.linalg.svd(np.stack(matrices) / (0.2 * math.sqrt(8)), compute_uv=False)
    assert np.all((values > 0.65) & (values < 1.25))


def test_muon_leaves_other_parameters_to_adam():
    _, params, gradients, updates = muon_updates()
    adam = training.make_optimizer(
        training.AdamConfig(learning_rate=1.0, warmup_steps=0, schedule=training.ConstantRate()), steps=10
    )
    expected = by_path(update(adam, gradients, adam.init(params), params))
    alike = {name for name in expected if np.allclose(updates[name], expected[name], rtol=1e-5, atol=0)}
    matrices = {name for name in expected if name.endswith(("kernel", "query", "key_value"))}
    assert alike == expected.keys() - matrices
    assert "decoder/embeddings/tokens/table" in alike


@pytest.mark.full
def test_muon_with_frozen_parameters():
    """Those masked have no momentum, and the others move as before."""
    net, params, gradients, updates = muon_updates()
    frozen = {part: jax.tree.map(lambda _, part=part: part == "encoder", params[part]) for part in params}
    optimizer = training.freeze(training.make_optimizer(MUON, steps=10, axes=net.axes), frozen)
    state = optimizer.init(params)
    moved = by_path(update(optimizer, gradients, state, params))
    for name, x in moved.items():
        expected = np.zeros(x.shape) if name.startswith("encoder") else updates[name]
        np.testing.assert_allclose(x, expected, rtol=1e-5)
    sizes = lambda tree: sum(x.size for x in jax.tree.leaves(tree) if x.ndim)
    assert sizes(state) < 2 * sizes(params["decoder"])


def test_a_state_of_flax_is_updated_as_a_dict_is():
    """In an ``nnx.State``, as ``nnx.Optimizer`` has, the path of an array ends in "value"."""
    config = models.LanguageModelConfig(12, num_layers=1, attention_sinks=True, **SIZES)
    net = pure(models.LanguageModel, config)
    params, draw = quick(net.init)(jax.random.key(0)), np.random.default_rng(1).standard_normal
    params = jax.tree.map(lambda x: x + 1, params)  # decay moves a bias that is not 0
    gradients = jax.tree.map(lambda x: jnp.asarray(draw(x.shape), x.dtype), params)
    optimizer = training.make_optimizer(dataclasses.replace(MUON, weight_decay=0.5), steps=10, axes=net.axes)
    expected = update(optimizer, gradients, optimizer.init(params), params)
    state, gradients = (nnx.state(net.bind(x), nnx.Param) for x in (params, gradients))
    moved = nnx.to_pure_dict(update(optimizer, gradients, optimizer.init(state), state))
    chex.assert_trees_all_equal(moved, expected)


def test_muon_needs_the_axes_of_each_parameter():
    """Otherwise Adam would update it."""
    optimizer = training.make_optimizer(MUON, steps=10, axes={"kernel": ("model", "hidden")})
    with pytest.raises(ValueError, match="axes do not have the parameter up/kernel; they have kernel"):
        optimizer.init({"up": {"kernel": jnp.ones((2, 2))}})
    with pytest.raises(ValueError, match=r"give axes=net\.axes"):
        training.make_optimizer(MUON, steps=10)
