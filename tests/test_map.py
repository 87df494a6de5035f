"""The names on the map of imports exist, and every public name is on it."""

import importlib
import pathlib
import re
import subprocess
import sys

import pytest

from jaxformer import decoding, functional, masks, modules, sharding

PAGE = (pathlib.Path(__file__).parents[1] / "docs" / "map.md").read_text(encoding="utf-8")
NAMES = re.findall(
    r"\| `((?:F|masks|modules|models|decoding|training|sharding|multihost|planning|interop|tasks|data|tokenizers|"
    r"inspection|conformance)\.[A-Za-z_.]+|pure)` \|",
    PAGE,
)
NOTED = re.findall(
    r"`((?:F|masks|modules|models|decoding|training|sharding|planning|interop|tasks|data|tokenizers|inspection|"
    r"conformance)\.[\w.]+)`",
    PAGE,
)


@pytest.mark.parametrize("name", NAMES)
def test_names_exist(name):
    room, _, member = name.replace("F.", "functional.").rpartition(".")
    module = importlib.import_module(f"jaxformer.{room}" if room else "jaxformer")
    assert getattr(module, member).__doc__


def test_every_name_can_be_reached_from_its_package():
    """`from jaxformer import planning; planning.hlo.collectives`, in a process that has imported nothing else."""
    names = sorted({name.replace("F.", "functional.") for name in (*NAMES, *NOTED)})
    program = f"import operator, jaxformer\nfor name in {names}: operator.attrgetter(name)(jaxformer)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", [functional, masks, modules, sharding])
def test_every_public_name_is_listed(module):
    """Every public name is on the page, or is a part of something on the page."""
    parts = set(
        "And Or Not Band CausalAt Lengths Padding Prefix Segments Stored Dense BlockSparse as_mask UNBOUNDED "
        "KeyValueCache LinearState linear_attention_start elu_plus_one masked_softmax t5_bucket relu gelu gelu_tanh "
        "linear Explanation AttentionFunction CapturedAttention Gains KeyValue Logits NormPair PositionVectors Pure "
        "T5Bias".split()
    )
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("jaxformer.")
    }
    missing = {name for name in public - parts if not re.search(rf"\b{name}\b", PAGE)}
    assert not missing


ALIASES = {
    functional: "Arrangement FeatureMap Frequencies RotaryScaling ScoreFunction Similarity",
    decoding: "Choose ReadPrefix StepOfRows",
    sharding: "Rules",
}


@pytest.mark.parametrize("module", ALIASES)
def test_types_of_custom_functions_are_public(module):
    """They are aliases, which do not tell their module."""
    for name in ALIASES[module].split():
        assert hasattr(module, name)
        assert re.search(rf"\b{name}\b", PAGE), name
