"""A forecast is of the step that is trained; here for devices that there are, so that the two can be compared."""

import dataclasses
import json

import jax
import pytest

from jaxformer import models, sharding
from jaxformer.cli import main as cli
from jaxformer.cli import plan
from jaxformer.config import to_data
from jaxformer.models.costs import encoder_decoder_parameters, encoder_decoder_training_flops
from jaxformer.sharding import topology
from jaxformer.sharding.estimate import Roofline
from jaxformer.sharding.hlo import Collective
from jaxformer.tasks.planning import Forecast, Memory, forecast, remedies
from jaxformer.tasks.translation_config import DataConfig, TrainConfig, TranslationConfig
from jaxformer.tasks.translation_model import make_model

MODEL = models.EncoderDecoderConfig(width=32, num_heads=4, hidden=64, encoder_depth=2, decoder_depth=2)
CONFIG = TranslationConfig(
    mesh="fsdp=4,tensor=2",
    model=MODEL,
    data=DataConfig(vocab_size=400, token_budget=1000, max_length=48),
    train=TrainConfig(accumulate=3),
)


@pytest.fixture
def here(monkeypatch):
    """Eight CPU devices are a slice."""
    monkeypatch.setattr(topology, "devices", lambda name, *, slices: jax.devices())


def test_forecast(here):
    found = forecast(CONFIG, "v5e:2x4")
    assert found.batch == (24, 48, 48)  # 16 of 1000 / 48, in multiples of 8; filled up for 4 devices, 3 parts
    model = dataclasses.replace(MODEL, source_vocab_size=400, target_vocab_size=400)
    assert found.parameters == encoder_decoder_parameters(model)
    assert found.flops == encoder_decoder_training_flops(model, *found.batch)
    assert {one.axes for one in found.collectives} >= {("fsdp",), ("tensor",)}
    assert max(one.count for one in found.collectives) % 3 == 0  # in each layer of each part
    state = make_model(CONFIG, 400, sharding.Placement(sharding.mesh(CONFIG.mesh))).new_state()
    on_one = lambda tree: sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(tree))
    assert found.memory.parameters == on_one(state.params)
    assert found.memory.optimizer == on_one(state.optimizer)
    assert found.memory.temporaries > 0
    assert found.memory.fits
    assert found.utilisation(found.estimate.compute) == pytest.approx(1)
    assert found.utilisation(2 * found.estimate.compute) == pytest.approx(0.5)


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_command(here, tmp_path, capsys, options):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"task": "translation", "config": to_data(CONFIG)}))
    arguments = ["plan", str(path), "--topology", "v5e:2x4", "--batch", "24x16", "--train.accumulate", "1", *options]
    assert cli.main(arguments) == 0
    said = capsys.readouterr().out
    if options:
        data = json.loads(said)
        assert data["batch"] == [24, 16, 16]
        assert data["fits"]
        assert data["mesh"] == {"fsdp": 4, "tensor": 2}
        assert data["utilisation"]["serial"] <= data["utilisation"]["overlapped"] <= 1
    else:
        assert "it fits" in said
        assert "NOT a measurement" in said
        assert "all-reduce along tensor" in said


def tight(parameters, optimizer, peak):
    memory = Memory(parameters << 30, optimizer << 30, peak << 30, 16 << 30)
    one = Collective("all-gather", 2**20, 2**20, 4, ("fsdp",), 8, "")
    return Forecast("v5e:2x4", {"fsdp": 4, "tensor": 2}, (64, 48, 48), 10, 1e12, memory, (one,), Roofline(1, 2, 3))


def test_remedies():
    """State of 6 of 16 GiB, 34 of temporaries: a quarter of these fits, half does not."""
    found = tight(2, 4, 40)
    assert not found.memory.fits
    text = plan.report("tight", found, remedies(CONFIG, found))
    assert "40.000  peak, of the 16 that JAX takes: IT DOES NOT FIT" in text
    assert "--model.remat True" in text
    assert "--train.accumulate 12: the batch in 12 parts, about 14.5 GiB" in text
    assert "--data.token_budget 250" in text
    assert "fsdp=8 instead of 4" in text
    assert "8        6.00  all-gather along fsdp" in text


def test_remedies_of_a_state_that_is_too_large():
    """A smaller batch would not help."""
    config = dataclasses.replace(CONFIG, model=dataclasses.replace(MODEL, remat=True))
    (only,) = remedies(config, tight(8, 16, 40))
    assert only == "fsdp=8 instead of 4 in the mesh: half of the state's 24.0 GiB a device"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--topology", "v5e:2x5"], "libtpu|unknown topology"),
        (["--topology", "v5x:2x4"], "unknown topology 'v5x:2x4'; near it are v5e:2x4"),
        (["--topology", "v5e:2x4", "--batch", "12"], "--batch '12': expected ROWSxLENGTH"),
        (["--topology", "v5e:2x4", "--mesh", "fsdp"], "expected axis=size|libtpu"),
        (["--topology", "v5e:2x4", "--modle.width", "3"], "unknown setting --modle.width; did you mean 'model.width'?"),
    ],
)
def test_bad_input_is_one_line(capsys, options, message):
    assert cli.main(["plan", "demo", *options]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert any(part in said for part in message.split("|"))


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ("fsdp=4", "mesh 'fsdp=4' has fsdp 4 = 4 devices, but there are 8"),
        (
            "tensor=8",
            "params['decoder']['layers']['attention']['kernel'] of shape [2, 32, 4, 3, 8]: dimension 2 (heads)",
        ),
    ],
)
def test_a_mesh_that_does_not_fit(here, tmp_path, capsys, mesh, message):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"task": "translation", "config": to_data(CONFIG)}))
    assert cli.main(["plan", str(path), "--topology", "v5e:2x4", "--mesh", mesh]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert message in said
