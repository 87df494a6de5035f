"""`sharded_attention` keeps the contract of every implementation on a mesh, without communication."""

import dataclasses
import functools
import os
import subprocess

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxformer import functional, masks, models, pure, sharding
from jaxformer.errors import ConfigError
from jaxformer.functional.attention import api
from jaxformer.functional.attention.vendor import splash
from tests.contracts import biases
from tests.contracts.attention import FOUR_ROWS, S, arrays, coin, with_rows
from tests.launch import programs
from tests.models import small
from tests.modules.small import drawn, normal, placed, quick
from tests.selection import first

GRID = "data=4,tensor=2"
COLLECTIVES = "all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class First(masks.Mask):
    """The first keys of each row, as in `masks.lengths`, but with a mask that the library does not know."""

    length: jax.Array

    def tile(self, query_index, key_index):
        return masks.lengths(self.length).tile(query_index, key_index)

    def ranges(self, query_start, query_stop):
        return masks.lengths(self.length).ranges(query_start, query_stop)


MASKS = {
    "none": None,
    "causal": masks.causal(),
    "lengths": masks.lengths([1, 7, 0, 4]),
    "causal & padding | prefix": (masks.causal() & masks.padding(FOUR_ROWS)) | masks.prefix([1, 2, 0, 3]),
    "not segments": ~masks.segments(np.arange(20).reshape(4, 5) % 3, np.arange(28).reshape(4, 7) % 2),
    "heads": masks.dense(coin(4, 4, 5, 7)),
    "custom": First(jnp.array([1, 7, 0, 4])),
    "one row for all": masks.dense(coin(1, 4, 5, 7)) & masks.window(2, 2),
}


def both(mask, dropout, bias, *, implementation):
    """Output and gradients on the mesh, and alone."""
    query, key, value, upstream = arrays(batch=4)
    options = {"mask": mask, "bias": bias}
    if dropout:
        options["dropout"] = functional.Dropout(dropout, jax.random.key(3))
    grid = sharding.mesh(GRID)
    layout = NamedSharding(grid, PartitionSpec("data", None, "tensor"))

    def pulled(attend, *given):
        output, pull = jax.vjp(functools.partial(attend, **options), *given[:3])
        return output, *pull(given[3])

    there = jax.jit(functools.partial(pulled, sharding.sharded_attention(grid, implementation=implementation)))
    placed = jax.device_put((query, key, value, upstream), layout)
    here = quick(functools.partial(pulled, functional.attention))(query, key, value, upstream)
    return there, placed, here


@pytest.mark.parametrize("dropout", [pytest.param(0.0, marks=pytest.mark.full), 0.3], ids=["", "dropout"])
@pytest.mark.parametrize("name", first(MASKS, "not segments", "causal", "custom"))
def test_blockwise(name, dropout):
    """Rows, heads and dropped weights equal those of the full result; the mask's arrays are sharded."""
    bias = {"not segments": normal(1, 4, 1, 7, seed=1), "causal": functional.alibi(4)}.get(name)
    there, placed, here = both(MASKS[name], dropout, bias, implementation="blockwise")
    chex.assert_trees_all_close(there(*placed), here, rtol=0, atol=1e-5)


@pytest.fixture
def _without_devices(monkeypatch):
    """Interprets splash attention and replaces tokamax, so that both run on CPU devices."""
    splash_here = api.Implementation(functools.partial(splash.attention, interpret=True), splash.refuse_anywhere)
    monkeypatch.setitem(api.implementations, "splash", splash_here)
    monkeypatch.setitem(api.implementations, "tokamax", api.implementations["blockwise"])


@pytest.mark.usefixtures("_without_devices")
@pytest.mark.parametrize("implementation", first(["reference", "blockwise", "xla", "splash", "tokamax"], "xla"))
def test_nothing_is_gathered(implementation):
    """No collective at all, forward or backward, with queries, keys and values sharded by rows and heads."""
    there, placed, here = both(MASKS["lengths"], 0.0, None, implementation=implementation)
    program = there.lower(*placed).compile()
    text = program.as_text()
    for told in COLLECTIVES:
        assert told not in text
    for got, want in zip(program(*placed), here, strict=True):
        assert got.sharding.is_equivalent_to(placed[0].sharding, got.ndim)
        np.testing.assert_allclose(got, want, atol=1e-5)


ELSEWHERE = """
import functools, sys, jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxformer import masks, sharding, targets
from jaxformer.planning import topology

pod, implementation = sys.argv[1:]
grid = sharding.mesh("data=4,tensor=2", topology.devices(pod))
layout = NamedSharding(grid, PartitionSpec("data", None, "tensor"))
given = [jax.ShapeDtypeStruct((8, 256, 8, 128), jnp.bfloat16, sharding=layout)] * 3
attend = functools.partial(sharding.sharded_attention(grid, implementation=implementation), mask=masks.causal())

def pulled(*given):
    output, pull = jax.vjp(attend, *given)
    return output, *pull(output)

with targets.compiling_for(grid.devices.flatten().tolist()):
    print(jax.jit(pulled).lower(*given).compile().as_text())
"""


@pytest.mark.faults
@pytest.mark.parametrize(
    ("implementation", "kernel", "pod", "compiler"),
    [("splash", "tpu_custom_call", "v5e:2x4", "libtpu"), ("cudnn", "cudnn$fmha", "h100:1x8", "jax_cuda12_plugin")],
)
def test_nothing_is_gathered_on_other_devices(implementation, kernel, pod, compiler):
    """The real kernels, compiled for eight devices that are not on this machine."""
    command = [programs.python_with(compiler), "-c", ELSEWHERE, pod, implementation]
    paths = os.pathsep.join(filter(None, (str(programs.ROOT), os.environ.get("PYTHONPATH"))))
    known = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths}
    done = subprocess.run(command, env=known, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    assert kernel in done.stdout
    for told in COLLECTIVES:
        assert told not in done.stdout


BY_HEAD = {
    "relative keys by head": lambda learned: biases.made("relative keys by head", learned),
    "transformer-xl": lambda learned: biases.made("transformer-xl", learned),
    "shifted": lambda learned: biases.made("relative keys by head", learned).at(1),
    "sum": lambda learned: biases.made("transformer-xl", learned) + functional.alibi(4),
}


@pytest.mark.full
@pytest.mark.parametrize("name", BY_HEAD)
def test_biases_that_combine_queries_with_sharded_heads(name):
    """Each device takes the tables of its own heads: the output, and gradients of queries and learned arrays."""
    query, key, value, upstream = arrays(batch=4)
    options = {"mask": MASKS["lengths"]}

    def pulled(learned, query, attend):
        call = lambda learned, query: attend(query, key, value, bias=BY_HEAD[name](learned), **options)
        output, pull = jax.vjp(call, learned, query)
        return output, pull(upstream)

    run = jax.jit(pulled, static_argnums=2)
    attend = sharding.sharded_attention(sharding.mesh(GRID), implementation="blockwise")
    found, expected = (run(biases.LEARNED, query, f) for f in (attend, functional.attention))
    chex.assert_trees_all_close(found, expected, rtol=0, atol=2e-5)


def test_sinks_by_head():
    """The sinks and the bias beneath them belong to the heads of a device."""
    query, key, value, upstream = arrays(batch=4)

    def loss(sinks, learned, attend):
        bias = biases.made("relative keys by head", learned)
        return jnp.sum(attend(query, key, value, bias=bias, sinks=sinks) * upstream)

    slopes = jax.jit(jax.value_and_grad(loss, (0, 1)), static_argnums=2)
    attend = sharding.sharded_attention(sharding.mesh(GRID), implementation="blockwise")
    found, expected = (slopes(jnp.arange(4.0), biases.LEARNED, f) for f in (attend, functional.attention))
    chex.assert_trees_all_close(found, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", first(["relative keys", "relative keys by head", "transformer-xl"], "relative keys"))
def test_empty_queries_do_not_reach_learned_tables(name):
    """A query that may attend to no key holds NaN; the gradients of the tables are finite, as those of one device."""
    query, key, value, upstream = arrays(batch=4)
    mask = masks.lengths([1, 7, 0, 4])

    def loss(learned, query, attend):
        return jnp.sum(attend(query, key, value, mask=mask, bias=biases.made(name, learned)) * upstream)

    slopes = jax.jit(jax.grad(loss), static_argnums=2)
    attend = sharding.sharded_attention(sharding.mesh(GRID), implementation="reference")
    dirty = slopes(biases.LEARNED, with_rows(query, [2], np.nan), attend)
    expected = slopes(biases.LEARNED, query, functional.attention)
    chex.assert_trees_all_close(dirty, expected, rtol=0, atol=2e-5)


def test_dimensions_that_do_not_divide_are_not_sharded():
    """Three rows and three heads: the same result on every device."""
    query, key, value, _ = (np.asarray(x)[:3, :, : 2 if i else 4] for i, x in enumerate(arrays(6, 2, batch=4)))
    expected = quick(functional.attention)(query, key, value)
    on_mesh = jax.jit(sharding.sharded_attention(sharding.mesh(GRID), implementation="blockwise"))
    np.testing.assert_allclose(on_mesh(query, key, value), expected, atol=1e-5)
    around = jax.jit(sharding.sharded_attention(sharding.mesh("data=2,context=2,tensor=2")))
    np.testing.assert_allclose(around(query, key, value), expected, atol=1e-5)


def test_sharded_lengths_use_ring_attention():
    """If the table shards lengths; a single query, as in decoding, does not."""
    grid = sharding.mesh("data=2,context=4")
    query, key, value, _ = arrays(batch=4)
    on_mesh = jax.jit(sharding.sharded_attention(grid))
    for rows, ring in ((query, True), (np.asarray(query)[:, :1], False)):
        program = on_mesh.lower(rows, key, value).compile()
        assert ("collective-permute" in program.as_text()) is ring
        np.testing.assert_allclose(program(rows, key, value), quick(functional.attention)(rows, key, value), atol=1e-5)


@pytest.mark.parametrize("text", ["data=2,context=4", "data=2,tensor=2"])
def test_queries_at_given_positions(text):
    """A prefilled prompt on a mesh: rows of the whole result, with a bias and a mask of positions, on any mesh."""
    query, key, value, _ = arrays(batch=4)
    options = {"mask": masks.causal(), "bias": functional.alibi(4)}
    whole = np.asarray(quick(functools.partial(functional.attention, **options))(query, key, value))
    rows = np.array([[0, 3], [1, 2], [3, 4], [2, 0]])
    grid = sharding.mesh(text, jax.devices()[: 8 if "context" in text else 4])
    attend = sharding.sharded_attention(grid, implementation="blockwise")
    on_mesh = jax.jit(functools.partial(placed(attend, rows, np.arange(S)[None]), **options))
    examples = np.arange(4)[:, None]
    found = on_mesh(np.asarray(query)[examples, rows], key, value)
    np.testing.assert_allclose(found, whole[examples, rows], atol=1e-5)


@pytest.mark.parametrize("implementation", ["reference", "xla", "cudnn"])
def test_a_cached_step_has_full_lengths(monkeypatch, implementation):
    """Where the mesh shards lengths: no kernel of one device meets a part of one, and the numbers are those of one."""
    seen = []

    def run(request):
        for x in (request.query, request.key, request.value, request.mask.array):
            jax.debug.inspect_array_sharding(x, callback=lambda found, x=x: seen.append(found.shard_shape(x.shape)))
        return api.reference.attention(request)

    grid = sharding.mesh("data=2,context=2,tensor=2")
    query, key, value, _ = arrays(batch=4)
    given = np.asarray(query)[:, :4], *(np.pad(x, ((0, 0), (0, 1), (0, 0), (0, 0))) for x in (key, value))
    options = {"mask": masks.dense(coin(4, 1, 4, 8), finite=True)}
    expected = quick(functools.partial(functional.attention, **options))(*given)
    kept = api.implementations[implementation]
    monkeypatch.setitem(api.implementations, implementation, kept._replace(run=run, refuse=lambda request: None))
    attend = jax.jit(functools.partial(sharding.sharded_attention(grid, implementation=implementation), **options))
    layout = NamedSharding(grid, PartitionSpec("data", "context", "tensor"))
    found = attend(*jax.device_put(given, layout))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert seen == [(2, 4, 2, 4), (2, 8, key.shape[2] // 2, 4), (2, 8, key.shape[2] // 2, 3), (2, 1, 4, 8)]


@pytest.mark.full
def test_a_named_implementation_is_not_replaced_by_a_ring():
    grid = sharding.mesh("data=2,context=4")
    query, key, value, _ = arrays(batch=4)
    given = query[:, :4], key[:, :4], value[:, :4]
    for name, on_a_ring in ((None, True), ("reference", False), ("blockwise", False)):
        attend = sharding.sharded_attention(grid, implementation=name)
        assert ("ppermute" in str(jax.make_jaxpr(attend)(*given))) == on_a_ring
        np.testing.assert_allclose(jax.jit(attend)(*given), functional.attention(*given), atol=1e-5)


def test_the_choice_equals_that_on_one_device(monkeypatch):
    monkeypatch.setattr(api, "LONG_ON_CPU", 1)
    query, key, value, _ = arrays(batch=4)
    text = jax.jit(sharding.sharded_attention(sharding.mesh(GRID))).lower(query, key, value).as_text()
    assert "while" in text


@pytest.mark.parametrize("name", first(["packed", "no mask", "causal", "bias"], "bias"))
def test_packed_rows_use_ring_attention(name):
    """Unless a bias uses positions; the mask of a layer whose token vectors alone use them is the same object."""
    query, key, value, _ = arrays(batch=4)
    query = jnp.asarray(np.asarray(query)[:, [0, 1, 2, 3, 4, 0, 1]])  # T = S
    positions = np.array([[0, 1, 2, 0, 1, 0, 0]] * 4)
    packed = masks.padding(positions >= 0) & masks.segments(np.array([[1, 1, 1, 2, 2, 3, 4]] * 4))
    grid = sharding.mesh("data=2,context=4")
    options, ring = {
        "packed": ({"mask": packed}, True),
        "no mask": ({"mask": None}, True),
        "causal": ({"mask": packed & masks.causal()}, True),
        "bias": ({"mask": packed, "bias": functional.alibi(4)}, False),
    }[name]
    same, _ = functional.at_positions(query, key, query_positions=positions, key_positions=positions, mask=packed)
    assert same is packed
    on_mesh = jax.jit(functools.partial(placed(sharding.sharded_attention(grid), positions, positions), **options))
    program = on_mesh.lower(query, key, value).compile()
    assert ("collective-permute" in program.as_text()) is ring
    alone = quick(functools.partial(placed(functional.attention, positions, positions), **options))
    np.testing.assert_allclose(program(query, key, value), alone(query, key, value), atol=1e-5)


@pytest.mark.full
def test_a_cached_step_on_a_mesh_is_the_row_of_the_whole():
    """Its mask says that the cache is finite, which the placement of the mask keeps."""
    attention = sharding.sharded_attention(sharding.mesh("data=2", jax.devices()[:2]), implementation="blockwise")
    net = pure(models.LanguageModel, small.LANGUAGE_CONFIGS["tied"], attention=attention)
    params = drawn(net.shapes, 0.3)

    def stepped(params, tokens):
        model = net.bind(params)
        context, state = model.start(batch_size=2, beam_size=1, length=2)
        for t in range(2):
            logits, state = model.step(tokens[:, t : t + 1], state, context)
        return logits[:, 0]

    tokens = np.asarray(small.TARGET)[:, :2]
    whole = np.asarray(quick(net.apply)(params, tokens))
    np.testing.assert_allclose(quick(stepped)(params, tokens), whole[:, 1], atol=1e-5)


def test_a_custom_mask_with_one_whose_rows_are_sharded():
    """Its rows are not sharded, so those of the other must not be either: two rows would not fit four."""
    mask = masks.lengths(jnp.array([5, 0, 7, 1])) & ~First(jnp.array([1, 2, 0, 3]))
    attend = sharding.sharded_attention(sharding.mesh("data=2", jax.devices()[:2]), implementation="blockwise")
    there, here = (functools.partial(f, mask=mask) for f in (attend, functional.attention))
    np.testing.assert_allclose(jax.jit(there)(*arrays(batch=4)[:3]), quick(here)(*arrays(batch=4)[:3]), atol=1e-6)


def test_refusals():
    """An unknown implementation at once."""
    for text, count in (("data=1", 1), ("data=2", 2)):
        with pytest.raises(ConfigError, match=r"must be one of \['blockwise', .*\], got 'typo'"):
            sharding.sharded_attention(sharding.mesh(text, jax.devices()[:count]), implementation="typo")
    with pytest.raises(ValueError, match="'splash' cannot do this"):
        sharding.sharded_attention(sharding.mesh(GRID), implementation="splash")(*arrays(batch=4)[:3])


def test_weights_on_a_mesh_equal_softmax():
    """Sharded and ring attention have the weights of `attention`, row by row, without a ring."""
    query, key, _, _ = arrays(batch=4)
    grid = sharding.mesh("data=4,context=2")
    for attention in (
        sharding.sharded_attention(grid),
        functools.partial(sharding.sharded_attention(grid), scale=2.0),
        sharding.ring_attention(grid, "context", batch="data"),
    ):
        options = getattr(attention, "keywords", {})
        want, found = (
            quick(functools.partial(weights, mask=masks.lengths([1, 7, 0, 4])))(query, key)
            for weights in (
                functools.partial(functional.attention_weights, **options),
                functools.partial(functional.weights_of, attention),
            )
        )
        np.testing.assert_array_equal(found, want)
