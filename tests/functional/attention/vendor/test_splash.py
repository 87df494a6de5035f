"""Splash attention in the interpreter of Pallas; each refusal is asserted with its reason."""

import functools
import itertools
import re
import subprocess
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxformer import functional, masks
from jaxformer.conformance import oracle
from jaxformer.functional.attention import api
from jaxformer.functional.attention.base import RESIDUAL, make_request
from jaxformer.functional.attention.vendor import splash
from tests.contracts.attention import DTYPES, VALID, AttentionContract, B, S, T, arrays
from tests.contracts.biases import BiasContract
from tests.contracts.jaxprs import equations
from tests.selection import first


class Device:
    def __init__(self, platform="tpu", device_kind="TPU v5 lite"):
        self.platform, self.device_kind = platform, device_kind


@pytest.fixture
def _interpreted(monkeypatch):
    run = functools.partial(splash.attention, interpret=True)
    monkeypatch.setitem(api.implementations, "splash", api.Implementation(run, splash.refuse_anywhere))


@pytest.fixture
def _tpu(monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: [Device()])


interpreted, on_tpu = pytest.mark.usefixtures("_interpreted"), pytest.mark.usefixtures("_tpu")


def refused(reason):
    return pytest.raises(ValueError, match=re.escape(f"'splash' cannot do this: {reason}"))


NO_BIAS, NO_DROPOUT = "it has no bias", "it cannot drop weights by the hash of this library"
NO_ARRAY = "its masks are Band, Lengths, Padding, Segments and an & of these, got Dense"


@interpreted
@pytest.mark.full
class TestSplash(AttentionContract):
    implementation = "splash"
    refuses = {  # noqa: RUF012
        **dict.fromkeys(("mask", "mask shapes"), NO_ARRAY),
        **dict.fromkeys(("bias", "bias shapes", "bias gradient"), NO_BIAS),
        "dropout": NO_DROPOUT,
    }
    partly = {  # noqa: RUF012
        **dict.fromkeys(("values", "shape and dtype", "long rows"), "it needs one dtype, float32 or bfloat16, got .*"),
        **dict.fromkeys(("masks together", "empty rows", "hidden NaN", "gradients"), NO_ARRAY),
        **dict.fromkeys(("empty rows, gradients", "hidden NaN, gradients"), NO_ARRAY),
        "sharding": "devices send all-gather",  # `on` runs it in `shard_map`
    }
    lacks = {"second derivatives": ".*splash attention has a gradient but no other derivative.*"}  # noqa: RUF012

    @classmethod
    def on(cls, grid):
        """Runs in `shard_map`, because no compiler partitions a Pallas kernel."""

        def attend(query, key, value, *, mask=None, bias=None, dropout=None, scale=None):
            assert bias is dropout is scale is None
            one = lambda q, k, v, m: cls.attend(q, k, v, mask=m)
            heads, rows = P("data", "context", "tensor"), P("data")
            cut = jax.shard_map(one, mesh=grid, in_specs=(heads, heads, heads, rows), out_specs=heads, check_vma=False)
            return cut(query, key, value, mask)

        return type(cls.__name__, (cls,), {"attend": staticmethod(attend)})

    check_soft_cap, test_soft_cap = BiasContract.check_soft_cap, BiasContract.test_soft_cap

    def test_no_keys(self):
        with refused("it needs at least one query and one key"):
            self.check_no_keys()

    def test_nan_upstream_stays_out_of_empty_rows(self):
        with refused(NO_ARRAY):
            self.check_nan_upstream_stays_out_of_empty_rows()
        query, key, value, upstream = arrays()
        output, result = self.gradients(query, key, value.at[:, 0].set(jnp.nan), upstream, mask=masks.causal(-2))
        assert np.isnan(output[:, 2:]).all()
        assert not np.asarray(output[:, :2]).any()
        assert not np.asarray(result[0][:, :2]).any()

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("fill", [np.nan, np.inf])
    def test_a_empty_query_rows(self, fill, dtype):
        """By segments, as it refuses arrays."""
        mask = masks.segments([[1, 5, 1, 2, 2], [3, 3, 3, 3, 0]], [[1, 1, 2, 2, 1, 1, 0], [3, 3, 3, 1, 1, 1, 1]])
        query, key, value, upstream = arrays(dtype=dtype)
        clean, clean_found = self.gradients(query, key, value, upstream, mask=mask)
        holes = query.at[0, 1].set(fill).at[1, 4].set(fill)
        output, result = self.gradients(holes, key, value, upstream, mask=mask)
        weights = np.asarray(self.weights(holes, key, mask=mask))
        for empty in ((0, 1), (1, 4)):
            assert not any(np.asarray(x[empty]).any() for x in (output, result[0], weights))
        chex.assert_trees_all_equal((output, *result[:3]), (clean, *clean_found[:3]))

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_c_masked_weights_are_exactly_zero(self, dtype):
        with refused(NO_ARRAY):
            self.check_c_masked_weights_are_exactly_zero(dtype)
        query, key, _, _ = arrays(dtype=dtype)
        mask = masks.window(1, 1) & masks.padding(VALID)
        allowed = np.broadcast_to(mask.dense(T, S), (B, 4, T, S))
        weights = np.asarray(self.weights(query, key.at[:, 2].multiply(100), mask=mask)).swapaxes(1, 2)
        assert not weights[~allowed].any()
        assert (weights[allowed.any(-1)].sum(-1) > 0.9).all()


def draw(num_queries, num_keys, dtype=jnp.float32):
    normal = np.random.default_rng(num_keys).standard_normal
    shapes = (B, num_queries, 4, 8), (B, num_keys, 2, 8), (B, num_keys, 2, 6), (B, num_queries, 4, 6)
    return tuple(jnp.asarray(normal(shape), dtype) for shape in shapes)


def packed(length, every):
    return np.arange(B * length).reshape(B, length) // every


LONG = {
    # name: T, S, mask; blocks are of 128 here, so that some are never visited and some rows meet none
    "nothing": (130, 300, None),
    "causal": (300, 300, masks.causal()),
    "a whole block of empty rows": (300, 200, masks.causal(-150)),
    "keys that fill the last block, in sight": (260, 130, masks.causal(3)),
    "queries beyond the last key": (400, 130, masks.window(20)),
    "keys beyond the last query": (130, 400, masks.window(20, 5)),
    "lengths, one of 0": (140, 260, masks.lengths([0, 170])),
    "causal, lengths": (260, 260, masks.causal() & masks.lengths([260, 40])),
    "packed": (256, 256, masks.segments(packed(256, 70)) & masks.causal()),
    "segments, some without queries": (200, 300, masks.segments(packed(200, 90), packed(300, 110))),
    "everything": (
        200,
        300,
        masks.segments(packed(200, 90) - 7, packed(300, 110) - 7)
        & (masks.window(150, 60) & masks.causal(40))
        & (masks.lengths([300, 250]) & masks.padding(np.arange(600).reshape(B, 300) % 11 > 0)),
    ),
}


@interpreted
@pytest.mark.parametrize("name", first(LONG, "everything"))
@pytest.mark.full
def test_more_than_a_block(name):
    """Values, gradients and inert contents of unseen keys, with several blocks."""
    num_queries, num_keys, mask = LONG[name]
    query, key, value, upstream = draw(num_queries, num_keys)

    @jax.jit
    def pulled(query, key, value, upstream):
        attend = functools.partial(functional.attention, mask=mask, implementation="splash")
        output, pull = jax.vjp(attend, query, key, value)
        return output, *pull(upstream)

    allowed = np.ones((1, 1, num_queries, num_keys), bool) if mask is None else np.asarray(mask.dense(*LONG[name][:2]))
    result = pulled(query, key, value, upstream)
    expected, _ = oracle.attention(query, key, value, allowed=allowed)
    np.testing.assert_allclose(result[0], expected, atol=3e-6)
    expected = oracle.gradients(query, key, value, upstream, allowed=allowed)
    chex.assert_trees_all_close(result[1:], expected[:3], rtol=0, atol=2e-5)
    filled, seen = (jnp.asarray(allowed.any(axis)[:, 0])[:, :, None, None] for axis in (3, 2))
    dirty = jnp.where(filled, query, jnp.nan), *(jnp.where(seen, x, jnp.nan) for x in (key, value))
    chex.assert_trees_all_equal(pulled(*dirty, upstream), result)
    for got, of in zip(result, (filled, filled, seen, seen), strict=True):
        assert not np.asarray(jnp.where(of, 0, got)).any()


@interpreted
def test_no_quadratic_array_is_made():
    """The visible keys of segments are computed some rows at a time; those of a causal mask need no data."""
    length = 8192
    shape = jax.ShapeDtypeStruct((1, length, 1, 8), jnp.float32)
    ids = jax.ShapeDtypeStruct((1, length), jnp.int32)

    def loss(query, key, value, ids):
        mask = masks.causal() & masks.segments(ids)
        return functional.attention(query, key, value, mask=mask, implementation="splash").sum()

    program = jax.make_jaxpr(jax.grad(loss))(shape, shape, shape, ids)
    assert f"name={RESIDUAL}" in str(program)  # for policies of `jax.checkpoint`
    result = [getattr(x.aval, "size", 0) for equation, _ in equations(program.jaxpr) for x in equation.outvars]
    assert length * splash.ROWS in result
    assert max(result) <= length**2 // 32


def request(num_queries=256, num_keys=256, dtype=jnp.bfloat16, dim=64, key_dtype=None, **options):
    shape = lambda length, dtype: jax.ShapeDtypeStruct((2, length, 4, dim), dtype)
    keys = shape(num_keys, key_dtype or dtype)
    return make_request(shape(num_queries, dtype), keys, keys, **options)


PREFIX = masks.causal() | masks.prefix([3, 4])
TWICE = masks.segments(packed(256, 70)) & masks.segments(packed(256, 90))


@on_tpu
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": jnp.float16}, "one dtype, float32 or bfloat16, got float16"),
        ({"key_dtype": jnp.float32}, "one dtype, float32 or bfloat16, got bfloat16, float32 and float32"),
        ({"dim": 320}, "head dims up to 256, got 320 and 320"),
        ({"bias": functional.alibi(4)}, NO_BIAS),
        ({"sinks": jnp.zeros(4)}, "it has no attention sinks"),
        ({"score": jnp.tanh}, "its only function of the logits is soft_cap"),
        ({"dropout": functional.Dropout(0.1, jax.random.key(0))}, NO_DROPOUT),
        ({"mask": PREFIX}, "got Or"),
        ({"mask": ~masks.causal()}, "got Not"),
        ({"mask": masks.causal() & PREFIX}, "got Or"),
        ({"mask": masks.causal(jnp.asarray(3))}, "got CausalAt"),
        ({"mask": TWICE}, "one segment"),
        ({"mask": masks.segments(packed(256, 70).astype(np.float32))}, "fit into int32"),
        ({"mask": masks.causal(-256)}, "at least one pair that its mask allows"),
        ({"mask": masks.window(3) & masks.causal(-4)}, "at least one pair that its mask allows"),
    ],
)
def test_refusals_on_its_device(options, reason):
    """On a TPU it is chosen for requests that it accepts, and not for others."""
    assert api.choose(request()) == "splash"
    assert reason in api.implementations["splash"].refuse(request(**options))
    assert api.choose(request(**options)) == "reference"
    for mask in (masks.causal(-255), masks.window(3) & masks.causal(-3), masks.causal() & masks.causal(5)):
        assert api.implementations["splash"].refuse(request(mask=mask)) is None  # one key is left


@on_tpu
def test_chosen_on_a_single_device(monkeypatch):
    """It is not chosen for a few queries, or on several devices except inside `shard_map`."""
    assert api.choose(request(num_queries=127)) == "reference"
    assert api.choose(request(num_queries=1, num_keys=1 << 22)) == "blockwise"
    monkeypatch.setattr(jax, "devices", lambda: [Device()] * 8)
    assert api.choose(request()) == "reference"
    mesh = Mesh(np.array(jax.local_devices()).reshape(4, 2), ("data", "model"))
    chosen = []

    def look(x):
        chosen.append(api.choose(request()))
        return x

    for names in ({"data", "model"}, {"data"}):
        jax.jit(jax.shard_map(look, mesh=mesh, in_specs=P("data"), out_specs=P("data"), axis_names=names))(jnp.zeros(4))
    assert chosen == ["splash", "reference"]


@on_tpu
def test_needs_its_device_and_kernel(monkeypatch):
    refuse = api.implementations["splash"].refuse
    monkeypatch.setitem(sys.modules, splash.MODULE, None)
    assert refuse(request()).startswith("this JAX has no jax.experimental.pallas")
    for device in (("cpu", "cpu"), ("gpu", "NVIDIA H100"), ("tpu", "TPU v3")):
        monkeypatch.setattr(jax, "devices", lambda device=device: [Device(*device)])
        assert refuse(request()) == f"it needs a TPU v4 or later, got {device[0]} ({device[1]})"


@pytest.mark.full
def test_is_imported_at_first_use():
    program = (
        "import sys, types, jax, jax.numpy as jnp\n"
        "from jaxformer.functional.attention.base import make_request\n"
        "from jaxformer.functional.attention.vendor import splash\n"
        "request = make_request(*jnp.zeros((3, 1, 128, 1, 64)))\n"
        "before = splash.MODULE in sys.modules\n"
        "jax.devices = lambda: [types.SimpleNamespace(platform='tpu', device_kind='TPU v5 lite')]\n"
        "print(before, splash.refuse(request), splash.MODULE in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "None", "True"]


@on_tpu
@pytest.mark.parametrize(
    "case",
    first(
        itertools.product(["nothing", "everything"], ["float32", "bfloat16"]),
        ("nothing", "bfloat16"),
        ("everything", "float32"),
    ),
    ids="-".join,
)
def test_lowers_for_a_tpu(case):
    """The lowering reaches Mosaic's compiler, which comes with a TPU: one kernel forward, two backward."""
    name, dtype = case
    num_queries, num_keys, mask = LONG[name]

    def loss(query, key, value):
        return functional.attention(query, key, value, mask=mask, score=functional.soft_cap(9.0)).sum()

    inputs = [jax.ShapeDtypeStruct(x.shape, dtype) for x in draw(num_queries, num_keys)[:3]]
    program = jax.export.export(jax.jit(jax.grad(loss, (0, 1, 2))), platforms=["tpu"])(*inputs)
    assert program.mlir_module().count("stablehlo.custom_call @tpu_custom_call") == 3
