"""Costs from the configuration alone, against the real parameters and the compiler's own count."""

import dataclasses
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from jaxformer import models, pure, targets
from jaxformer.models import costs
from jaxformer.modules import stack
from jaxformer.planning import graph
from tests.selection import first

CONFIG = models.EncoderDecoderConfig(
    400, 400, d_model=64, num_heads=4, d_ff=192, num_encoder_layers=1, num_decoder_layers=1, dropout=0.0
)

LANGUAGE_CONFIG = models.LanguageModelConfig(
    400, d_model=64, num_heads=4, d_ff=192, num_layers=1, activation="relu", dropout=0.0
)


@pytest.mark.parametrize("lengths", first([(2, 24, 40), (3, 48, 16)], (2, 24, 40)))
def test_flops_of_the_compiled_forward_pass(lengths):
    """One layer each: the compiler counts the body of a loop once. It also counts norms and softmax."""
    batch, source_length, target_length = lengths
    net = pure(models.EncoderDecoder, CONFIG)
    tokens = (jax.ShapeDtypeStruct((batch, n), jnp.int32) for n in lengths[1:])
    compiled = jax.jit(net.apply).lower(net.shapes, *tokens).compile()
    counted = compiled.cost_analysis()["flops"]
    model = costs.encoder_decoder_flops(CONFIG, batch, source_length, target_length)
    assert 1.0 <= counted / model < 1.08


@pytest.mark.parametrize(("batch", "length"), [(2, 40), pytest.param(3, 16, marks=pytest.mark.full)])
def test_flops_of_the_compiled_language_model(batch, length):
    net = pure(models.LanguageModel, LANGUAGE_CONFIG)
    compiled = jax.jit(net.apply).lower(net.shapes, jax.ShapeDtypeStruct((batch, length), jnp.int32)).compile()
    counted = compiled.cost_analysis()["flops"]
    assert 1.0 <= counted / costs.language_model_flops(LANGUAGE_CONFIG, batch, length) < 1.08


def test_flops_grow_as_they_should():
    """Linear in depth and batch, quadratic in length through attention alone."""
    flops = costs.encoder_decoder_flops
    deeper = dataclasses.replace(CONFIG, num_encoder_layers=3, num_decoder_layers=3)
    logits = 2 * 64 * 400 * 2 * 16
    assert flops(deeper, 2, 16, 16) - logits == 3 * (flops(CONFIG, 2, 16, 16) - logits)
    assert flops(CONFIG, 6, 16, 16) == 3 * flops(CONFIG, 2, 16, 16)
    longer, plain = flops(CONFIG, 1, 32, 32), flops(CONFIG, 1, 16, 16)
    assert longer - 2 * plain == 3 * 4 * 64 * (32**2 - 2 * 16**2)  # three attentions: two products of T S D each


@pytest.fixture
def looped(monkeypatch):
    """No loop over layers is unrolled, as on a mesh."""
    monkeypatch.setattr(stack, "UNROLLED", {})


def test_remat_costs_the_model_nothing():
    remat = dataclasses.replace(CONFIG, remat=True)
    assert costs.encoder_decoder_flops(remat, 2, 16, 16) == costs.encoder_decoder_flops(CONFIG, 2, 16, 16)
    language = dataclasses.replace(LANGUAGE_CONFIG, remat=True)
    assert costs.language_model_flops(language, 2, 16) == costs.language_model_flops(LANGUAGE_CONFIG, 2, 16)


def test_flops_of_a_language_model_grow_as_they_should():
    """Linear in depth and batch, quadratic in length through attention alone."""
    flops = costs.language_model_flops
    deeper = dataclasses.replace(LANGUAGE_CONFIG, num_layers=3)
    logits = 2 * 64 * 400 * 2 * 16
    assert flops(deeper, 2, 16) - logits == 3 * (flops(LANGUAGE_CONFIG, 2, 16) - logits)
    assert flops(LANGUAGE_CONFIG, 6, 16) == 3 * flops(LANGUAGE_CONFIG, 2, 16)
    longer = flops(LANGUAGE_CONFIG, 1, 32) - 2 * flops(LANGUAGE_CONFIG, 1, 16)
    assert longer == 4 * 64 * (32**2 - 2 * 16**2)  # one attention: two products of T S D


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_recomputed_operations(norm_position, looped):
    """Attention's two products; with remat all of each block, except a pre-norm block's last product."""
    config = dataclasses.replace(LANGUAGE_CONFIG, norm_position=norm_position)
    assert costs.language_model_recomputed_flops(config, 2, 16) == 4 * 64 * 2 * 16**2
    blocks = costs.language_model_flops(config, 2, 16) - 2 * 64 * 400 * 2 * 16
    last = 2 * 64 * 192 * 2 * 16 if norm_position == "pre" else 0
    remat = dataclasses.replace(config, remat=True)
    assert costs.language_model_recomputed_flops(remat, 2, 16) == blocks - last


@pytest.mark.parametrize(("num_layers", "times"), [(12, 0), (13, 13)])
def test_unrolled_layers_recompute_nothing(num_layers, times):
    """Each stack by itself: here an encoder beside a decoder of one layer."""
    gpu = SimpleNamespace(platform="gpu", device_kind="NVIDIA H200")
    again = 4 * 64 * 2 * 16**2
    with targets.compiling_for([gpu]):
        config = dataclasses.replace(CONFIG, num_encoder_layers=num_layers)
        assert costs.encoder_decoder_recomputed_flops(config, 2, 16, 16) == times * again
        language = dataclasses.replace(LANGUAGE_CONFIG, num_layers=num_layers)
        assert costs.language_model_recomputed_flops(language, 2, 16) == times * again


@pytest.mark.parametrize("remat", [False, True])
def test_a_window_costs_its_pairs(remat, looped):
    """Each of 16 tokens attends to 5; a window beyond the length saves nothing, and encoders have none."""
    products, windowed = 4 * 64 * 2 * 16, dataclasses.replace(LANGUAGE_CONFIG, attention_window=5, remat=remat)
    plain = dataclasses.replace(windowed, attention_window=None)
    for flops in (costs.language_model_flops, costs.language_model_recomputed_flops):
        assert flops(plain, 2, 16) - flops(windowed, 2, 16) == products * (16 - 5)
        assert flops(plain, 2, 4) == flops(windowed, 2, 4)
    pair, long = (dataclasses.replace(CONFIG, attention_window=window, remat=remat) for window in (5, 16))
    for flops in (costs.encoder_decoder_flops, costs.encoder_decoder_recomputed_flops):
        assert flops(long, 2, 24, 16) - flops(pair, 2, 24, 16) == products * (16 - 5)
        assert flops(long, 2, 24, 16) == flops(dataclasses.replace(pair, attention_window=None), 2, 24, 16)
    grid = models.GridConfig(image_size=(6, 6), widths=(4,), num_blocks=1)
    sizes = {"image": grid, "vocab_size": 9, "d_model": 64, "num_heads": 4, "num_layers": 1, "remat": remat}
    near, all_of_it = (models.TransformerCaptionerConfig(**sizes, attention_window=window) for window in (5, None))
    for flops in (costs.captioner_flops, costs.captioner_recomputed_flops):
        assert flops(all_of_it, 2, 16) - flops(near, 2, 16) == products * (16 - 5)


def counted(jaxpr):
    """The operations of all products in a program, loops included."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            total += 2 * equation.outvars[0].aval.size * math.prod(shape[dim] for dim in contracted)
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        inner = [getattr(value, "jaxpr", value) for value in jax.tree.leaves(list(equation.params.values()))]
        total += times * sum(counted(program) for program in inner if hasattr(program, "eqns"))
    return total


def test_encoder_flops_are_the_products_of_the_program():
    config = models.EncoderConfig(29, d_model=12, num_heads=3, head_dim=6, d_ff=20, num_layers=2, feed_forward="gated")
    net = pure(models.make_encoder, config)
    program = jax.make_jaxpr(net.apply)(net.shapes, jax.ShapeDtypeStruct((2, 7), jnp.int32))
    assert counted(program.jaxpr) == costs.encoder_flops(config, 2, 7)


@pytest.mark.parametrize("gated", first([False, True], True))
@pytest.mark.parametrize("remat", first([False, True], False))
def test_the_products_of_experts_are_recomputed(gated, remat, looped):
    """Also the last one: the gradient of the router needs the outputs of the experts."""
    experts = models.ExpertsConfig(num_experts=2, num_experts_per_token=2, capacity_factor=1.0, gated=gated)
    sizes = {"d_model": 8, "num_heads": 2, "d_ff": 12, "num_layers": 3, "dropout": 0.0, "remat": remat}
    config = models.LanguageModelConfig(9, **sizes, feed_forward="experts", experts=experts)
    net, tokens = pure(models.LanguageModel, config), jax.ShapeDtypeStruct((2, 4), jnp.int32)
    step = jax.grad(lambda params, row: net.bind(params).cross_entropy(row, row, key=jax.random.key(0))[0])
    program = jax.make_jaxpr(step)(net.shapes, tokens)
    router = (4 if remat else 3) * 3 * 2 * 8 * 8 * 2  # left out of the costs
    model = 3 * costs.language_model_flops(config, 2, 4) + costs.language_model_recomputed_flops(config, 2, 4)
    assert counted(program.jaxpr) == model + router


@pytest.mark.full
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("attention", ["none", "additive", "dot", "general", "concat"])
def test_recurrent_flops_are_the_products_of_the_program(attention, cell):
    options = {"num_encoder_layers": 2, "num_decoder_layers": 3, "tie_embeddings": "decoder"}
    options |= {"input_feeding": attention == "concat"} | (
        {"d_attention": 5} if attention in ("additive", "concat") else {}
    )
    config = models.Seq2SeqConfig(11, 13, cell=cell, attention=attention, d_model=8, d_hidden=6, **options)
    net, (batch, source, target) = pure(models.Seq2Seq, config), (2, 7, 4)
    tokens = jnp.zeros((batch, source), jnp.int32), jnp.zeros((batch, target), jnp.int32)
    program = jax.make_jaxpr(net.apply)(net.shapes, *tokens)
    assert costs.seq2seq_flops(config, batch, source, target) == counted(program.jaxpr)


@pytest.mark.parametrize("places", [5, 32])
def test_flops_of_a_compiled_masked_language_model(places):
    """Only the logits at predicted positions are computed and counted."""
    config = models.EncoderConfig(400, d_model=64, num_heads=4, d_ff=192, num_layers=1, dropout=0.0)
    net = pure(models.MaskedLanguageModel, config)
    tokens, chosen = (jax.ShapeDtypeStruct((4, n), jnp.int32) for n in (32, places))
    compiled = jax.jit(lambda p, x, y: net.apply(p, x, masked_positions=y)).lower(net.shapes, tokens, chosen).compile()
    model = costs.masked_language_model_flops(config, 4, 32, places)
    assert 1.0 <= compiled.cost_analysis()["flops"] / model < 1.08


def test_flops_of_a_compiled_classifier():
    config = models.ClassifierConfig(400, d_model=64, num_heads=4, d_ff=192, num_layers=1, dropout=0.0, num_classes=3)
    net = pure(models.Classifier, config)
    compiled = jax.jit(net.apply).lower(net.shapes, jax.ShapeDtypeStruct((4, 32), jnp.int32)).compile()
    assert 1.0 <= compiled.cost_analysis()["flops"] / costs.classifier_flops(config, 4, 32) < 1.08
    empty = models.ClassifierConfig(400, d_model=64, num_classes=3, num_layers=0, pooling="mean")
    assert costs.classifier_flops(empty, 4, 32) == 2 * 4 * 64 * 3
    assert costs.encoder_recomputed_flops(empty, 4, 32) == 0


@pytest.mark.parametrize("pooling", ["class_token", "mean"])
def test_flops_of_a_vision_transformer(pooling):
    sizes = {"d_model": 12, "num_heads": 3, "d_ff": 20, "num_layers": 2, "num_classes": 7, "pooling": pooling}
    config = models.VisionTransformerConfig(image_size=(8, 12), patch_size=4, **sizes)
    net = pure(models.VisionTransformer, config)
    found = graph.products(net.apply, net.shapes, jnp.zeros((5, 8, 12, 3)))
    assert costs.vision_transformer_flops(config, 5) == found.flops
    assert costs.num_patches(config) == 6


def fourth_channel(num_images, image_size, width):
    """The products of the zero channel that `functional.convolution` adds to RGB, which no configuration counts."""
    return 2 * 9 * num_images * math.prod(image_size) * width


@pytest.mark.parametrize("attention", ["none", "gain"])
@pytest.mark.parametrize("widths", [(4,), (4, 6, 6), (5, 5)])
def test_flops_of_a_residual_network(attention, widths):
    """An odd size is rounded up when it is halved."""
    options = {} if attention == "none" else {"attention_stage": len(widths), "d_attention": 3}
    options |= {"attention": attention, "num_classes": 7}
    config = models.ResidualNetworkConfig(image_size=(8, 11), widths=widths, num_blocks=2, **options)
    net = pure(models.ResidualNetwork, config)
    found = graph.products(net.apply, net.shapes, jnp.zeros((5, 8, 11, 3)))
    assert costs.residual_network_flops(config, 5) == found.flops - fourth_channel(5, (8, 11), widths[0])


@pytest.mark.parametrize("kind", ["recurrent", "transformer"])
def test_flops_of_a_captioner_are_the_products_of_the_program(kind, looped):
    """Hard attention takes no mean of the grid."""
    grid = models.GridConfig(image_size=(6, 11), widths=(4, 6), num_blocks=1)
    if kind == "recurrent":
        sizes = {"d_model": 8, "d_hidden": 6, "d_attention": 5, "num_layers": 2, "context_gate": True}
        config, model = models.RecurrentCaptionerConfig(image=grid, vocab_size=13, **sizes), models.RecurrentCaptioner
        hard = dataclasses.replace(config, attention="hard")
        mean = 2 * 3 * 4 * 18 * 6
        assert costs.captioner_flops(config, 3, 4) - costs.captioner_flops(hard, 3, 4) == mean
        assert costs.captioner_recomputed_flops(config, 3, 4) == 0
    else:
        sizes = {"d_model": 8, "num_heads": 2, "d_ff": 12, "num_layers": 1}
        config, model = (
            models.TransformerCaptionerConfig(image=grid, vocab_size=13, **sizes),
            models.TransformerCaptioner,
        )
        assert costs.captioner_recomputed_flops(config, 3, 4) == 4 * 8 * 3 * 4 * (4 + 18)
    net = pure(model, config)
    found = graph.products(net.apply, net.shapes, jnp.zeros((3, 6, 11, 3)), jnp.zeros((3, 4), jnp.int32))
    assert costs.captioner_flops(config, 3, 4) == found.flops - fourth_channel(3, (6, 11), 4)
