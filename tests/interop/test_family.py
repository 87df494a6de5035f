"""Settings of other programs are read with checks of type, size and meaning."""

import math

import pytest

from jaxformer.errors import DataError
from jaxformer.interop import family


def test_a_setting_has_the_type_of_its_default():
    data = {"n": 3, "x": 0.5, "whole": 2, "flag": True, "none": None, "text": "a"}
    assert family.get(data, "n", 1) == 3
    assert family.get(data, "x", 1.0) == 0.5
    assert family.get(data, "whole", 1.0) == 2.0
    assert isinstance(family.get(data, "whole", 1.0), float)
    assert family.get(data, "flag", False) is True
    assert family.get(data, "none", 4) == 4
    assert family.get(data, "absent", "b") == "b"


@pytest.mark.parametrize(
    ("value", "default"),
    [("3", 1), (3.0, 1), (True, 1), (1, True), (2**24 + 1, 1), (-1, 1), ([], 1), ({}, "a")]
    + [(x, 1.0) for x in (math.nan, math.inf, -1.0, -1, 10**400, True)],
)
def test_other_types_and_sizes_are_refused(value, default):
    with pytest.raises(DataError, match=r"n in config\.json must be"):
        family.get({"n": value}, "n", default)


NAMES = {"second": "own"}


def test_second_names():
    family.require({"a": False, "none": None}, a=False, absent=True, none=True)
    assert family.renamed({"second": 2}, NAMES)["own"] == 2
    assert family.renamed({"own": 3, "second": None}, NAMES)["own"] == 3
    assert family.renamed({"own": 3, "second": 3}, NAMES)["own"] == 3
    assert family.shared({"a": 2, "b": 2}, "a", "b", 1) == 2


def test_activations():
    assert family.activation({"act": "swish"}, "act", "relu") == "silu"
    assert family.activation({}, "act", "gelu_new") == "gelu_tanh"
    for name in ("relu", "gelu", "gelu_tanh", "silu"):
        assert family.activation({"act": family.their_activation(name)}, "act", "relu") == name


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: family.require({"a": True}, a=False), "a in config.json must be False for the models here, got True"),
        (lambda: family.renamed({"own": 3, "second": 2}, NAMES), "second and own in config.json must be equal, got 2"),
        (lambda: family.shared({"a": 2}, "a", "b", 1), "a and b in config.json must be equal"),
        (lambda: family.activation({"act": "mish"}, "act", "relu"), "act in config.json must be one of relu, "),
    ],
)
def test_refusals(call, message):
    with pytest.raises(DataError, match=message):
        call()
