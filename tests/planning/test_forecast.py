"""A forecast is of the step that is trained; here for devices that there are, so that the two can be compared."""

import dataclasses
import json
import math
import pathlib
import re
from types import SimpleNamespace

import jax
import pytest
from jaxformer.tasks.translation_model import make_model

from benchmarks import scaling
from jaxformer import models, sharding
from jaxformer.cli import main as cli
from jaxformer.cli import plan
from jaxformer.cli.arguments import override
from jaxformer.config import to_data
from jaxformer.models.costs import (
    encoder_decoder_computed_flops,
    encoder_decoder_parameters,
    encoder_decoder_training_flops,
)
from jaxformer.planning import forecast as planning
from jaxformer.planning import hlo, topology
from jaxformer.planning.forecast import Forecast, Memory, forecast, remedies
from jaxformer.planning.hlo import Collective
from jaxformer.planning.roofline import Roofline
from jaxformer.tasks.translation import DataConfig, TranslationConfig
from jaxformer.training.config import TrainConfig

ROOT = pathlib.Path(__file__).parents[2]
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
    assert found.memory.temporaries > found.memory.parameters  # of which the gradient alone has as many
    assert found.memory.fits
    assert found.computed == encoder_decoder_computed_flops(model, *found.batch)
    assert found.utilization(found.estimate.compute) == pytest.approx(found.flops / found.computed)
    assert found.utilization(2 * found.estimate.compute) == pytest.approx(found.flops / found.computed / 2)


@pytest.mark.parametrize("norm_position", ["pre", pytest.param("post", marks=pytest.mark.full)])
@pytest.mark.parametrize("remat", [False, True])
def test_arithmetic_is_that_of_the_program(norm_position, remat):
    """Every product of the compiled step, on one device and as often as it runs; to the last operation."""
    config = dataclasses.replace(CONFIG, model=dataclasses.replace(MODEL, norm_position=norm_position, remat=remat))
    model = make_model(config, 400, sharding.Placement(sharding.mesh("data=1", jax.devices()[:1])))
    lowered, shape = model.lower((6, 24, 40))
    assert encoder_decoder_computed_flops(model.net.config, *shape) == products(lowered.compile().as_text())


def products(text):
    """Operations of all matrix products in a program."""
    program, found = hlo._parse(text), 0

    def visit(name, times):
        nonlocal found
        for line in program[name].values():
            for role, callee in hlo._callees(line):
                turns = hlo._turns(program, program[name], line) if role in ("body", "condition") else 1
                visit(callee, times * turns)
            if product := re.match(r"(\w+\[[\d,]*\]).* dot\(%?([\w.\-]+),.*lhs_contracting_dims=\{(\d+)\}", line):
                contracted = sizes(program[name][product[2]])[int(product[3])]
                found += times * 2 * math.prod(sizes(product[1])) * contracted

    visit("", 1)
    return found


def sizes(array):
    return [int(size) for size in re.match(r"\w+\[([\d,]*)\]", array)[1].split(",") if size]


@pytest.mark.parametrize(("platform", "peak"), [("tpu", 7), ("gpu", 53), ("cpu", 53)])
def test_temporaries_are_one_buffer_but_on_tpus(platform, peak):
    said = {"argument": 20, "output": 15, "alias": 12, "temp": 30}
    about = SimpleNamespace(**{f"{name}_size_in_bytes": size for name, size in said.items()})
    about.peak_memory_in_bytes, about.generated_code_size_in_bytes = 7, 1000
    program = SimpleNamespace(memory_analysis=lambda: about)
    assert planning._compiled(SimpleNamespace(compile=lambda: program), 0, platform) == (program, peak + 1000)


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


def tight(parameters, optimizer, peak, rows=96):
    memory = Memory(parameters << 30, optimizer << 30, peak << 30, 16 << 30)
    one = Collective("all-gather", 2**20, 2**20, 4, ("fsdp",), 8, "")
    batch, mesh = (rows, 48, 48), {"fsdp": 4, "tensor": 2}
    return Forecast("v5e:2x4", mesh, batch, 10, 1e12, 1.1e12, memory, (one,), Roofline(1, 2, 3))


def budget(tokens, **model):
    """CONFIG with so many tokens a batch; three parts, of which each of four devices has a piece."""
    data = dataclasses.replace(CONFIG.data, tokens_per_batch=tokens)
    return dataclasses.replace(CONFIG, data=data, model=dataclasses.replace(MODEL, **model))


def test_remedies():
    """State of 6 of 16 GiB, 34 of temporaries for 8 rows a device and part: 2 of them fit, 3 do not."""
    found = tight(2, 4, 40)
    assert not found.memory.fits
    text = plan.report("tight", found, remedies(budget(96 * 48), found))
    assert "40.000  peak, of the 16 that JAX takes: IT DOES NOT FIT" in text
    assert "--model.remat True" in text
    assert "--train.accumulate 12: the batch in 12 parts, about 14.5 GiB" in text
    assert f"--data.tokens_per_batch {24 * 48}: a smaller batch, about 14.5 GiB" in text
    assert "fsdp=8 instead of 4" in text
    assert "8        6.00  all-gather along fsdp" in text


@pytest.mark.parametrize("shape", [None, (90, 48, 48)])
def test_remedies_can_be_followed(here, shape):
    """Each gives as many rows a device and part as its bytes are promised for."""
    config, found = budget(96 * 48), tight(2, 4, 40)
    for said in remedies(config, found, shape=shape)[1:3]:
        option, value = said.partition(":")[0].split()
        followed, given = config, shape
        if option == "--batch":
            given = plan._shape(value)
        else:
            followed = override(config, [option, value])
        assert (option == "--batch") == (shape is not None) or option == "--train.accumulate"
        rows = forecast(followed, "v5e:2x4", shape=given).batch[0]
        assert rows == 4 * 2 * followed.train.accumulate
        assert "about 14.5 GiB" in said


def test_remedies_that_change_nothing_are_not_named():
    """Nothing is cut below a row, no budget set that training would refuse."""
    config = budget(12 * 48, remat=True)
    (only,) = remedies(config, tight(2, 1, 40, rows=12))  # a row a device and part already
    assert only.startswith("fsdp=8 instead of 4")
    (only,) = remedies(budget(96 * 48, remat=True), tight(2, 1, 200))  # a row does not fit
    assert only.startswith("fsdp=8 instead of 4")
    one = dataclasses.replace(budget(8 * 48, remat=True), train=TrainConfig())
    (only,) = remedies(one, tight(2, 1, 20, rows=8))  # 4 rows on 4 devices would do, but are too few for training
    assert only.startswith("--train.accumulate 2: the batch in 2 parts, about 11.5 GiB")
    batch = remedies(one, tight(2, 1, 20, rows=8), shape=(8, 48, 48))
    assert batch[1].startswith("--batch 4x48: a smaller batch, about 11.5 GiB")


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


def test_the_scale_study_follows_from_what_the_compiler_said(monkeypatch):
    """The tables of launch/SCALING.md, row by row."""
    monkeypatch.chdir(ROOT)  # for `experiments`
    text = (ROOT / "launch" / "SCALING.md").read_text()
    plans = scaling.read(ROOT / "benchmarks" / "results" / "2026-11-21-scaling.json")
    assert len(plans) == len(scaling.cases())
    for model in ("big", "large"):
        assert scaling.table([found for found in plans if found["case"][0] == model]) in text


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ("fsdp=4", "mesh 'fsdp=4' has fsdp 4 = 4 devices, but there are 8"),
        (
            "tensor=8",
            "params['decoder']['stack']['layers']['attention']['kernel'] of shape "
            "[2, 32, 4, 3, 8]: dimension 2 (heads)",
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
