"""Costs from the configuration alone, against the real parameters and the compiler's own count."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import pytest

from jaxformer import models, pure
from jaxformer.models import costs


def count(config):
    return sum(x.size for x in jax.tree.leaves(pure(models.EncoderDecoder, config).shapes))


CHOICES = list(itertools.product(("none", "decoder", "all"), ("post", "pre"), ("sinusoidal", "learned"), (True, False)))


@pytest.mark.parametrize(("tie", "norm_position", "positions", "bias"), CHOICES)
def test_parameters_are_counted_exactly(tie, norm_position, positions, bias):
    config = models.EncoderDecoderConfig(
        23 if tie == "all" else 29,
        23,
        d_model=12,
        num_heads=3,
        d_ff=20,
        num_encoder_layers=2,
        num_decoder_layers=3,
        tie_embeddings=tie,
        norm_position=norm_position,
        positions=positions,
        max_positions=31,
        attention_bias=bias,
    )
    assert costs.encoder_decoder_parameters(config) == count(config)


CONFIG = models.EncoderDecoderConfig(
    400, 400, d_model=64, num_heads=4, d_ff=192, num_encoder_layers=1, num_decoder_layers=1, dropout=0.0
)


@pytest.mark.parametrize("lengths", [(2, 24, 40), (3, 48, 16)])
def test_flops_of_the_compiled_forward_pass(lengths):
    """One layer each: the compiler counts the body of a loop once.  It also counts norms and softmax."""
    batch, source_length, target_length = lengths
    net = pure(models.EncoderDecoder, CONFIG)
    tokens = (jax.ShapeDtypeStruct((batch, n), jnp.int32) for n in lengths[1:])
    compiled = jax.jit(net.apply).lower(net.shapes, *tokens).compile()
    counted = compiled.cost_analysis()["flops"]
    model = costs.encoder_decoder_flops(CONFIG, batch, source_length, target_length)
    assert 1.0 <= counted / model < 1.08


def test_flops_grow_as_they_should():
    """Linear in depth and batch, quadratic in length through attention alone; training is three forward passes."""
    flops = costs.encoder_decoder_flops
    deeper = dataclasses.replace(CONFIG, num_encoder_layers=3, num_decoder_layers=3)
    logits = 2 * 64 * 400 * 2 * 16
    assert flops(deeper, 2, 16, 16) - logits == 3 * (flops(CONFIG, 2, 16, 16) - logits)
    assert flops(CONFIG, 6, 16, 16) == 3 * flops(CONFIG, 2, 16, 16)
    longer, plain = flops(CONFIG, 1, 32, 32), flops(CONFIG, 1, 16, 16)
    assert longer - 2 * plain == 3 * 4 * 64 * (32**2 - 2 * 16**2)  # three attentions: two products of T S D each
    assert costs.encoder_decoder_training_flops(CONFIG, 2, 16, 16) == 3 * flops(CONFIG, 2, 16, 16)


def test_remat_costs_the_model_nothing():
    remat = dataclasses.replace(CONFIG, remat=True)
    assert costs.encoder_decoder_flops(remat, 2, 16, 16) == costs.encoder_decoder_flops(CONFIG, 2, 16, 16)
