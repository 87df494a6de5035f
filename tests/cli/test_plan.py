"""``jaxformer plan``: its output and its refusals."""

import dataclasses
import json

import jax
import pytest

from jaxformer.cli import main as cli
from jaxformer.cli import plan
from jaxformer.config import to_data
from jaxformer.planning import topology
from jaxformer.tasks import planner, registry
from tests.planning.small import tight
from tests.tasks.plans import CONFIG, budget


@pytest.fixture
def here(monkeypatch):
    """Eight CPU devices in place of a slice."""
    monkeypatch.setattr(topology, "devices", lambda name, *, slices: jax.devices())


@pytest.mark.parametrize("options", [pytest.param([], marks=pytest.mark.full), ["--json"]])
def test_command(here, tmp_path, capsys, options):
    path = tmp_path / "config.json"
    model = {"vocab_size": 72, "d_model": 32, "num_heads": 4, "d_ff": 64, "num_layers": 1}
    config = registry.configure("language_model", mesh=CONFIG.mesh, model=model)
    path.write_text(json.dumps({"task": "language_model", "config": to_data(config)}))
    arguments = ["plan", str(path), "--topology", "v5e:2x4", "--batch", "24x16", *options]
    assert cli.main(arguments) == 0
    said = capsys.readouterr().out
    if options:
        data = json.loads(said)
        assert data["batch"] == [24, 16]
        assert data["fits"]
        assert data["mesh"] == {"fsdp": 4, "tensor": 2}
        assert data["utilization"]["serial"] <= data["utilization"]["overlapped"] <= 1
    else:
        assert "it fits" in said
        assert "NOT a measurement" in said
        assert "all-reduce along tensor" in said


def test_remedies():
    """State of 6 of 16 GiB, 34 of temporaries for 8 rows a device and part: 2 of them fit, 3 do not."""
    found = tight(2, 4, 40)
    assert not found.memory.fits
    text = plan.report("tight", found, planner.remedies(budget(96 * 48), found))
    assert "40.000  peak, of the 16 that JAX takes: IT DOES NOT FIT" in text
    assert "--model.remat True" in text
    assert "--train.num_microbatches 12: the batch in 12 parts, about 14.5 GiB" in text
    assert f"--data.tokens_per_batch {24 * 48}: a smaller batch, about 14.5 GiB" in text
    assert "fsdp=8 instead of 4" in text
    assert "8        6.00  all-gather along fsdp" in text


def test_loops_that_depend_on_data_are_named():
    """The rest is printed, and the bytes that they send are a lower bound."""
    found = tight(2, 4, 10)
    looped = dataclasses.replace(found.collectives[0], kind="all-reduce", count=3, uncounted_loops=("step/while",))
    found = dataclasses.replace(found, collectives=(*found.collectives, looped))
    text = plan.report("tight", found, [])
    assert "10.000  peak, of the 16 that JAX takes: it fits" in text
    assert "collectives of a step: at least 10.5 MiB sent by each device" in text  # 8 x 0.75 + 3 x 1.5
    assert "4.50  all-reduce along fsdp, for each iteration of a loop" in text
    assert "network at least 3000.00" in text
    assert text.count("    step/while") == 1
    assert plan.as_data(found, [])["uncounted_loops"] == ["step/while"]
    certain = plan.report("tight", tight(2, 4, 10), [])
    assert certain.count("at least") == 1  # memory, whose time is a limit always
    assert "iteration" not in certain


def test_collectives_that_cannot_be_read():
    found = dataclasses.replace(tight(2, 4, 10), collectives=(), estimate=None, collectives_error="cannot read x")
    text = plan.report("tight", found, [])
    assert "10.000  peak, of the 16 that JAX takes: it fits" in text
    assert "collectives and time of a step: unknown; cannot read x" in text
    assert "arithmetic: 1.00 TFLOP a step" in text
    assert "estimate" not in text


def test_frozen_parameters_are_pointed_out():
    """The operations are those of a full step."""
    found = dataclasses.replace(tight(2, 4, 10), has_frozen=True)
    limit = "frozen parameters save a part of it, but all of it is counted: compute is an upper limit"
    assert limit in plan.report("tight", found, [])
    assert plan.as_data(found, [])["has_frozen"]
    assert limit not in plan.report("tight", tight(2, 4, 10), [])


def test_rates_have_the_unit_of_the_loss():
    """4,608 images in 3 seconds, or in 5 if computation and network do not overlap."""
    found = dataclasses.replace(tight(2, 4, 10), unit="images")
    assert plan.report("tight", found, []).endswith(" of the peak, 1,536 to 922 images/s")


def test_a_mesh_that_does_not_divide_a_parameter(here, tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"task": "translation", "config": to_data(CONFIG)}))
    assert cli.main(["plan", str(path), "--topology", "v5e:2x4", "--mesh", "tensor=8"]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "['stack']['layers']['attention']['kernel'] of shape [2, 32, 4, 3, 8]: dimension 2 (heads)" in said
