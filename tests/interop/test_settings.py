"""Settings of other programs are read with checks of type, size and meaning."""

import math

import pytest

from jaxformer.errors import DataError
from jaxformer.interop import settings


def test_a_setting_has_the_type_of_its_default():
    data = {"n": 3, "x": 0.5, "whole": 2, "flag": True, "none": None, "text": "a"}
    assert settings.get(data, "n", 1) == 3
    assert settings.get(data, "x", 1.0) == 0.5
    assert settings.get(data, "whole", 1.0) == 2.0
    assert isinstance(settings.get(data, "whole", 1.0), float)
    assert settings.get(data, "flag", False) is True
    assert settings.get(data, "none", 4) == 4
    assert settings.get(data, "absent", "b") == "b"


@pytest.mark.parametrize(
    ("value", "default"),
    [("3", 1), (3.0, 1), (True, 1), (1, True), (2**24 + 1, 1), (-1, 1), ([], 1), ({}, "a")]
    + [(x, 1.0) for x in (math.nan, math.inf, -1.0, -1, 10**400, True)],
)
def test_other_types_and_sizes_are_refused(value, default):
    with pytest.raises(DataError, match=r"n in config\.json must be"):
        settings.get({"n": value}, "n", default)


def test_requirements():
    settings.require({"a": False, "none": None}, a=False, absent=True, none=True)
    with pytest.raises(DataError, match=r"a in config\.json must be False for the models here, got True"):
        settings.require({"a": True}, a=False)


def test_second_names():
    names = {"second": "own"}
    assert settings.renamed({"second": 2}, names)["own"] == 2
    assert settings.renamed({"own": 3, "second": None}, names)["own"] == 3
    assert settings.renamed({"own": 3, "second": 3}, names)["own"] == 3
    with pytest.raises(DataError, match=r"second and own in config\.json must be equal, got 2 and 3"):
        settings.renamed({"own": 3, "second": 2}, names)


def test_settings_that_must_agree():
    assert settings.shared({"a": 2, "b": 2}, "a", "b", 1) == 2
    with pytest.raises(DataError, match="a and b in"):
        settings.shared({"a": 2}, "a", "b", 1)


def test_activations():
    assert settings.activation({"act": "swish"}, "act", "relu") == "silu"
    assert settings.activation({}, "act", "gelu_new") == "gelu_tanh"
    with pytest.raises(DataError, match=r"act in config\.json must be one of"):
        settings.activation({"act": "mish"}, "act", "relu")
    for name in ("relu", "gelu", "gelu_tanh", "silu"):
        assert settings.activation({"act": settings.their_activation(name)}, "act", "relu") == name
