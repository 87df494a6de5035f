"""Golden limits of the memory and traffic of a pod: a lost sharding constraint fails here, not on the pod.


Models have two and two layers of the real widths: depth adds to the state, not to any one exchange.
"""

import dataclasses
import functools
import pathlib

import pytest

from jaxformer import sharding
from jaxformer.cli.main import main
from jaxformer.planning import topology as machines
from jaxformer.planning.forecast import forecast
from jaxformer.tasks.planner import plan, workload
from jaxformer.tasks.registry import configure, resolve

PLACING = sharding.Placement.with_axis_rules.__name__  # before the skip, so that a rename fails everywhere
pytest.importorskip("libtpu", reason="no libtpu, which compiles for TPUs without one")
pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

EXPERIMENTS = pathlib.Path(__file__).parents[2] / "experiments" / "translation" / "wmt14.py"
MIB = 2**20
CASES = {
    "big-128": ("big", "v5p:4x4x8", "fsdp=32,tensor=4", 512, 256),
    "large-128": ("large", "v5p:4x4x8", "fsdp=32,tensor=4", 1024, 512),
    "large-512": ("large", "v5p:8x8x8", "fsdp=128,tensor=4", 1024, 512),
}
# MiB of a device, a tenth above the measurement: peak, largest array sent, sum of arrays sent. The largest is the
# device's share of the table in float32, whose gradient is summed once; the second table's worth would show in "sent".
LIMITS = {
    "big-128": (512, 37, 485),
    "large-128": (1720, 74, 3790),
    "large-512": (504, 74, 1532),
}


def compiled(config, topology, shape):
    mesh = machines.mesh(topology, config.mesh)
    return forecast(workload(config, mesh, shape=shape), topology, mesh)


@functools.cache
def planned(case, removed=""):
    """Peak, largest array and sum of arrays that a device sends, in MiB; with a part of the placement `removed`."""
    name, topology, mesh, rows, length = CASES[case]
    config = resolve(f"{EXPERIMENTS}:{name}_en_de")
    model = dataclasses.replace(config.model, num_encoder_layers=2, num_decoder_layers=2)
    config = dataclasses.replace(config, mesh=mesh, model=model)
    with pytest.MonkeyPatch.context() as patch:
        if removed == "activations":
            patch.setattr(sharding.Placement, PLACING, lambda self, function: function)
        rules = {name: cut for name, cut in sharding.RULES.items() if name != removed}
        patch.setattr("jaxformer.sharding.placement.RULES", rules)
        found = compiled(config, topology, (rows, length))
    sent = sum(one.bytes_sent * one.count for one in found.collectives)
    return found.memory.peak / MIB, found.collectives[0].largest / MIB, sent / MIB


@pytest.mark.parametrize("case", CASES)
def test_golden_limits(case):
    assert all(found < limit for found, limit in zip(planned(case), LIMITS[case], strict=True)), planned(case)


@pytest.mark.parametrize(("removed", "limit"), [("model", "peak"), ("vocab", "largest"), ("activations", "sent")])
def test_a_lost_constraint_exceeds_the_limit(removed, limit):
    """Unsharded parameters; a table with half as many shards; activations placed by the compiler.

    The last one exceeds no other limit: the compiler follows the placed state and batch, and sends in pieces.
    """
    number = ("peak", "largest", "sent").index(limit)
    found = planned("big-128", removed)
    assert found[number] > 1.4 * LIMITS["big-128"][number], found


def test_a_mesh_that_cuts_the_length():
    """Keys and values go around a ring, as often as the attentions need; of no collective is the number unknown.

    The compiler spreads some gathers over the loops of attention, whose iterations depend on the padding.
    """
    config = resolve(f"{EXPERIMENTS}:base_en_de")
    model = dataclasses.replace(config.model, num_encoder_layers=1, num_decoder_layers=1)
    config = dataclasses.replace(config, mesh="fsdp=2,context=2,tensor=4", model=model)
    found = compiled(config, "v5e:4x4", (64, 512))
    assert found.uncounted_loops == []
    rings = [one for one in found.collectives if one.kind == "collective-permute" and one.axes == ("context",)]
    shard = 64 // 2 * 512 // 2 * config.model.d_model // 4  # numbers of a device's keys
    assert {one.bytes for one in rings} == {2 * shard, 4 * shard}
    # Three attentions, each with keys and values: one hop forward, two backward, and two of their gradients in float32.
    assert sum(one.count for one in rings if one.bytes == 2 * shard) == 3 * 2 * (1 + 2)
    assert sum(one.count for one in rings if one.bytes == 4 * shard) == 3 * 2 * 2
    sent = sum(one.bytes_sent * one.count for one in found.collectives) / MIB
    assert found.memory.peak / MIB < 608, found.memory.peak
    assert sent < 320, sent


def test_slices_exchange_gradients_only():
    """Along the slow network goes a sum of as many bytes as a device holds of the parameters; of activations, none."""
    config = resolve(f"{EXPERIMENTS}:base_en_de")
    model = dataclasses.replace(config.model, num_encoder_layers=1, num_decoder_layers=1)
    config = dataclasses.replace(config, mesh="slice=2,fsdp=8", model=model)
    found = compiled(config, "v5p:2x2x2", (1024, 256))
    across = [one for one in found.collectives if "slice" in one.axes]
    assert {one.kind for one in across} == {"all-reduce"}
    sent = sum(one.bytes * one.count for one in across)
    assert found.memory.parameters / 2 < sent < 1.05 * found.memory.parameters
    activation = 1024 // 16 * 256 * config.model.d_model * 2
    assert activation > found.memory.parameters  # one of them would be over the limit


def test_a_step_that_does_not_fit(capsys):
    """The compiler runs out of memory: the forecast has the excess and remedies, and no collectives."""
    given = ["--topology", "v5e:2x2", "--mesh", "fsdp=4", "--batch", "2048x512"]
    small = ["--model.num_encoder_layers", "2", "--model.num_decoder_layers", "2"]
    assert main(["plan", f"{EXPERIMENTS}:large_en_de", *given, *small]) == 2
    out = capsys.readouterr().out
    assert "IT DOES NOT FIT" in out
    assert "what would make it fit\n  --train.num_microbatches " in out
    assert "collectives" not in out


def test_a_language_model():
    """Planned by the same runner: its step, on the mesh, with its own batch."""
    config = configure("language_model", mesh="fsdp=4,tensor=2", model={"vocab_size": 72})
    result, hints = plan(config, "v5e:2x4")
    assert (result.batch, result.tokens, result.memory.fits, hints) == ((32, 128), 32 * 128, True, [])
    assert {collective.axes for collective in result.collectives} >= {("fsdp",), ("tensor",)}
