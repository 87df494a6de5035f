"""CHECKLIST section C: the cost of layers and models, by graphs and shapes; `test_complexity` counts operations."""

import jax
import numpy as np
import pytest

from jaxformer import functional, models, modules, pure
from jaxformer.planning import graph
from tests.modules.small import count


def test_c4_projections_count_too():
    """4 L D^2 + 2 L^2 D = 115,097,600 multiply-adds at L = 100: a layer costs more than mixing alone.

    The graph of the layer has two operations for each multiply-add. The 26 M of the recurrent layer are fewer.
    """
    length, d_model = 100, 512
    multiply_adds = 4 * length * d_model**2 + 2 * length**2 * d_model
    assert multiply_adds == 115_097_600

    layer = pure(lambda _, rngs: modules.SelfAttention(d_model, 8, rngs=rngs), None)
    found = graph.products(layer.apply, layer.shapes, jax.ShapeDtypeStruct((1, length, d_model), np.float32))
    assert found.flops == 2 * multiply_adds
    assert multiply_adds > length * d_model**2


def test_c6_ten_times_as_long():
    """1,000 tokens make 10^6 weights, 10,000 tokens 10^8."""
    query = lambda n: jax.ShapeDtypeStruct((1, n, 1, 8), np.float32)
    scores = [jax.eval_shape(functional.attention_weights, query(n), query(n)).size for n in (1_000, 10_000)]
    assert scores == [10**6, 10**8]


@pytest.mark.parametrize(
    ("num_layers", "d_model", "num_heads", "millions", "head_dim"),
    [
        (12, 768, 12, 84.9, 64),  # BERT-Base
        (24, 1024, 16, 302.0, 64),  # BERT-Large
        (48, 1600, 25, 1475, 64),  # GPT-2; the table has "?" for its heads
        (72, 3072, 32, 8150, 96),  # Megatron-LM
        (78, 4256, 28, 16950, 152),  # Turing-NLG
        (96, 12288, 96, 173_900, 128),  # GPT-3
        (80, 16384, 128, 257_700, 128),  # Gopher, without its relative projection; 13 L d^2 gives its 280 B
    ],
)
def test_c7_twelve_l_d_squared(num_layers, d_model, num_heads, millions, head_dim):
    """12 L d^2, from the shapes of a real stack of blocks (its biases and norms are a few parts in a thousand)."""

    def make(rngs):
        attention = modules.SelfAttention(d_model, num_heads, rngs=rngs)
        return modules.Block(
            attention, modules.FeedForward(d_model, rngs=rngs), norm=lambda: modules.LayerNorm(d_model)
        )

    shapes = pure(lambda config, rngs: modules.Stack(make, num_layers, rngs=rngs), None).shapes
    assert shapes["layers"]["attention"]["kernel"].shape[-1] == head_dim
    exact = 12 * num_layers * d_model**2
    assert exact / 1e6 == pytest.approx(millions, rel=1e-3)
    assert count(shapes) / exact == pytest.approx(1, abs=2e-3)


@pytest.mark.parametrize(
    ("d_model", "d_ff", "stacks", "table", "total"), [(512, 2048, 44.0, 18.9, 63.0), (1024, 4096, 176.2, 37.9, 214.0)]
)
def test_c7_z17_the_transformer(d_model, d_ff, stacks, table, total):
    """ "Transformer-Base, 12 layers, 65M": 6 encoder and 6 decoder layers, 168 d^2 = 44.0 M, and a shared 37k table.

    12 L d^2 with L = 12 gives 37.7 M, without cross-attention. Large: 176.2 + 37.9 = 214.0 M; the table has 213 M.
    """
    config = models.EncoderDecoderConfig(37_000, 37_000, d_model=d_model, num_heads=d_model // 64, d_ff=d_ff)
    assert 168 * d_model**2 / 1e6 == pytest.approx(stacks, abs=0.06)
    assert 37_000 * d_model / 1e6 == pytest.approx(table, abs=0.06)
    counted = pure(models.EncoderDecoder, config).num_parameters
    assert counted / 1e6 == pytest.approx(total, rel=3e-3)
