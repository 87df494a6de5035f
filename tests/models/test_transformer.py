"""Parts that all Transformers share: checked settings, losses with a bias, experts, embeddings, first parameters."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, models, pure
from jaxformer.config import kind_of
from jaxformer.models import choices
from tests.models.small import (
    LANGUAGE_SIZE,
    SIZE,
    SOURCE,
    SOURCE_VALID,
    SOURCES,
    TARGET,
    TARGETS,
    Small,
    V,
)
from tests.modules.small import int32, quick
from tests.selection import first


def language_model(**options):
    return Small(models.LanguageModelConfig(V, **LANGUAGE_SIZE | options), models.LanguageModel)


@pytest.mark.parametrize("kind", [models.LanguageModel, models.EncoderDecoder])
@pytest.mark.full
def test_experts_are_balanced_in_training(kind):
    """The loss in training includes the balancing losses of all layers; padding takes no place in an expert."""
    experts = choices.Experts(num_experts=3, num_experts_per_token=2, load_balancing_weight=0.5, capacity_factor=0.6)
    options = {"feed_forward": experts, "dropout": 0.0}
    if kind is models.LanguageModel:
        small, inputs = language_model(**options), (TARGETS,)
    else:
        small, inputs = Small(models.EncoderDecoderConfig(V, V, **SIZE | options), kind), (SOURCES, TARGETS)
    loss = lambda **key: small.call(kind.loss, small.params, *inputs, labels=TARGET, **key)
    (plain, count), (training, _) = loss(), loss(key=jax.random.key(0))
    stacks = 1 if kind is models.LanguageModel else 2
    unlimited = dataclasses.replace(experts, capacity_factor=None)
    free = Small(dataclasses.replace(small.config, feed_forward=unlimited), kind)
    free = free.call(kind.loss, small.params, *inputs, labels=TARGET, key=jax.random.key(0))[0]
    assert 0.9 * stacks * 0.5 * count < free - plain < 3.1 * stacks * 0.5 * count
    assert training != free  # some experts are full
    other = (functional.Tokens(jnp.where(x.valid, x.ids, 7), x.valid) for x in inputs)
    changed = small.call(kind.loss, small.params, *other, labels=TARGET, key=jax.random.key(0))[0]
    assert changed == training


@pytest.mark.full
def test_embeddings_have_types_and_a_norm():
    """Type 0 is the default; the norm acts on the sum."""
    config = models.EncoderConfig(V, d_model=8, num_heads=2, num_layers=1, num_token_types=2, embedding_norm=True)
    small = Small(config, models.make_encoder)
    run = quick(lambda params, tokens: small.net.bind(params).embeddings(tokens))
    embed = lambda types=None: run(small.params, functional.Tokens(SOURCE, types=types))
    params = small.params["embeddings"]
    total = params["tokens"]["table"][SOURCE] * 8**0.5 + functional.sinusoidal(jnp.arange(6), dim=8)[None]
    for types in (jnp.zeros_like(SOURCE), jnp.ones_like(SOURCE)):
        expected = functional.layer_norm(total + params["types"]["table"][types], **params["norm"])
        np.testing.assert_allclose(embed(types=types), expected, atol=1e-5)
    np.testing.assert_array_equal(embed(), embed(types=jnp.zeros_like(SOURCE)))


def test_normalized_positions_end_at_the_last_real_token():
    """An encoder may use t / (N - 1): N is the number of real tokens, so padding changes nothing."""
    config = models.EncoderConfig(
        V, d_model=8, num_heads=2, num_layers=1, positions=choices.Normalized(), embedding_scale=1.0
    )
    small = Small(config, models.make_encoder)
    embed = quick(lambda params: small.net.bind(params).embeddings(SOURCES))
    found = embed(small.params)
    added = np.asarray(found - small.params["embeddings"]["tokens"]["table"][SOURCE])
    np.testing.assert_allclose(added[0, :, 0], np.arange(6) / 5, atol=1e-6)
    np.testing.assert_allclose(added[1, :4, 3], np.arange(4) / 3, atol=1e-6)
    padded = small.apply(small.params, functional.Tokens(SOURCE[1:], SOURCE_VALID[1:]))[0].states[0, :4]
    np.testing.assert_allclose(padded, small.apply(small.params, SOURCE[1:, :4])[0].states[0], atol=1e-5)


@pytest.mark.parametrize("make", first([models.make_encoder, models.make_decoder], models.make_encoder))
def test_normalized_positions_end_at_the_last_token_of_each_packed_sequence(make):
    """N was the number of tokens in the row."""
    shape = {"d_model": 2, "num_heads": 1, "d_ff": 2, "positions": choices.Normalized()}
    config = models.EncoderConfig(V, num_layers=0, **shape)
    if make is models.make_decoder:
        config = models.DecoderConfig(V, num_layers=1, causal=False, **shape)
    small = Small(config, make)
    packed = {"positions": int32([[0, 1, 0, 1, 2, 0]]), "segments": int32([[1, 1, 2, 2, 2, 0]])}
    row, valid = int32([[3, 4, 5, 6, 7, 0]]), jax.device_put(np.array([[True] * 5 + [False]]))
    result = lambda tokens: small.apply(small.params, tokens)
    states = result if make is models.make_decoder else lambda tokens: result(tokens)[0].states
    together = states(functional.Tokens(row, valid, **packed))
    np.testing.assert_allclose(together[:, :2], states(row[:, :2]), atol=1e-5)
    np.testing.assert_allclose(together[:, 2:5], states(row[:, 2:5]), atol=1e-5)


@pytest.mark.parametrize(
    "positions",
    [choices.T5(), choices.Rotary(), choices.Alibi(), choices.RelativeKeys(), choices.TransformerXL()],
    ids=kind_of,
)
def test_positions_in_attention_need_layers(positions):
    config = models.ClassifierConfig(V, num_layers=0, num_classes=2, pooling="mean", positions=positions)
    with pytest.raises(ValueError, match=f"^{kind_of(positions)} positions .* have no effect without layers"):
        pure(models.Classifier, config).shapes
    for without in (None, choices.Learned(), choices.Sinusoidal(), choices.Raw()):
        pure(models.make_encoder, models.EncoderConfig(V, num_layers=0, positions=without)).shapes


def kernels(norm_position, **options):
    config = models.EncoderDecoderConfig(V, V, **SIZE | {"d_model": 64, "norm_position": norm_position} | options)
    net = pure(models.EncoderDecoder, config)
    layers = quick(lambda key: net.init(key)["encoder"]["stack"]["layers"])(jax.random.key(0))
    kernel = layers["attention"]["kernel"]
    output, down = layers["attention"]["output"]["kernel"], layers["feed_forward"]["down"]["kernel"]
    kernel = np.asarray(kernel)
    return [np.abs(x).max() for x in (kernel[..., 0, :], kernel[..., 2, :], np.asarray(output), np.asarray(down))]


def test_initial_kernels():
    """Half of Xavier's for queries, keys and values; outputs by depth under post-norm; fairseq's; those of DeepNet."""
    xavier = np.array(kernels("pre", initialization="xavier"))
    np.testing.assert_allclose(kernels("pre") / xavier, [0.5, 0.5, 1, 1], rtol=1e-5)
    np.testing.assert_allclose(kernels("post") / xavier, [0.5, 0.5, 0.5, 0.5], rtol=1e-5)  # (2 * 2) ** -0.5
    fairseq = kernels("post", initialization="fairseq")
    np.testing.assert_allclose(fairseq / xavier, [0.5**0.5, 0.5**0.5, 1, 1], rtol=1e-5)
    beta = functional.deep_norm_gains(2, 2)[0].beta
    np.testing.assert_allclose(kernels("deep") / xavier, [1, beta, beta, beta], rtol=1e-5)


@pytest.mark.parametrize("scale", first([None, 1.0, 4.0], None))
@pytest.mark.parametrize(
    "config",
    [
        models.EncoderDecoderConfig(500, 500, positions=choices.Learned()),
        models.LanguageModelConfig(500),
        models.EncoderConfig(500, positions=choices.Learned()),
    ],
    ids=lambda c: type(c).__name__,
)
def test_learned_positions_begin_as_large_as_tokens(config, scale):
    """Smaller ones would be hidden by the tokens for most of a training."""
    config = dataclasses.replace(config, d_model=32, num_heads=2, embedding_scale=scale)
    kind = {"EncoderDecoderConfig": models.EncoderDecoder, "LanguageModelConfig": models.LanguageModel}
    params = pure(kind.get(type(config).__name__, models.MaskedLanguageModel), config).init(jax.random.key(0))
    tables = [np.asarray(x) for path, x in jax.tree_util.tree_leaves_with_path(params) if "table" in str(path[-1])]
    tokens, positions = ([x.std() for x in tables if len(x) == size] for size in (500, config.max_positions))
    scale = 32**0.5 if scale is None else scale
    assert positions
    np.testing.assert_allclose(positions, [scale * tokens[0]] * len(positions), rtol=0.05)


def test_parameters_are_float32_under_x64():
    """All of them, as the kernels; biases and norms were float64, and so was the gradient's norm."""
    everything = {"attention_bias": True, "output_bias": True, "qk_norm": True, "attention_sinks": True}
    nets = [
        pure(
            models.EncoderDecoder,
            models.EncoderDecoderConfig(V, V, norm=choices.RMSNorm(), **everything, **SIZE),
        ),
        pure(
            models.LanguageModel,
            models.LanguageModelConfig(V, positions=choices.TransformerXL(), **LANGUAGE_SIZE),
        ),
        pure(models.MaskedLanguageModel, models.EncoderConfig(V, **LANGUAGE_SIZE)),
        pure(models.ResidualNetwork, models.ResidualNetworkConfig(num_classes=2)),
        pure(models.Seq2Seq, models.Seq2SeqConfig(V, V)),
        pure(
            models.RecurrentCaptioner, models.RecurrentCaptionerConfig(vocab_size=V, attention=choices.HardAttention())
        ),
    ]
    with jax.enable_x64(True):
        for net in nets:
            shapes = jax.eval_shape(net.init, jax.random.key(0))  # not `net.shapes`, which is cached
            assert {x.dtype for x in jax.tree.leaves(shapes)} == {jnp.dtype("float32")}
