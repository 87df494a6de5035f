"""Plans for GPUs, by hand where the CUDA wheels are installed (5 GB): the compiler's own cuDNN and NCCL, no GPU."""

import dataclasses
import importlib.util
import pathlib

import pytest

from jaxformer import sharding
from jaxformer.planning import topology
from jaxformer.planning.forecast import forecast
from jaxformer.tasks.planner import planned_setup, workload
from jaxformer.tasks.registry import resolve

PLACING = sharding.Placement.with_axis_rules.__name__  # before the skip, so that a rename fails everywhere
pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]
if not any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
    pytest.skip("no CUDA wheels, which compile for GPUs without one", allow_module_level=True)

EXPERIMENTS = pathlib.Path(__file__).parents[2] / "experiments" / "translation" / "wmt14.py"
MIB = 2**20


def shallow(mesh):
    """Transformer-big with one and one layers."""
    config = resolve(f"{EXPERIMENTS}:big_en_de")
    return dataclasses.replace(
        config, mesh=mesh, model=dataclasses.replace(config.model, num_encoder_layers=1, num_decoder_layers=1)
    )


@pytest.mark.parametrize("constrained", [True, False])
def test_big_on_32(monkeypatch, constrained):
    """Within its limits; without the activations placed, beyond every one of them."""
    if not constrained:
        monkeypatch.setattr(sharding.Placement, PLACING, lambda self, function: function)
    mesh = topology.mesh("h100:4x8", "fsdp=8,tensor=4")
    found = forecast(workload(shallow("fsdp=8,tensor=4"), mesh, shape=(512, 256)), "h100:4x8", mesh)
    sent = sum(one.bytes_sent * one.count for one in found.collectives) / MIB
    figures = found.memory.peak / MIB, found.collectives[0].largest / MIB, sent
    assert found.memory.fits
    assert {one.axes for one in found.collectives} >= {("fsdp",), ("tensor",)}
    within = [figure <= limit for figure, limit in zip(figures, (1940, 70, 1080), strict=True)]
    assert within == [constrained] * 3, figures


def test_attention_is_cudnns():
    """Forward and backward, of the training step that is compiled for H100, padding included."""
    config = shallow("data=4,fsdp=8")
    lowered, _ = planned_setup(config, topology.mesh("h100:4x8", config.mesh)).lower(512, 256)
    text = lowered.compile().as_text()
    assert text.count('custom_call_target="__cudnn$fmhaScaleBiasSoftmax"') == 3
    assert text.count('custom_call_target="__cudnn$fmhaScaleBiasSoftmaxBackward"') == 3
