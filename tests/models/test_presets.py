"""Published models: their counted parameters against the published ones, and the documents' table."""

import json
import math
import pathlib
import subprocess
import sys

import pytest

from jaxformer.cli.sizes import costs_table, parameters_table
from jaxformer.models.presets import PRESETS
from jaxformer.planning.sizes import sizes

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs" / "sizes.md"
SCALING = ROOT / "benchmarks" / "results" / "2026-11-21-scaling.json"
PLANS = ROOT / "benchmarks" / "results" / "2026-11-22-published.json"


@pytest.fixture(scope="module")
def found():
    return {name: sizes(preset) for name, preset in PRESETS.items()}


DOCUMENT = [  # layers, width, heads ("?" for GPT-2's), parameters, data in GB, accelerators, hours
    ("transformer-base", 12, 512, 8, 65e6, None, "8 P100", 12),
    ("transformer-big", 12, 1024, 16, 213e6, None, "8 P100", 84),
    ("bert-base", 12, 768, 12, 110e6, 13, "", None),
    ("bert-large", 24, 1024, 16, 340e6, 13, "", None),
    ("xlnet-large", 24, 1024, 16, 340e6, 126, "512 TPU v3", 60),
    ("roberta-large", 24, 1024, 16, 355e6, 160, "1024 V100", 24),
    ("gpt2-xl", 48, 1600, 25, 1.5e9, 40, "", None),
    ("megatron-8b", 72, 3072, 32, 8.3e9, 174, "512 V100", 216),
    ("turing-17b", 78, 4256, 28, 17e9, None, "256 V100", None),
    ("gpt3-175b", 96, 12_288, 96, 175e9, 694, "", None),
    ("gopher-280b", 80, 16_384, 128, 280e9, 10_550, "4096 TPU v3", 912),
]


@pytest.mark.parametrize("row", DOCUMENT, ids=lambda row: row[0])
def test_c7_c8_the_table_of_the_documents(found, row):
    name, num_layers, d_model, num_heads, parameters, gigabytes, machines, hours = row
    preset, size = PRESETS[name], found[name]
    assert (size.num_layers, preset.config.d_model, preset.config.num_heads) == (num_layers, d_model, num_heads)
    assert preset.published == pytest.approx(parameters, rel=0.03)  # GPT-2's paper has 1,542 M, the documents 1.5 B
    assert preset.run.data == (None if gigabytes is None else gigabytes * 1e9)
    assert f"{preset.run.num_devices or ''} {preset.run.device}".strip() == machines
    assert preset.run.hours == hours
    assert size.parameters == pytest.approx(parameters, rel=0.06)


def test_c8_the_price_of_gopher():
    """Error: $3,768,320 is 4096 x 920 h x $1, but 38 days are 912 hours."""
    run = PRESETS["gopher-280b"].run
    assert run.hours == 38 * 24
    assert run.device_hours == 3_735_552 == 3_768_320 - 4096 * 8


def test_released_checkpoints_are_counted_exactly(found):
    """What is absent here is named with its size; the rest is equal to the last parameter."""
    released = {name: preset.released for name, preset in PRESETS.items() if preset.released is not None}
    counted = {name: found[name].parameters + sum(number for _, number in PRESETS[name].absent) for name in released}
    assert counted == released
    assert len(released) == 15


def test_differences_are_small_and_explained(found):
    for name, size in found.items():
        preset = PRESETS[name]
        assert size.difference == size.parameters / preset.published - 1
        assert abs(size.difference) < 0.065, name
        assert preset.note, name


def test_the_reasons_are_correct(found):
    """The numbers in the reasons."""
    base, big = PRESETS["transformer-base"].config, PRESETS["transformer-big"].config
    assert 37_000 + (65e6 - found["transformer-base"].parameters) / base.d_model == pytest.approx(40_817, abs=1)
    assert 37_000 + (213e6 - found["transformer-big"].parameters) / big.d_model == pytest.approx(35_856, abs=1)
    heads = 1024**2 + 3 * 1024 + 30_522 + 2 * 1024 + 2  # of masked words and of the next sentence
    assert PRESETS["bert-large"].released + heads == pytest.approx(336e6, rel=1e-3)
    assert found["xlnet-large"].parameters - 24 * 1024**2 == pytest.approx(335e6, rel=1e-3)


def test_relative_positions_make_gopher_what_it_is(found):
    """12 L d^2 are 257.7 billion; the projection of relative positions makes them 13, 279.2 billion."""
    assert found["gopher-280b"].parameters / 1e9 == pytest.approx(279.2 + 0.5, abs=0.1)


def test_the_page_has_the_tables_of_the_command(found):
    text = PAGE.read_text(encoding="utf-8")
    assert parameters_table(found) in text
    assert costs_table(found) in text


def compiled():
    """The bytes of a model's state on each device, from the compiler."""
    scaling = {tuple(plan["case"][:3]): plan for plan in json.loads(SCALING.read_text(encoding="utf-8"))}
    return {"transformer-big": scaling["big", "v5p:2x2x2", "fsdp=8"]} | json.loads(PLANS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", compiled())
def test_the_state_of_a_compiled_step(found, name):
    """It is a device's share of the formula; norms and biases, which are not divided, are less than a hundredth."""
    plan, state = compiled()[name], found[name].training["float32"]
    memory, devices = plan["memory"], math.prod(plan["mesh"].values())
    assert 1 <= memory["parameters"] * devices / state["parameters"] < 1.01
    assert 1 <= memory["optimizer"] * devices / state["moments"] < 1.01
    row = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {name} | v5p"))
    held, formula = memory["parameters"] + memory["optimizer"], (state["parameters"] + state["moments"]) / devices
    assert f" | {held / 2**30:.3f} | {formula / 2**30:.3f} | {memory['peak'] / 2**30:.2f} | " in row


def test_names_are_known_without_jax():
    program = "import sys, jaxformer.models.presets; print({'jax', 'flax', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "set()\n"
