"""``jaxformer plan``: what it prints, what it refuses, and advice that can be followed."""

import dataclasses
import json

import jax
import pytest

from jaxformer import models
from jaxformer.cli import main as cli
from jaxformer.cli import plan
from jaxformer.cli.arguments import override
from jaxformer.config import to_data
from jaxformer.planning import topology
from jaxformer.tasks import planner
from jaxformer.tasks.planner import workload
from jaxformer.tasks.translation import DataConfig, TranslationConfig
from jaxformer.training.config import TrainConfig
from tests.planning.small import tight

MODEL = models.EncoderDecoderConfig(d_model=32, num_heads=4, d_ff=64, num_encoder_layers=2, num_decoder_layers=2)
CONFIG = TranslationConfig(
    mesh="fsdp=4,tensor=2",
    model=MODEL,
    data=DataConfig(vocab_size=400, tokens_per_batch=1000, max_length=48),
    train=TrainConfig(accumulate=3),
)


@pytest.fixture
def here(monkeypatch):
    """Eight CPU devices are a slice."""
    monkeypatch.setattr(topology, "devices", lambda name, *, slices: jax.devices())


def test_the_longest_batch(here):
    """16 rows of 1000 / 48, in multiples of 8; filled up for 4 devices and 3 parts."""
    step = workload(CONFIG, topology.mesh("v5e:2x4", CONFIG.mesh))
    assert step.costs.batch == (24, 48, 48)
    assert step.costs.description == "24 x 48 source and 24 x 48 target tokens"
    assert step.costs.tokens == 24 * 48


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
        assert data["utilization"]["serial"] <= data["utilization"]["overlapped"] <= 1
    else:
        assert "it fits" in said
        assert "NOT a measurement" in said
        assert "all-reduce along tensor" in said


def budget(tokens, **model):
    """CONFIG with so many tokens a batch; three parts, of which each of four devices has a piece."""
    data = dataclasses.replace(CONFIG.data, tokens_per_batch=tokens)
    return dataclasses.replace(CONFIG, data=data, model=dataclasses.replace(MODEL, **model))


def test_remedies():
    """State of 6 of 16 GiB, 34 of temporaries for 8 rows a device and part: 2 of them fit, 3 do not."""
    found = tight(2, 4, 40)
    assert not found.memory.fits
    text = plan.report("tight", found, planner.remedies(budget(96 * 48), found))
    assert "40.000  peak, of the 16 that JAX takes: IT DOES NOT FIT" in text
    assert "--model.remat True" in text
    assert "--train.accumulate 12: the batch in 12 parts, about 14.5 GiB" in text
    assert f"--data.tokens_per_batch {24 * 48}: a smaller batch, about 14.5 GiB" in text
    assert "fsdp=8 instead of 4" in text
    assert "8        6.00  all-gather along fsdp" in text


@pytest.mark.parametrize("shape", [None, (90, 48)])
def test_remedies_can_be_followed(here, shape):
    """Each gives as many rows a device and part as its bytes are promised for."""
    config, found, mesh = budget(96 * 48), tight(2, 4, 40), topology.mesh("v5e:2x4", CONFIG.mesh)
    for said in planner.remedies(config, found, shape=shape)[1:3]:
        option, value = said.partition(":")[0].split()
        followed, given = config, shape
        if option == "--batch":
            given = plan._shape(value)
        else:
            followed = override(config, [option, value])
        assert (option == "--batch") == (shape is not None) or option == "--train.accumulate"
        rows = workload(followed, mesh, shape=given).costs.batch[0]
        assert rows == 4 * 2 * followed.train.accumulate
        assert "about 14.5 GiB" in said


def test_remedies_that_change_nothing_are_not_named():
    """Nothing is cut below a row, no budget set that training would refuse."""
    config = budget(12 * 48, remat=True)
    (only,) = planner.remedies(config, tight(2, 1, 40, rows=12))  # a row a device and part already
    assert only.startswith("fsdp=8 instead of 4")
    (only,) = planner.remedies(budget(96 * 48, remat=True), tight(2, 1, 200))  # a row does not fit
    assert only.startswith("fsdp=8 instead of 4")
    one = dataclasses.replace(budget(8 * 48, remat=True), train=TrainConfig())
    (only,) = planner.remedies(one, tight(2, 1, 20, rows=8))  # training would refuse 4 rows on 4 devices
    assert only.startswith("--train.accumulate 2: the batch in 2 parts, about 11.5 GiB")
    batch = planner.remedies(one, tight(2, 1, 20, rows=8), shape=(8, 48))
    assert batch[1].startswith("--batch 4x48: a smaller batch, about 11.5 GiB")


def test_remedies_of_a_state_that_is_too_large():
    """A smaller batch would not help."""
    config = dataclasses.replace(CONFIG, model=dataclasses.replace(MODEL, remat=True))
    (only,) = planner.remedies(config, tight(8, 16, 40))
    assert only == "fsdp=8 instead of 4 in the mesh: half of the state's 24.0 GiB a device"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--topology", "v5e:2x5"], "libtpu|unknown topology"),
        (["--topology", "v5x:2x4"], "unknown topology 'v5x:2x4'; did you mean 'v5e:2x4'?"),
        (["--topology", "v5e:2x4", "--batch", "12"], "--batch must be ROWSxLENGTH, such as 512x256, got '12'"),
        (["--topology", "h100:2x4", "--mesh", "slice=*,fsdp=4"], "mesh 'slice=*,fsdp=4': say how many slices"),
        (["--topology", "v5e:2x4", "--mesh", "fsdp"], "expected axis=size|libtpu"),
        (
            ["--topology", "v5e:2x4", "--modle.d_model", "3"],
            "unknown setting --modle.d_model; did you mean 'model.d_model'?",
        ),
    ],
)
def test_bad_input_is_one_line(capsys, options, message):
    assert cli.main(["plan", "demo", *options]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert any(part in said for part in message.split("|"))


def test_what_may_stand_before_the_configuration(capsys):
    """The mesh may; a setting that may or may not have a value is told where it belongs."""
    assert cli.main(["plan", "--mesh", "fsdp=4", "demo", "--topology", "v5x:2x4"]) == 2
    assert "unknown topology 'v5x:2x4'" in capsys.readouterr().err
    assert cli.main(["plan", "--topology", "v5e:2x4", "--model.d_model", "32", "demo"]) == 2
    said = capsys.readouterr().err
    assert said.endswith("CONFIG comes before its settings: jaxformer plan CONFIG ... --model.d_model ...\n")


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ("fsdp=4", "mesh 'fsdp=4' has fsdp 4 = 4 devices, but there are 8"),
        (
            "tensor=8",
            "['stack']['layers']['attention']['kernel'] of shape [2, 32, 4, 3, 8]: dimension 2 (heads)",
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
