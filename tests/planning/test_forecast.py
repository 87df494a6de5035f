"""A forecast is of the training step itself; here for existing devices, so the two can be compared."""

import dataclasses
from types import SimpleNamespace

import jax
import pytest

from jaxformer import models, pure, sharding
from jaxformer.modules import stack
from jaxformer.planning import forecast as planning
from jaxformer.planning import topology
from jaxformer.planning.forecast import forecast, make_forecast, remedies
from tests.planning import reader
from tests.planning.small import OPTIMIZER, lowered, maker, step_flops, tight, workload
from tests.sharding.small import network

SIZES = {"d_model": 32, "num_heads": 4, "d_ff": 64, "num_encoder_layers": 2, "num_decoder_layers": 2}
MODEL = models.EncoderDecoderConfig(400, 400, **SIZES)
SHAPE = 24, 48, 48


@pytest.fixture
def here(monkeypatch):
    """Eight CPU devices are a slice."""
    monkeypatch.setattr(topology, "devices", lambda name, *, slices: jax.devices())


@pytest.mark.full
def test_forecast(here):
    mesh = topology.mesh("v5e:2x4", "fsdp=4,tensor=2")
    found = forecast(workload(MODEL, mesh, SHAPE, parts=3), "v5e:2x4", mesh)
    assert (found.batch, found.description, found.tokens) == (SHAPE, "24 pairs", 24 * 48)
    assert found.parameters == pure(models.EncoderDecoder, MODEL).num_parameters
    assert (found.flops, found.computed_flops) == step_flops(MODEL, *SHAPE)
    assert {one.axes for one in found.collectives} >= {("fsdp",), ("tensor",)}
    assert max(one.count for one in found.collectives) % 3 == 0  # in each layer of each part
    placement = sharding.Placement(mesh)
    net = network(placement, MODEL)
    where = placement.state(maker(net), placement.params(net.shapes, net.axes), OPTIMIZER)
    state = maker(net)(shardings=where)
    on_one = lambda tree: sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(tree))
    assert found.memory.parameters == on_one(state.params)
    assert found.memory.optimizer == on_one(state.optimizer)
    assert found.memory.temporaries > found.memory.parameters  # the gradient alone has as many
    assert found.memory.fits
    assert found.utilization(found.estimate.compute) == pytest.approx(found.flops / found.computed_flops)
    assert found.utilization(2 * found.estimate.compute) == pytest.approx(found.flops / found.computed_flops / 2)


@pytest.mark.full
def test_a_step_that_does_not_fit(here, monkeypatch):
    """The compiler refuses, and reports the memory of the program; its collectives are unknown."""
    mesh = topology.mesh("v5e:2x4", "fsdp=4,tensor=2")
    step = workload(MODEL, mesh, SHAPE)

    def refuse():
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Used 20.5G of 15.75G hbm. Exceeded by 4.75G")

    found = forecast(dataclasses.replace(step, lowered=SimpleNamespace(compile=refuse)), "v5e:2x4", mesh)
    assert found.memory.peak == 20.5 * 2**30
    assert not found.memory.fits
    assert (found.collectives, found.estimate) == ((), None)


@pytest.mark.full
def test_a_program_that_cannot_be_read(here, monkeypatch):
    """Its memory is still known, after minutes of compilation."""
    mesh = topology.mesh("v5e:2x4", "fsdp=4,tensor=2")
    step = workload(MODEL, mesh, SHAPE)
    program = step.lowered.compile()
    text = program.as_text().replace("replica_groups=", "replica_groups=new:")
    odd = SimpleNamespace(as_text=lambda: text, memory_analysis=program.memory_analysis)
    found = forecast(dataclasses.replace(step, lowered=SimpleNamespace(compile=lambda: odd)), "v5e:2x4", mesh)
    assert found.memory == forecast(step, "v5e:2x4", mesh).memory
    assert (found.collectives, found.estimate, found.uncounted_loops) == ((), None, [])
    assert found.collectives_error.startswith("cannot read which devices take part in: ")


@pytest.mark.full
@pytest.mark.parametrize("norm_position", ["pre", pytest.param("post", marks=pytest.mark.full)])
@pytest.mark.parametrize(("unrolled", "remat"), [(True, False), (False, False), (False, True)])
def test_flops_equal_those_of_the_program(norm_position, unrolled, remat, monkeypatch):
    """Every product of the compiled step, as often as it runs; exactly."""
    monkeypatch.setattr(stack, "UNROLLED", {"cpu": 2} if unrolled else {})
    config = dataclasses.replace(MODEL, norm_position=norm_position, remat=remat)
    step = lowered(config, sharding.mesh("data=1", jax.devices()[:1]), (6, 24, 40))
    model, computed = step_flops(config, 6, 24, 40)
    assert computed == reader.products(step.compile().as_text())
    assert (computed == model) == unrolled


@pytest.mark.parametrize(("platform", "peak"), [("tpu", 7), ("gpu", 53), ("cpu", 53)])
def test_temporaries_are_one_buffer_except_on_tpus(platform, peak):
    said = {"argument": 20, "output": 15, "alias": 12, "temp": 30}
    about = SimpleNamespace(**{f"{name}_size_in_bytes": size for name, size in said.items()})
    about.peak_memory_in_bytes, about.generated_code_size_in_bytes = 7, 1000
    program = SimpleNamespace(memory_analysis=lambda: about)
    assert planning.compiled(SimpleNamespace(compile=lambda: program), 0, platform) == (program, peak + 1000)


def test_the_estimate_is_that_of_a_device():
    """197 TFLOP/s of a v5e, and twice the peak of the memory at 819 GB/s, by hand."""
    costs = workload_costs(computed_flops=8 * 197e12, compute_dtype="bfloat16", unit="images", has_frozen=True)
    memory = dataclasses.replace(tight(2, 4, 40).memory, peak=819 * 10**9)
    found = make_forecast(costs, "v5e:2x4", {"fsdp": 8}, memory, [])
    assert (found.estimate.compute, found.estimate.memory, found.estimate.network) == (1, 2, 0)
    assert (found.unit, found.has_frozen) == ("images", True)
    assert make_forecast(costs, "v5e:2x4", {"fsdp": 8}, memory, None).estimate is None


def workload_costs(**changes):
    facts = {"batch": SHAPE, "description": "", "tokens": 1, "parameters": 1, "flops": 1.0}
    return planning.Costs(**facts | changes)


def test_remedies():
    """State of 6 of 16 GiB, 34 of temporaries for 8 rows a device and part: 2 of them fit, 3 do not."""
    found = tight(2, 4, 40)
    asked = []
    option = lambda num_rows: asked.append(num_rows) or f"--batch {num_rows}"
    hints = remedies(found, num_rows=96, num_microbatches=3, remat=False, smaller_batch=option)
    assert hints == [
        "--model.remat True: blocks are computed again in the backward pass; up to a third more arithmetic",
        "--train.num_microbatches 12: the batch in 12 parts, about 14.5 GiB if everything else shrinks in proportion",
        "--batch 24: a smaller batch, about 14.5 GiB if everything else shrinks in proportion",
        "fsdp=8 instead of 4 in the mesh: half of the state's 6.0 GiB a device",
    ]
    assert asked == [24]
    refused = remedies(found, num_rows=96, num_microbatches=3, remat=True, smaller_batch=lambda num_rows: "")
    assert refused == [hints[1], hints[3]]
