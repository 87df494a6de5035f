"""The counted operations of models, against closed forms and the gradients of real training steps."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from jaxformer import masks, models, pure, targets
from jaxformer.config import kind_of
from jaxformer.models import choices
from jaxformer.modules import stack
from jaxformer.planning import flops
from jaxformer.planning.graph import products
from tests.selection import first

SIZES = {"d_model": 64, "num_heads": 4, "d_ff": 192, "dropout": 0.0}
CONFIG = models.EncoderDecoderConfig(400, 400, **SIZES, num_encoder_layers=1, num_decoder_layers=1)
LANGUAGE_CONFIG = models.LanguageModelConfig(400, **SIZES, num_layers=1)


def traced(model, config, *shapes):
    """The graph of the logits, with those operations that are in no stack."""
    net = pure(model, config, attention=flops.attention)
    return flops.forward(net.apply, net.shapes, *(jax.ShapeDtypeStruct(shape, jnp.int32) for shape in shapes))


def counted(model, config, *shapes):
    """The operations of a forward pass, and those that a backward pass repeats."""
    graph = traced(model, config, *shapes)
    return flops.flops(graph), flops.repeated(graph)


@pytest.fixture
def looped(monkeypatch):
    """No loop over layers is unrolled, as on a mesh."""
    monkeypatch.setattr(stack, "UNROLLED", {})


@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 2, "head_dim": 24, "feed_forward": choices.Gated()}])
def test_an_encoder_decoder(options):
    """Projections 4 D (N + K) H, feed-forward network 2 D F for each matrix, attention 4 S N H, logits 2 D V."""
    config = dataclasses.replace(CONFIG, num_encoder_layers=2, num_decoder_layers=3, **options)
    heads, kv_heads, dim = 4, options.get("num_kv_heads", 4), options.get("head_dim", 16)
    queries, keys, matrices = heads * dim, kv_heads * dim, 3 if options else 2
    block = lambda length: 4 * 64 * (queries + keys) + 2 * matrices * 64 * 192 + 4 * length * queries
    source, target = 24, 16
    cross = target * 4 * queries * (64 + source) + source * 4 * 64 * keys
    expected = 2 * source * block(source) + 3 * (target * block(target) + cross) + target * 2 * 64 * 400
    assert counted(models.EncoderDecoder, config, (5, source), (5, target))[0] == 5 * expected


@pytest.mark.parametrize("remat", first([False, True], True))
def test_a_window_counts_its_pairs(remat, looped):
    """Each of 16 tokens attends to 5; a window beyond the length saves nothing, and encoders have none."""
    products, windowed = 4 * 64 * 2 * 16, dataclasses.replace(LANGUAGE_CONFIG, attention_window=5, remat=remat)
    plain = dataclasses.replace(windowed, attention_window=None)
    block = 2 * 16 * (8 * 64**2 + 4 * 64 * 192) + products * 5
    last = 2 * 64 * 192 * 2 * 16
    found = counted(models.LanguageModel, windowed, (2, 16))
    assert found == (block + 2 * 64 * 400 * 2 * 16, block - last if remat else products * 5)
    whole = counted(models.LanguageModel, plain, (2, 16))
    assert [a - b for a, b in zip(whole, found, strict=True)] == [products * (16 - 5)] * 2
    assert counted(models.LanguageModel, plain, (2, 4)) == counted(models.LanguageModel, windowed, (2, 4))
    pairs = [dataclasses.replace(CONFIG, attention_window=window, remat=remat) for window in (5, 16, None)]
    near, far, everything = (counted(models.EncoderDecoder, config, (2, 24), (2, 16)) for config in pairs)
    assert far == everything
    assert [a - b for a, b in zip(far, near, strict=True)] == [products * (16 - 5)] * 2


def test_the_keys_of_a_mask():
    """Padding and causality count in full, sparse blocks by their widest row; no key leaves no product."""
    x = jnp.ones((2, 12, 4, 8))
    keys = lambda mask: flops.flops(flops.forward(flops.attention, x, x, x, mask=mask)) / (2 * 2 * 2 * 12 * 4 * 8)
    assert keys(None) == keys(masks.causal()) == keys(masks.padding(jnp.ones((2, 12), bool))) == 12
    assert keys(jnp.eye(12, dtype=bool)) == 12
    assert keys(masks.window(2, 1)) == keys(masks.window(2, 1) & masks.lengths([3, 4])) == 4
    assert keys(masks.block_sparse([[True, False, False], [True, True, False], [False, False, True]], 4)) == 8
    assert keys(masks.causal(-12)) == 0


@pytest.mark.parametrize("gated", first([False, True], True))
@pytest.mark.parametrize("remat", first([False, True], False))
def test_experts(gated, remat, looped):
    """A backward pass repeats all their products: the gradient of the router needs the outputs of the experts."""
    experts = choices.Experts(num_experts=4, num_experts_per_token=2, gated=gated)
    sizes = {"d_model": 8, "num_heads": 2, "d_ff": 12, "num_layers": 3, "dropout": 0.0, "remat": remat}
    config = models.LanguageModelConfig(9, **sizes, feed_forward=experts)
    tokens, pairs, networks = 2 * 4, 4 * 4 * 8, 2 * (3 if gated else 2) * 2 * 8 * 12
    block = tokens * (8 * 8**2 + 2 * 8 * 4 + pairs + networks)
    again = block if remat else tokens * (pairs + networks)
    assert counted(models.LanguageModel, config, (2, 4)) == (3 * block + tokens * 2 * 8 * 9, 3 * again)


@pytest.mark.parametrize("norm_position", first(["pre", "post"], "pre"))
@pytest.mark.parametrize("remat", [False, True])
def test_a_gradient_has_these_products(norm_position, remat, looped):
    """A training step has forward, backward and repeated products, and no others."""
    config = dataclasses.replace(LANGUAGE_CONFIG, norm_position=norm_position, remat=remat, num_layers=2)
    net = pure(models.LanguageModel, config)
    loss = lambda params, row: net.bind(params).loss(row, labels=row, key=jax.random.key(0))[0]
    forward, repeated = counted(models.LanguageModel, config, (2, 16))
    step = products(jax.grad(loss), net.shapes, jax.ShapeDtypeStruct((2, 16), jnp.int32))
    assert step.flops == 3 * forward + repeated


@pytest.mark.parametrize(("num_layers", "times"), [(12, 0), (13, 13)])
def test_unrolled_layers_recompute_nothing(num_layers, times):
    """Each stack by itself: here an encoder beside a decoder of one layer."""
    gpu = SimpleNamespace(platform="gpu", device_kind="NVIDIA H200")
    config = dataclasses.replace(CONFIG, num_encoder_layers=num_layers)
    graph = traced(models.EncoderDecoder, config, (2, 16), (2, 16))
    with targets.compiling_for([gpu]):
        assert flops.repeated(graph) == times * 4 * 64 * 2 * 16**2


@pytest.mark.parametrize(
    "positions", [choices.RelativeKeys(), choices.TransformerXL(), choices.T5(), choices.Rotary()], ids=kind_of
)
def test_positions_are_left_out(positions):
    plain = counted(models.LanguageModel, LANGUAGE_CONFIG, (2, 16))
    placed = dataclasses.replace(LANGUAGE_CONFIG, positions=positions)
    assert counted(models.LanguageModel, placed, (2, 16)) == plain


@pytest.mark.parametrize("cell", first(["rnn", "gru", "lstm"], "gru"))
def test_a_recurrent_model(cell):
    """The matrices of cells, of additive attention, and of outputs; a bidirectional encoder halves its states."""
    sizes = {"d_model": 8, "d_hidden": 6, "num_encoder_layers": 1, "num_decoder_layers": 1}
    sizes |= {"attention": choices.Additive(d_attention=5)}
    net = pure(models.Seq2Seq, models.Seq2SeqConfig(11, 13, cell=cell, tie_embeddings="decoder", **sizes))
    tokens = [jax.ShapeDtypeStruct((2, length), jnp.int32) for length in (7, 4)]
    gates, vectors = {"rnn": (1, 1), "gru": (3, 1), "lstm": (4, 2)}[cell]
    source = 2 * 2 * gates * 3 * (8 + 3) + 2 * 6 * 5
    target = 2 * gates * 6 * (8 + 6 + 6) + 2 * 6 * 5 + 2 * 8 * (2 * 6 + 13) + 7 * 2 * (5 + 6)
    expected = 2 * (7 * source + 4 * target + 2 * 6**2 * vectors)
    graph = flops.forward(net.apply, net.shapes, *tokens)
    assert (flops.flops(graph), flops.repeated(graph)) == (expected, 0)


def test_images():
    """The channel of zeros that a convolution adds to RGB is left out; a patch is a product."""
    residual = models.ResidualNetworkConfig(image_size=(8, 11), widths=(4, 6), num_blocks=1, num_classes=7)
    net, images = pure(models.ResidualNetwork, residual), jax.ShapeDtypeStruct((5, 8, 11, 3), jnp.float32)
    stages = 9 * 88 * (3 * 4 + 2 * 4 * 4) + 24 * 6 * (9 * 4 + 4 + 9 * 6)
    assert flops.flops(flops.forward(net.apply, net.shapes, images)) == 2 * 5 * (stages + 6 * 7)
    config = models.VisionTransformerConfig(image_size=(8, 12), patch_size=4, **SIZES, num_layers=1, num_classes=7)
    net, images = pure(models.VisionTransformer, config), jax.ShapeDtypeStruct((5, 8, 12, 3), jnp.float32)
    block = 7 * (8 * 64**2 + 4 * 64 * 192 + 4 * 7 * 64)
    expected = 6 * 2 * 48 * 64 + block + 2 * 64 * 7
    assert flops.flops(flops.forward(net.apply, net.shapes, images)) == 5 * expected
