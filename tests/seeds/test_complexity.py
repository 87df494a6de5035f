"""CHECKLIST C1 to C6, C9 and V3: the cost of layers from counted operations, chains of products and Jacobians.

XLA counts the body of a loop once. The products of the recurrent layer are therefore counted in its graph. Blockwise
attention loops, so the scores that it computes are counted by the `score` function that it receives.
"""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks, modules
from jaxformer.planning.graph import products
from tests.modules.small import built, normal, quick

REFERENCE = functools.partial(functional.attention, implementation="reference")


def recurrent(x, kernel, state=None):
    """Computes the package's recurrent layer of ``[L, E]``, whose states ``[L, D]`` have the kernel ``[1, D, D]``."""
    width = kernel.shape[1]
    biases = [jnp.zeros((1, width))] * 2
    weights = functional.RecurrentWeights(jnp.ones((x.shape[1], 1, width)), kernel.swapaxes(0, 1), *biases)
    state = None if state is None else functional.RecurrentState(state[None])
    return functional.recurrent(functional.rnn_cell, x[None], weights, state=state)[0][0]


def convolution(x, kernel, dilation=1):
    """Computes the package's causal convolution of ``[L, D]``."""
    return functional.convolution(x[None], kernel, dilation=dilation, causal=True)[0]


def attend(x, mask=None):
    """Computes self-attention of ``[L, D]`` without projections, as the document's table counts it."""
    lifted = x[None, :, None]
    return functional.attention(lifted, lifted, lifted, mask=mask, implementation="reference")[0, :, 0]


def attention(x, kernel):
    del kernel
    return attend(x)


LAYERS = {
    "convolution": convolution,
    "dilated": functools.partial(convolution, dilation=2),
    "attention": attention,
}


def flops(program):
    """Returns XLA's count: two operations for each multiply-add, the body of a loop once."""
    costs = program.cost_analysis()
    assert costs is not None
    return costs["flops"]


@functools.cache
def operations(name, length, width, taps=1):
    """Returns the multiply-adds of one layer; of the recurrent one, those of its states, with inputs of one feature."""
    if name == "recurrent":
        shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((length, 1), (1, width, width))]
        return products(recurrent, *shapes).flops / 2 - length * width
    x, kernel = (jax.ShapeDtypeStruct(shape, np.float32) for shape in ((length, width), (taps, width, width)))
    return flops(jax.jit(LAYERS[name]).lower(x, kernel)) / 2


def scores(length, mask):
    """Returns the number of scores that attention computes, block by block."""
    seen = []

    def score(logits):
        jax.debug.callback(lambda: seen.append(logits.size))
        return logits

    x = jnp.zeros((1, length, 1, 1))
    run = functools.partial(functional.attention, mask=mask, score=score, implementation="blockwise")
    quick(run)(x, x, x).block_until_ready()
    jax.effects_barrier()
    return sum(seen)


def products_in_a_row(function, *args):
    return products(function, *args).in_a_row


@functools.partial(quick, static_argnums=0)
def _moved(layer, x, moved):
    return jax.jvp(layer, (x,), (moved,))


def reached(layer, length):
    """Yields, after each layer ``layer(i)``, the rows that change with the first token (the Jacobian)."""
    x = normal(length, 4)
    moved = jnp.zeros_like(x).at[0].set(normal(4, seed=1))
    for i in range(length):
        x, moved = _moved(layer(i), x, moved)
        yield np.asarray(moved).any(-1)


def needed(layer, length):
    """Returns the smallest number of layers after which the last position depends on the first."""
    return next(n for n, rows in enumerate(reached(layer, length), 1) if rows[-1])


@pytest.mark.parametrize(
    ("name", "by_length", "by_width", "by_taps"),
    [("recurrent", 2, 4, 1), ("convolution", 2, 4, 2), ("dilated", 2, 4, 2), ("attention", 4, 2, 1)],
)
def test_c1_operations_a_layer(name, by_length, by_width, by_taps):
    """Table 17.2 and 000 9.7: the growth of L D^2, K L D^2, K L D^2 and L^2 D as L, D or K doubles.

    The tolerance covers kernels that reach over the padding, and the operations of the softmax. The L D^2 of the
    recurrent layer are those of its states; the product of the inputs, of all steps at once, is not in the table.
    """
    count = functools.partial(operations, name)
    start = count(32, 64, 2)
    assert count(64, 64, 2) / start == pytest.approx(by_length, rel=0.1)
    assert count(32, 128, 2) / start == pytest.approx(by_width, rel=0.1)
    assert count(32, 64, 4) / start == pytest.approx(by_taps, rel=0.1)


def test_c1_restricted_attention_is_linear():
    """r L D: the scores double with the length, and each further r of the window adds the same number of scores.

    Whole blocks are computed, so a window pays for its edges. Without a window it is L^2.
    """
    windows = [scores(4096, masks.window(r)) for r in (0, 512, 1024)]
    assert scores(8192, masks.window(512)) / windows[1] == pytest.approx(2, rel=0.1)
    assert (windows[2] - windows[1]) / (windows[1] - windows[0]) == pytest.approx(1, rel=0.15)
    assert windows[1] < 4096 * (512 + 512)
    assert scores(4096, None) == 4096**2


def test_c1_z15_sequential_operations():
    """Recurrence takes L steps, which is also its longest path. The others take 1 step at any length.

    Documents that count the steps between the ends say L - 1, others O(L). The "1" of attention is two products.
    """
    chain = lambda layer, length, taps=3: products_in_a_row(layer, normal(length, 4), normal(taps, 4, 4))
    assert [chain(recurrent, length, 1) for length in (8, 16)] == [8, 16]
    between = lambda first, x: recurrent(x, normal(1, 4, 4), first)[-1]  # a first state, seven tokens
    assert products_in_a_row(between, normal(4), normal(7, 4)) == 7
    restricted = lambda x, kernel: attend(x, masks.window(4))
    for layer, expected in ((convolution, 1), (LAYERS["dilated"], 1), (attention, 2), (restricted, 2)):
        assert [chain(layer, length) for length in (8, 16)] == [expected, expected]


@pytest.mark.parametrize(("length", "reach"), [(16, 3), pytest.param(32, 5, marks=pytest.mark.full)])
def test_c1_c5_v3_path_length(length, reach):
    """Layers between the ends: L / K for convolutions, log_K L with dilation K^i, L / r in a window, 1 for attention.

    Exactly: a kernel of K looks K - 1 positions back, which gives (L - 1) / (K - 1); with dilation, m layers span K^m
    positions; a window of r gives (L - 1) / r.
    """
    kernel = normal(reach, 4, 4)
    step = lambda i, dilation: functools.partial(convolution, kernel=kernel, dilation=dilation)
    assert needed(lambda i: step(i, 1), length) == math.ceil((length - 1) / (reach - 1))
    assert needed(lambda i: step(i, reach**i), length) == math.ceil(math.log(length, reach))
    window = functools.partial(attend, mask=masks.window(reach))
    assert needed(lambda i: window, length) == math.ceil((length - 1) / reach)
    assert needed(lambda i: attend, length) == 1


def test_c5_ten_thousand_positions():
    """L = 10,000, K = 3: log_3 L = 8.38, so nine dilated layers. Without dilation L / K is 3334; 5000 are needed."""
    kernel = normal(3, 4, 4)
    assert needed(lambda i: functools.partial(convolution, kernel=kernel, dilation=3**i), 10_000) == 9
    field = functools.partial(functional.receptive_field, 3)
    assert field([3**i for i in range(8)]) < 10_000 <= field([3**i for i in range(9)])
    assert field([1] * 4999) < 10_000 <= field([1] * 5000)


def test_v3_receptive_field():
    """Three layers of K = 3 see 7 positions, and 27 if dilated by 1, 3, 9: the rows that the first token changes."""
    rows_after_three = lambda layer: next(itertools.islice(reached(layer, 32), 2, None)).nonzero()[0].tolist()
    step = lambda dilation: functools.partial(convolution, kernel=normal(3, 4, 4), dilation=dilation)
    assert (
        rows_after_three(lambda i: step(1)) == list(range(functional.receptive_field(3, [1, 1, 1]))) == list(range(7))
    )
    assert rows_after_three(lambda i: step(3**i)) == list(range(functional.receptive_field(3, [1, 3, 9])))
    assert functional.receptive_field(3, [1, 3, 9]) == 27
    assert rows_after_three(lambda i: functools.partial(attend, mask=masks.window(2))) == list(range(7))


def test_c2_counted():
    """L = 100, D = 512, K = 3: 26,214,400, 78,643,200, and 5,120,000 scores' products, twice that with the mixing.

    The recurrent layer has the product of the inputs besides, here as large as that of the states.
    """
    assert operations("recurrent", 100, 512) == 26_214_400
    shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((100, 512), (1, 512, 512))]
    assert products(recurrent, *shapes).flops / 2 == 2 * 26_214_400
    assert operations("convolution", 100, 512, 3) == pytest.approx(78_643_200, rel=0.02)
    assert operations("attention", 100, 512) == pytest.approx(2 * 5_120_000, rel=0.02)


@pytest.mark.full
def test_c3_counted():
    """L = 10,000: 5.12e10 for the scores of attention, as many for the mixing; 7.86432e9 for the convolution.

    The ratio of attention's scores to recurrence is L / D; they are equal at L = D.
    """
    assert operations("attention", 10_000, 512) == pytest.approx(2 * 5.12e10, rel=0.02)
    assert operations("convolution", 10_000, 512, 3) == pytest.approx(7.86432e9, rel=0.02)
    for length in (32, 128):
        ratio = operations("attention", length, 128) / 2 / operations("recurrent", length, 128)
        assert ratio == pytest.approx(length / 128, rel=0.05)


def test_c4_counted():
    """A layer with its projections takes 4 L D^2 + 2 L^2 D = 115,097,600, more than the recurrent layer's 26 M."""
    net, params = built(lambda rngs: modules.SelfAttention(512, 8, rngs=rngs))
    x = jax.ShapeDtypeStruct((1, 100, 512), np.float32)
    assert flops(jax.jit(net.net.apply).lower(params, x)) / 2 == pytest.approx(115_097_600, rel=0.02)


def shapes(length):
    return [jax.ShapeDtypeStruct((1, length, 1, 16), np.float32)] * 3


def compiled(function, length):
    return jax.jit(function).lower(*shapes(length)).compile()


def test_c6_named_remedies():
    """From n = 1,000 to 10,000 attention grows x 100, linear attention x 10, blocks of a sparse layout x 10."""
    growth = lambda f: flops(compiled(f, 10_000)) / flops(compiled(f, 1_000))
    dense = functools.partial(functional.attention, implementation="reference")
    assert growth(dense) == pytest.approx(100, rel=0.02)
    assert growth(functional.linear_attention) == pytest.approx(10, rel=0.02)
    diagonal = lambda blocks: masks.block_sparse(np.eye(blocks, dtype=bool), 512)
    assert scores(5120, diagonal(10)) / scores(512, diagonal(1)) == pytest.approx(10, rel=0.02)


@pytest.mark.full
def test_c6_memory_of_the_scores():
    """10,000^2 scores of 4 bytes are 400 MB; blockwise memory grows with n, as in FlashAttention."""
    memory = lambda name, n: (
        compiled(functools.partial(functional.attention, implementation=name), n).memory_analysis().temp_size_in_bytes
    )
    assert memory("reference", 10_000) >= 4 * 10_000**2
    assert memory("reference", 10_000) / memory("reference", 1_000) == pytest.approx(100, rel=0.1)
    assert memory("blockwise", 10_000) < memory("reference", 10_000) / 50
    assert memory("blockwise", 10_000) / memory("blockwise", 1_000) < 12


def test_c9_an_encoder_works_in_parallel():
    """n = 1,000: a block is six dependent products deep for every n, the recurrent layer a thousand.

    Wall time depends on the machine; the depth of dependent products does not.
    """

    def block(rngs):
        attention = modules.SelfAttention(8, 2, attention=REFERENCE, rngs=rngs)
        feed_forward = modules.FeedForward(8, rngs=rngs)
        return modules.Block(attention, feed_forward, norm=lambda: modules.LayerNorm(8))

    net, params = built(block)
    chains = [products_in_a_row(net.net.apply, params, normal(1, length, 8)) for length in (10, 1_000)]
    assert chains == [6, 6]  # projections, scores, mixing, output, up, down
    assert products_in_a_row(recurrent, normal(1_000, 8), normal(1, 8, 8)) == 1_000
