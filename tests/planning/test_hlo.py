"""Collectives of compiled programs, against programs whose exchanges are known, and those of a training step."""

import collections
import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxformer import functional, models, sharding
from jaxformer.planning import hlo
from tests.planning import reader
from tests.planning.small import lowered

GRID = {"data": 4, "tensor": 2}
HERE = PartitionSpec("data", "tensor")


def compiled(function, *shape, out=HERE):
    """Collectives of a function that each device applies to its piece of a float32 array."""
    mesh = sharding.mesh("data=4,tensor=2")
    mapped = jax.shard_map(function, mesh=mesh, in_specs=HERE, out_specs=out, check_vma=False)
    return hlo.collectives(jax.jit(mapped).lower(jnp.zeros(shape)).compile().as_text(), mesh.shape)


@pytest.mark.parametrize(
    ("function", "kind", "size", "axes"),
    [
        (lambda x: jax.lax.psum(x, "tensor"), "all-reduce", 2 * 8 * 4, ("tensor",)),
        (lambda x: jax.lax.psum(x, ("data", "tensor")), "all-reduce", 2 * 8 * 4, ("data", "tensor")),
        (lambda x: jax.lax.all_gather(x, "data"), "all-gather", 4 * 2 * 8 * 4, ("data",)),
        (lambda x: jax.lax.psum_scatter(x, "tensor", tiled=True), "reduce-scatter", 2 * 8 * 4, ("tensor",)),
        (lambda x: jax.lax.all_to_all(x, "tensor", 0, 1, tiled=True), "all-to-all", 2 * 8 * 4, ("tensor",)),
        (
            lambda x: jax.lax.ppermute(x, "data", [(0, 1), (1, 2), (2, 3), (3, 0)]),
            "collective-permute",
            2 * 8 * 4,
            ("data",),
        ),
    ],
)
def test_one_exchange(function, kind, size, axes):
    (found,) = compiled(function, 8, 16, out=PartitionSpec())
    assert (found.kind, found.bytes, found.largest, found.axes, found.count) == (kind, size, size, axes, 1)
    assert found.devices == (2 if kind == "collective-permute" else int(np.prod([GRID[axis] for axis in axes])))


def test_loops_are_multiplied_out():
    def twice(x, _):
        x, _ = jax.lax.scan(lambda x, _: (jnp.tanh(jax.lax.psum(x, "tensor")), None), x, length=5)
        return jax.lax.ppermute(x, "data", [(0, 1), (1, 2), (2, 3), (3, 0)]), None

    found = compiled(lambda x: jax.lax.scan(twice, x, length=3)[0], 8, 16)
    assert {one.kind: one.count for one in found} == {"all-reduce": 15, "collective-permute": 3}


LOOP = """
%cond (p: (u32[], f32[8])) -> pred[] {
  %p.1 = (u32[]{:T(128)}, f32[8]{0}) parameter(0)
  %counter = u32[]{:T(128)} get-tuple-element(%p.1), index=0
  %stop = u32[]{:T(128)} constant(16)
  ROOT %less = pred[]{:T(512)} compare(%counter, %stop), direction=LT, metadata={op_name="x"}
}

%body (p: (u32[], f32[8])) -> (u32[], f32[8]) {
  %p.2 = (u32[]{:T(128)}, f32[8]{0}) parameter(0)
  %counter.1 = u32[]{:T(128)} get-tuple-element(%p.2), index=0
  %x = f32[8]{0} get-tuple-element(%p.2), index=1
  %step = u32[]{:T(128)} constant(2)
  %more = u32[]{:T(128)} add(%counter.1, %step)
  %sent = (f32[8]{0:T(128)}, f32[8]{0:T(128)}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%x), \
source_target_pairs={{0,2},{2,4},{4,6},{6,0},{1,3},{3,5},{5,7},{7,1}}
  %done = f32[8]{0:T(128)} collective-permute-done(%sent)
  ROOT %both = (u32[]{:T(128)}, /*index=1*/f32[8]{0}) tuple(%more, /*index=1*/%done)
}

ENTRY %main (x: f32[8]) -> (u32[], f32[8]) {
  %x = f32[8]{0} parameter(0)
  %zero = u32[]{:T(128)} constant(START)
  %copied = u32[]{:T(128)} copy(%zero)
  %first = (u32[]{:T(128)}, f32[8]{0}) tuple(%copied, %x)
  ROOT %loop = (u32[]{:T(128)}, f32[8]{0}) while(%first), condition=%cond, body=%body
}
"""


@pytest.mark.parametrize(("start", "turns"), [(0, 8), (6, 5), (15, 1), (16, 0)])
def test_a_loop_without_a_note_is_counted(start, turns):
    """TPU programs have none; the windowed products of that compiler go two steps at a time."""
    text = LOOP.replace("START", str(start))
    copied = text.replace("%more = u32[]{:T(128)} add", "%added = u32[]{:T(128)S(6)} add")
    copied = copied.replace("  %done =", "  %more = u32[]{:T(128)} copy(%added)\n  %done =")
    assert copied.count("copy(") == 2
    for program in (text, copied):  # what the next iteration gets may be a copy of the addition
        (found,) = hlo.collectives(program, GRID)
        assert found == hlo.Collective("collective-permute", 32, 32, 2, ("data",), turns, "")


FUSED = """
%all-reduce-scatter.3 (input: f32[8]) -> f32[2] {
  %input = f32[8]{0} parameter(0)
  %sum = f32[8]{0} all-reduce(%input), replica_groups=[2,4]<=[4,2]T(1,0)
  %start = u32[] constant(0)
  ROOT %piece = f32[2]{0} dynamic-slice(%sum, %start), dynamic_slice_sizes={2}
}

ENTRY %main (x: f32[8]) -> f32[2] {
  %x = f32[8]{0} parameter(0)
  ROOT %fused = f32[2]{0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.3
}
"""


def test_a_reduce_scatter_of_a_tpu():
    """A TPU's program writes a reduce-scatter as a fusion, with a sum in it; it sends half of what the sum would."""
    (found,) = hlo.collectives(FUSED, GRID)
    assert found == hlo.Collective("reduce-scatter", 32, 32, 4, ("data",), 1, "")
    assert found.bytes_sent == 24


ACROSS = """
ENTRY %main (x: f32[8,4]) -> f32[8,4] {
  %x = f32[8,4]{1,0} parameter(0)
  %after = token[] after-all()
  %send = (f32[8,4]{1,0:T(8,128)}, u32[]{:S(2)}, token[]) send(%x, %after), channel_id=2, is_host_transfer=true, \
frontend_attributes={_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="KIND"}
  %recv = (f32[8,4]{1,0:T(8,128)}, u32[]{:S(2)}, token[]) recv(%after), channel_id=1, is_host_transfer=true, \
frontend_attributes={_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="KIND"}
  %done = (f32[8,4]{1,0}, token[]) recv-done(%recv), channel_id=1, is_host_transfer=true
  ROOT %got = f32[8,4]{1,0} get-tuple-element(%done), index=0
}
"""


@pytest.mark.parametrize(("kind", "size"), [("ALL_REDUCE", 128), ("ALL_GATHER", 256)])
def test_messages_to_another_slice(kind, size):
    """The program has a message to the host instead of a collective."""
    (found,) = hlo.collectives(ACROSS.replace("KIND", kind), {"slice": 2, "fsdp": 4})
    assert found == hlo.Collective(kind.lower().replace("_", "-"), size, size, 2, ("slice",), 1, "")
    for text, mesh in ((ACROSS, {"slice": 2}), (ACROSS.replace("KIND", kind), {"fsdp": 4})):
        with pytest.raises(ValueError, match="cannot read what is sent to another slice"):
            hlo.collectives(text, mesh)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("constant(START)", "parameter(1)"),
        ("constant(16)", "parameter(1)"),
        ("constant(2)", "parameter(1)"),
        ("add(%counter.1", "multiply(%counter.1"),
        ("direction=LT", "direction=NE"),
        (" tuple(%more", " opt-barrier(%more"),
    ],
)
def test_a_loop_that_depends_on_data_is_named(old, new):
    assert old in LOOP
    text = LOOP.replace(old, new).replace("START", "0")
    (found,) = hlo.collectives(text, GRID)
    assert found == hlo.Collective("collective-permute", 32, 32, 2, ("data",), 1, "", ("loop",))
    (found,) = hlo.collectives(text.replace("body=%body", 'body=%body, metadata={op_name="step/while"}'), GRID)
    assert found.uncounted_loops == ("step/while",)


def test_one_iteration_of_a_loop_that_depends_on_data_is_counted():
    """Within it and around it, other loops count as often as they run."""

    def search(x, _):
        more = lambda x: jax.lax.scan(lambda x, _: (jnp.tanh(jax.lax.psum(x, "tensor")), None), x, length=5)[0]
        x = jax.lax.while_loop(lambda x: x.sum() < 3, more, x)
        return jax.lax.ppermute(x, "data", [(0, 1), (1, 2), (2, 3), (3, 0)]), None

    found = compiled(lambda x: jax.lax.scan(search, x, length=3)[0], 8, 16)
    assert {one.kind: one.count for one in found} == {"all-reduce": 15, "collective-permute": 3}
    ((loop,),) = [one.uncounted_loops for one in found if one.kind == "all-reduce"]
    assert loop.endswith("while")
    assert [one.uncounted_loops for one in found if one.kind == "collective-permute"] == [()]


SPREAD = """
%first (x: bf16[8]) -> bf16[16] {
  %x = bf16[8]{0} parameter(0)
  ROOT %gathered = bf16[16]{0} all-gather(%x), channel_id=3, replica_groups=[4,2]<=[8], dimensions={0}, \
frontend_attributes={chain_id="0"}, backend_config={"async_collective_fusion_config":{"flag_start":"-1"}}
}

%next (x: bf16[8]) -> bf16[16] {
  %x = bf16[8]{0} parameter(0)
  ROOT %gathered = bf16[16]{0} all-gather(%x), channel_id=3, replica_groups=[4,2]<=[8], dimensions={0}, \
frontend_attributes={chain_id="0"}, backend_config={"async_collective_fusion_config":{"flag_start":"2"}}
}

%cond (p: (s32[], bf16[8], s32[])) -> pred[] {
  %p = (s32[], bf16[8], s32[]) parameter(0)
  %counter = s32[] get-tuple-element(%p), index=0
  %stop = s32[] get-tuple-element(%p), index=2
  ROOT %less = pred[] compare(%counter, %stop), direction=LT
}

%body (p: (s32[], bf16[8], s32[])) -> (s32[], bf16[8], s32[]) {
  %p = (s32[], bf16[8], s32[]) parameter(0)
  %x = bf16[8]{0} get-tuple-element(%p), index=1
  %part = bf16[16]{0} fusion(%x), kind=kOutput, calls=%next
  ROOT %all = (s32[], bf16[8], s32[]) tuple(%x, %x, %x)
}

ENTRY %main (x: bf16[8]) -> bf16[16] {
  %x = bf16[8]{0} parameter(0)
  %async-collective-start = bf16[16]{0} fusion(%x), kind=kCustom, calls=%first
  %loop = (s32[], bf16[8], s32[]) while(%p), condition=%cond, body=%body
  ROOT %async-collective-done = bf16[16]{0} fusion(%x), kind=kCustom, calls=%next
}
"""


def test_a_collective_spread_over_fusions_is_one():
    """A TPU carries it out beside the products of other fusions, as here in a loop that depends on data."""
    (found,) = hlo.collectives(SPREAD, GRID)
    assert found == hlo.Collective("all-gather", 32, 32, 2, ("tensor",), 1, "")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("f32[8] all-reduce(%x), replica_groups={}", (32, 8, ("data", "tensor"))),
        ("f32[8] all-reduce(%x), replica_groups={{0,2,4,6},{1,3,5,7}}", (32, 4, ("data",))),
        ("f32[8] all-reduce-start(%x), replica_groups=[4,2]<=[8]", (32, 2, ("tensor",))),
        ("f32[8] all-reduce(%x), replica_groups=[2,4]<=[4,2]T(1,0)", (32, 4, ("data",))),
        (
            "f32[8] all-reduce(%x), replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_1'}, other=%x",
            (32, 2, ("tensor",)),
        ),
        ("f32[8] all-reduce(%x), replica_groups=mesh['a'=4,'b'=2] {'a','b'}", (32, 8, ("data", "tensor"))),
        (
            "f32[8] all-reduce(%x), replica_groups=mesh['a'=2,'b'=1,'c'=4], device_ids=([4,2]T(1,0)) {'c'}, z={1}",
            (32, 4, ("data",)),
        ),
        (
            "f32[8] all-reduce(%x), replica_groups=mesh['a'=2,'b'=1,'c'=4], device_ids=([4,2]T(1,0)) {'a'}, z={1}",
            (32, 2, ("tensor",)),
        ),
        ("((f32[8]), f32[8]) all-reduce-start(%x), replica_groups={}", (32, 8, ("data", "tensor"))),
        ("((f32[8], s8[4]), (f32[8], s8[4])) all-reduce-start(%x), replica_groups=[4,2]<=[8]", (36, 2, ("tensor",))),
        ("((f32[8]{0}), f32[2]{0}) reduce-scatter-start(%x), replica_groups={{0,2,4,6}}", (32, 4, ("data",))),
        ("(f32[2], f32[8]) all-gather-start(%x), replica_groups=[2,4]<=[4,2]T(1,0)", (32, 4, ("data",))),
        (
            "((bf16[8], bf16[4]), (bf16[8], bf16[4])) collective-permute-start(%x, %z), source_target_pairs={{0,2}}",
            (24, 2, ("data",)),
        ),
        (
            "((s8[8], s8[4]), (s8[8], s8[4]), u32[], u32[]) collective-permute-start(%x), source_target_pairs={{0,1}}",
            (12, 2, ("tensor",)),
        ),
        ("(u32[], u32[]) collective-permute-start(%x), source_target_pairs={{0,1}}", (4, 2, ("tensor",))),
        ("bf16[2,3]{1,0:T(8,128)(2,1)S(1)} reduce-scatter(%x), replica_groups=[4,2]<=[8]", (24, 2, ("tensor",))),
        ("(pred[8], s4[8], f8e4m3fn[8]) all-to-all(%x), replica_groups=[4,2]<=[8]", (20, 2, ("tensor",))),
    ],
)
def test_notations(line, expected):
    text = f"ENTRY %main (x: f32[8]) -> f32[8] {{\n  ROOT %y = {line}\n}}"
    (found,) = hlo.collectives(text, GRID)
    assert (found.bytes, found.devices, found.axes) == expected


def test_an_unknown_notation_is_refused():
    text = "ENTRY %main (x: f32[8]) -> f32[8] {\n  ROOT %y = f32[8] all-reduce(%x), replica_groups=everyone\n}"
    with pytest.raises(ValueError, match="cannot read which devices take part"):
        hlo.collectives(text, GRID)


def test_bytes_on_the_wire():
    """Of a ring of 4: three quarters of the whole, twice where it is summed and handed back."""
    one = functools.partial(hlo.Collective, bytes=400, largest=400, devices=4, axes=("data",), count=1, where="")
    kinds = {"all-gather": 300, "reduce-scatter": 300, "all-to-all": 300, "all-reduce": 600, "collective-permute": 400}
    assert {kind: one(kind).bytes_sent for kind in kinds} == kinds


def test_group_adds_counts():
    one = hlo.Collective("all-gather", 8, 8, 2, ("data",), 3, "here")
    found = hlo.group([one, dataclasses.replace(one, count=4, where="there"), dataclasses.replace(one, bytes=16)])
    assert [(each.bytes, each.count, each.where) for each in found] == [(8, 7, "here"), (16, 3, "here")]


ROWS, LENGTH, VOCAB = 8 * 13, 8 * 11, 960
SHAPE = {"d_model": 120, "num_heads": 12, "d_ff": 240, "num_encoder_layers": 3, "num_decoder_layers": 3}
MESHES = [pytest.param("data=4,tensor=2", marks=pytest.mark.full), "fsdp=4,tensor=2"]
MORE = ["data=8", "fsdp=8", "data=2,fsdp=2,tensor=2", "slice=2,data=2,tensor=2", "data=2,context=2,tensor=2"]
MORE += ["context=8", "fsdp=2,context=4"]


@pytest.mark.parametrize("text", [*MESHES, *(pytest.param(text, marks=pytest.mark.full) for text in MORE)])
@pytest.mark.parametrize("parts", [1, pytest.param(2, marks=pytest.mark.full)])
def test_the_step_sends_no_whole_batch(text, parts):
    """Nothing that is sent has all tokens of a batch, or is larger than a parameter or a device's activations.

    And the table that source, target and output share is gathered once, and its gradient summed once.
    """
    config = models.EncoderDecoderConfig(VOCAB, VOCAB, norm_position="pre", compute_dtype="bfloat16", **SHAPE)
    placement = sharding.Placement(sharding.mesh(text))
    shape = ROWS * parts, LENGTH, LENGTH
    program = lowered(config, placement.mesh, shape, parts=parts).compile().as_text()
    assert [dims for dims in arrays_sent(program) if ROWS * LENGTH in products(dims)] == []
    sizes = placement.mesh.shape
    found = hlo.collectives(program, sizes)
    totals = collections.Counter()
    for one in found:
        totals[one.kind, one.devices] += one.bytes * one.count
    assert totals == reader.sent(program)
    parameter = VOCAB * SHAPE["d_model"] * 4
    activation = ROWS // placement.num_batch_shards * LENGTH * SHAPE["d_ff"] * 4
    activation //= sizes.get("tensor", 1) * sizes.get("context", 1)
    assert max(parameter, activation) < ROWS * LENGTH * SHAPE["d_model"] * 4
    assert found[0].largest <= max(parameter, activation), found[0]
    assert found[0].largest > activation // 4  # the limit is no idle one
    table = parameter // sizes.get("tensor", 1)
    sent = collections.Counter()
    for one in found:
        ring = one.kind == "collective-permute"
        if one.largest >= table and "tensor" not in one.axes and not ring:
            sent[one.kind, one.axes] += one.bytes * one.count / parts
    gathered = {axes: sent.pop((kind, axes)) for kind, axes in list(sent) if kind == "all-gather"}
    assert list(gathered) == ([("fsdp",)] if "fsdp" in text else [])
    assert all(size in (table, table / parts) for size in gathered.values())  # for each part, or for all of them
    # Of one sum over two axes XLA may make two, one after the other; with them go a few sums of the loss.
    along = [axis for _, axes in sent for axis in axes]
    assert sorted(along) == sorted(set(sizes) - {"tensor"})
    assert all(table <= size < 1.1 * table for size in sent.values()), sent


def arrays_sent(program):
    """Dimensions of every array that an exchange of a compiled program gives out, read without the parser."""
    return [dims for _, _, results, _ in reader.exchanges(program) for _, dims in results]


def products(dims):
    """Of neighboring dimensions; 11 and 13 identify tokens, because nothing else has these sizes."""
    return {math.prod(dims[i:j]) for i in range(len(dims)) for j in range(i + 1, len(dims) + 1)}


@pytest.mark.parametrize("text", MESHES)
@pytest.mark.parametrize("form", [functional.CrossEntropy(), functional.RDrop(weight=5.0)])
def test_the_loss_sends_its_table_once(text, form):
    """For any number of chunks, the table is gathered before them, and its gradient summed after them."""
    mesh = sharding.mesh(text)
    place = lambda shape, dtype, *names: jax.ShapeDtypeStruct(
        shape, dtype, sharding=NamedSharding(mesh, sharding.spec(names, sharding.RULES, mesh))
    )
    x = place((ROWS, LENGTH, 64), jnp.float32, "batch", "length", "model")
    table, labels = place((VOCAB, 64), jnp.float32, "vocab", "model"), place((ROWS, LENGTH), jnp.int32, "batch", None)
    loss = lambda x, table, labels: sharding.linear_loss(x, table, labels, form, chunk=2 * ROWS)[0]
    gradient = jax.jit(jax.value_and_grad(sharding.with_axis_rules(sharding.RULES, mesh)(loss), (0, 1)))
    found = hlo.collectives(gradient.lower(x, table, labels).compile().as_text(), mesh.shape)
    assert max(one.count for one in found) == LENGTH // 2
    large = [one for one in found if one.largest >= VOCAB * 64]
    assert [one.count for one in large] == [1] * len(large)
    assert 1 <= len(large) <= 2
