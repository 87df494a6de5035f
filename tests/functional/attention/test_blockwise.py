"""Blockwise attention keeps the contract, in blocks far smaller than the sequence."""

import dataclasses
import functools
import time
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks, targets
from jaxformer.conformance import oracle, trials
from jaxformer.functional.attention import blockwise, reference
from jaxformer.functional.attention.base import make_request
from jaxformer.functional.attention.blockwise import attention
from tests.contracts import numpy_dropout
from tests.contracts.attention import AttentionContract, arrays, bias, coin
from tests.contracts.biases import BiasContract
from tests.contracts.jaxprs import equations
from tests.modules.small import int32, normal, quick
from tests.selection import first

SECOND = {"second derivatives": "reverse over reverse: raises .*"}


@pytest.mark.full
class TestBlockwise(AttentionContract):
    implementation = "blockwise"
    partly = SECOND


class InSmallBlocks:
    """Blocks of two by three: every case has full, partial and skipped blocks."""

    implementation = "blockwise"
    partly = SECOND

    @classmethod
    def attend(cls, query, key, value, **options):
        return attention(make_request(query, key, value, **options), query_block=2, key_block=3)


@pytest.mark.full
class TestSmallBlocks(InSmallBlocks, AttentionContract):
    """Every property, in blocks."""


@pytest.mark.full
class TestBiasesInSmallBlocks(InSmallBlocks, BiasContract):
    """The pairs of `test_product` also compare each bias in blocks with NumPy."""


CUT = (
    *("mask shapes", "bias shapes", "empty rows", "gradients", "grouped heads", "bias gradient", "dropout"),
    *("empty rows, gradients", "hidden NaN, gradients"),
)


@pytest.fixture(params=first([1, 2, 4], 2), ids=lambda heads: f"{heads} at a time")
def parts(request, monkeypatch):
    """A class for a single CPU device that computes this many heads at a time.

    The class is new for each test because compiled programs are cached by class.
    """
    monkeypatch.setattr(targets, "devices", lambda: jax.devices()[:1])
    monkeypatch.setattr(blockwise, "HEADS", request.param)
    return type("Parts", (TestSmallBlocks,), {})()


def part(query, key, value, *_, **options):
    return blockwise.make_tiling(make_request(query, key, value, **options), (2, 3), unpadded=False).part


class TestParts:
    """A few rows of the batch and key heads at a time: each part uses its own mask, bias and dropout."""

    def test_sizes(self, monkeypatch):
        """A part has as many key heads as `HEADS` query heads allow, at least one, and more rows once all heads fit."""
        monkeypatch.setattr(blockwise, "HEADS", 4)
        inputs = lambda batch, heads, key_heads: [normal(batch, 3, n, 4) for n in (heads, key_heads, key_heads)]
        assert part(*inputs(6, 8, 8)) == (6, 8)  # eight devices
        monkeypatch.setattr(targets, "devices", lambda: jax.devices()[:1])
        assert [part(*inputs(6, 8, k)) for k in (8, 4, 2, 1)] == [(1, 4), (1, 2), (1, 1), (1, 1)]
        assert [part(*inputs(6, n, n)) for n in (6, 4, 2, 1)] == [(1, 3), (1, 4), (2, 2), (3, 1)]
        assert part(*inputs(6, 8, 8), bias=functional.alibi(8)) == (6, 8)
        assert part(*inputs(6, 8, 8), bias=normal(6, 8, 3, 3)) == (1, 4)

    @pytest.mark.parametrize("name", first(CUT, "bias gradient"))
    def test_has_property(self, parts, name):
        """Biases and masks of each broadcast shape, empty rows and unseen keys are those of its own rows and heads."""
        request = trials.draw(trials.Sizes())
        assert part(request.query, request.key, request.value) != (2, 4)
        parts.check_property(name)

    @pytest.mark.full
    @pytest.mark.parametrize("shape", [(4, 2, 5, 7), (4, 1, 1, 7), (1, 2, 5, 1), (1, 1, 5, 7)], ids=str)
    def test_more_rows(self, parts, shape):
        """Four rows of two heads; two rows at a time if four heads are computed together."""
        inputs = arrays(2, 2, batch=4)
        dropout, mask, array = functional.Dropout(0.3, jax.random.key(2)), coin(4, 2, 5, 7), bias(*shape)
        options = {"mask": masks.dense(mask), "bias": array, "dropout": dropout}
        assert part(*inputs, **options) == {1: (1, 1), 2: (1, 2), 4: (2, 2)}[blockwise.HEADS]
        kept = numpy_dropout.kept(jax.random.key_data(dropout.key), 0.3, (4, 2, 5, 7))
        theirs = {"allowed": mask, "bias": array, "rate": 0.3, "kept": kept}
        output, result = parts.gradients(*inputs, **options)
        np.testing.assert_allclose(output, oracle.attention(*inputs[:3], **theirs)[0], atol=3e-6)
        *expected, d_bias = oracle.gradients(*inputs, **theirs)
        expected.append(d_bias.sum(tuple(dim for dim, size in enumerate(shape) if size == 1), keepdims=True))
        chex.assert_trees_all_close(result, tuple(expected), rtol=0, atol=2e-5)

    def test_drops_the_same_weights(self, parts):
        """The dropped weights are the same to the bit; values that are unit vectors show them."""
        query, key, _, _ = arrays()
        eye = np.broadcast_to(np.eye(7, dtype=np.float32)[None, :, None], (2, 7, 2, 7))
        dropout = functional.Dropout(0.4, jax.random.key(3))
        plain = functools.partial(functional.attention, implementation="reference")
        dropped = [
            np.asarray(quick(functools.partial(attend, dropout=dropout))(query, key, eye)) == 0
            for attend in (parts.attend, plain)
        ]
        np.testing.assert_array_equal(*dropped)
        assert 0.3 < dropped[0].mean() < 0.5

    @pytest.mark.full
    def test_masked_weights_are_exactly_zero(self, parts):
        """And so are masked pairs."""
        parts.check_c_masked_weights_are_exactly_zero(jnp.float32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Counting(masks.Mask):
    """A mask that reports the first query and key of each tile that is computed at run time."""

    mask: masks.Mask
    tell: Callable = dataclasses.field(metadata={"static": True})

    def tile(self, query_index, key_index):
        jax.debug.callback(lambda *first: self.tell(tuple(map(int, first))), query_index[0], key_index[0])
        return self.mask.tile(query_index, key_index)

    def key_range(self, query_start, query_stop):
        return self.mask.key_range(query_start, query_stop)

    def live_ranges(self, query_start, query_stop):
        return self.mask.live_ranges(query_start, query_stop)


def visited(mask, length, *, batch=1, gradient=False, sinks=None):
    """Returns the tiles that are visited, in blocks of eight, by their first query and key."""
    tiles = []
    query = jnp.ones((batch, length, 1, 4))

    def call(query, mask):
        request = make_request(query, query, query, mask=Counting(mask, tiles.append), sinks=sinks)
        return attention(request, query_block=8, key_block=8)

    function = jax.grad(lambda *inputs: call(*inputs).sum()) if gradient else call
    jax.block_until_ready(jax.jit(function)(query, mask))
    jax.effects_barrier()
    return [(query // 8, key // 8) for query, key in tiles]


def test_window_visits_only_its_blocks():
    """Restricted attention costs O(T W): a block of queries visits the same few key blocks at every length."""
    # The block itself and the one before; the first has none.
    assert [len(visited(masks.window(8), length)) for length in (64, 256)] == [2 * 8 - 1, 2 * 32 - 1]
    assert len(visited(masks.window(8), 64, sinks=jnp.zeros(1))) == 2 * 8 - 1


full = functools.partial(pytest.param, marks=pytest.mark.full)
SENTENCES = np.repeat([0, 1, 2, 3, 4], [8, 16, 12, 20, 8])[None]  # the last but one begins within a block


@pytest.mark.full
@pytest.mark.parametrize("gradient", first([False, True], True), ids=["forward", "gradient"])
@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (masks.lengths([20]), [(i, j) for i in range(8) for j in range(3)]),
        full(masks.padding(np.arange(64)[None] // 24 == 1), [(i, j) for i in range(8) for j in (3, 4, 5)]),
        full(masks.lengths([0]), []),
        (masks.lengths([9]) & masks.causal(), [(0, 0)] + [(i, j) for i in range(1, 8) for j in range(2)]),
        full(masks.lengths([9]) | masks.window(0), [(i, j) for i in range(8) for j in range(max(2, i + 1))]),
        full(masks.causal(jnp.int32(-8)), [(i, j) for i in range(8) for j in range(i)]),
        (
            masks.segments(SENTENCES),
            [(0, 0), (1, 1), (1, 2), (2, 1), (2, 2), (3, 3), (3, 4)]
            + [(4, j) for j in (3, 4, 5, 6)]
            + [(i, j) for i in (5, 6) for j in (4, 5, 6)]
            + [(7, 7)],
        ),
        full(~masks.lengths([20]), [(i, j) for i in range(8) for j in range(8)]),
    ],
    ids=["lengths", "padding", "nothing", "causal", "prefix", "offset", "packed", "not"],
)
def test_blocks_that_data_rule_out_are_not_visited(mask, expected, gradient):
    """No tile of padding or of two different sentences is visited, forward or backward."""
    assert sorted(visited(mask, 64, gradient=gradient)) == sorted((1 + gradient) * expected)


def test_a_batch_visits_the_blocks_of_all_its_rows():
    """Rows of a part share a loop, whose bounds hold the ranges of all its non-empty rows."""
    first_and_last = [(i, j) for i in range(8) for j in range(1, 5)]
    real = np.zeros((3, 64), bool)
    real[0, 10:24] = real[2, 16:40] = True
    assert sorted(visited(masks.padding(real), 64, batch=3)) == first_and_last


@pytest.mark.full
def test_parts_have_their_own_bounds(monkeypatch):
    """A single CPU device visits the blocks of each row separately."""
    monkeypatch.setattr(targets, "devices", lambda: jax.devices()[:1])
    monkeypatch.setattr(blockwise, "HEADS", 1)
    mask = masks.lengths([8, 40, 0])
    assert sorted(visited(mask, 64, batch=3)) == sorted((i, j) for i in range(8) for j in [0, *range(5)])
    query = jax.random.normal(jax.random.key(0), (3, 64, 1, 4))
    result = attention(make_request(query, query, query, mask=mask), query_block=8, key_block=8)
    np.testing.assert_allclose(
        result, functional.attention(query, query, query, mask=mask, implementation="reference"), atol=2e-6
    )


def test_a_mask_of_the_full_batch_serves_a_shard():
    """A shard with rows 2 and 3 of four skips blocks by the lengths of these rows."""
    query = normal(4, 12, 1, 4)
    request = make_request(query, query, query, mask=masks.lengths([2, 3, 11, 9]))
    half = jax.device_put(np.asarray(query)[2:])
    mine = dataclasses.replace(request, query=half, key=half, value=half)
    result = jax.jit(lambda row: attention(mine, query_block=4, key_block=4, dims=(4, 1, 12, 12), origin=(row, 0)))(2)
    np.testing.assert_allclose(result, np.asarray(quick(lambda: attention(request))())[2:], atol=2e-6)


@pytest.mark.full
def test_vmap_keeps_plain_bounds():
    """All examples share one range, so no select copies the gradients of all keys in each iteration of a loop.

    The function is mapped twice under jit, each with its own padding, and gives the same numbers as one by one.
    """
    inputs = np.asarray(normal(3, 2, 2, 1, 20, 1, 4))
    mask = masks.Lengths(int32([[[3], [9]], [[0], [12]]]))

    @jax.jit
    def one(query, key, value, mask):
        call = lambda *x: attention(make_request(*x, mask=mask), query_block=4, key_block=4)
        output, pull = jax.vjp(call, query, key, value)
        return output, *pull(output)

    together = jax.vmap(jax.vmap(one))
    results = quick(together)(*inputs, mask)
    for i, j in np.ndindex(2, 2):
        pick = functools.partial(jax.tree.map, lambda x: np.asarray(x)[i, j])  # noqa: B023
        chex.assert_trees_all_close(pick(results), one(*inputs[:, i, j], pick(mask)), rtol=0, atol=1e-6)
    program = jax.make_jaxpr(together)(*inputs, mask).jaxpr
    loops = [e.params["cond_jaxpr"] for e, _ in equations(program) if e.primitive.name == "while"]
    assert len(loops) == 2
    assert all(not condition.jaxpr.outvars[0].aval.shape for condition in loops)
    assert all(eqn.primitive.name != "reduce_or" for condition in loops for eqn in condition.jaxpr.eqns)


@pytest.mark.full
@pytest.mark.parametrize(
    "mask", [full(None), masks.causal(), full(masks.window(512))], ids=["full", "causal", "window"]
)
def test_memory_and_compile_time_at_16384(mask):
    """With 8 heads the weights alone would take 8 GiB."""
    length = 16_384
    shapes = [jax.ShapeDtypeStruct((1, length, 8, 64), jnp.float32)] * 3
    loss = lambda q, k, v: functional.attention(q, k, v, mask=mask, implementation="blockwise").sum()
    began = time.perf_counter()
    forward = jax.jit(loss).lower(*shapes).compile().memory_analysis()
    backward = jax.jit(jax.grad(loss, (0, 1, 2))).lower(*shapes).compile().memory_analysis()
    assert forward.temp_size_in_bytes < 256 << 20
    assert backward.temp_size_in_bytes < 768 << 20
    assert time.perf_counter() - began < 40  # 10 s on an idle machine


@pytest.mark.parametrize(
    ("length", "mask"),
    [
        pytest.param(255, masks.causal(), marks=pytest.mark.full),
        pytest.param(256, masks.window(30), marks=pytest.mark.full),
        (600, masks.causal() & masks.lengths([250])),
    ],
)
def test_agrees_with_reference_around_whole_blocks(length, mask):
    query, key, value = (normal(1, length, 2, 8, seed=seed) for seed in range(3))

    def pulled(name):
        attend = functools.partial(functional.attention, mask=mask, implementation=name)
        output, pull = jax.vjp(attend, query, key, value)
        return output, *pull(jnp.cos(output))

    one, other = (quick(functools.partial(pulled, name))() for name in ("reference", "blockwise"))
    np.testing.assert_allclose(one[0], other[0], atol=2e-6)
    chex.assert_trees_all_close(one[1:], other[1:], rtol=0, atol=1e-5)


def test_chosen_for_long_sequences():
    """A program for 16,384 positions holds no [T, S] array, although no implementation is named."""
    shapes = [jax.ShapeDtypeStruct((1, 16_384, 1, 8), jnp.float32)] * 3
    memory = jax.jit(functional.attention).lower(*shapes).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 64 << 20


@pytest.mark.parametrize("low", first([-1e9, float(np.finfo(np.float32).min)], -1e9))
def test_a_finite_bias_that_lowers_a_full_row(low):
    """All keys of the row get equal weight, because so low a logit keeps no difference."""
    query, key, value, _ = arrays(2, 2)
    lowered = np.zeros((1, 1, 5, 7), np.float32)
    lowered[:, :, 1] = low

    def loss(arrays, attend):
        return jnp.sin(attend(make_request(*arrays, bias=jnp.asarray(lowered)))).sum()

    small = functools.partial(attention, query_block=2, key_block=3)
    attends = small, reference.attention
    slopes = [quick(jax.grad(loss), static_argnums=1)((query, key, value), f) for f in attends]
    chex.assert_trees_all_close(*slopes, rtol=0, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("dtype", first([np.float32, np.float64], np.float64))
def test_in_a_program_of_64_bits(dtype):
    """Integers and zeros are 64-bit by default; sums remain float32, also those of a bias."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        inputs = [jnp.asarray(x, dtype) for x in arrays(2, 2)[:3]]
        table = jnp.asarray(np.random.default_rng(0).normal(size=(8, 2)), dtype)

        def loss(arrays, table, implementation):
            options = {"mask": masks.causal(jnp.int32(1)) & masks.lengths([3, 5]), "bias": functional.t5_bias(table)}
            request = make_request(*arrays, **options)
            attend = functools.partial(attention, query_block=2, key_block=3)
            output = attend(request) if implementation == "blockwise" else reference.attention(request)
            return jnp.sin(output).sum(), output

        slope = jax.value_and_grad(loss, (0, 1), has_aux=True)
        result, expected = (slope(inputs, table, name) for name in ("blockwise", "reference"))
    chex.assert_trees_all_close(result, expected, rtol=1e-5, atol=1e-5, strict=True)  # dtypes, too


def test_a_second_derivative_without_optimizations():
    """XLA then computes logits twice, with different rounding; none equals their maximum, whose derivative was NaN."""
    query, key, value, _ = (x[..., :2] for x in arrays(2, 1))
    inputs = query, key, value, jnp.asarray(np.random.default_rng(0).normal(size=(8, 2)), jnp.float32)

    def products(inputs, attend):
        def loss(inputs):
            *inputs, table = inputs
            options = {"mask": masks.padding(jnp.ones((2, 7), bool)), "bias": functional.t5_bias(table)}
            return (attend(make_request(*inputs, **options)) ** 2).sum()

        return jax.jvp(jax.grad(loss), (inputs,), (jax.tree.map(jnp.ones_like, inputs),))[1]

    small = functools.partial(attention, query_block=2, key_block=3)
    lowered = jax.jit(functools.partial(products, attend=small)).lower(inputs)
    found = lowered.compile(compiler_options={"xla_backend_optimization_level": 0})(inputs)
    expected = quick(products, static_argnums=1)(inputs, reference.attention)
    chex.assert_trees_all_close(found, expected, rtol=1e-4, atol=1e-4)
