"""Every bug planted in the output is found by the property that is meant for it; right attention has every property."""

import pytest

from jaxformer import conformance
from tests.conformance.wrong import BUGS, attend_right, found, of_framework

pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value|divide by zero)")
NAMES = of_framework("numpy")


@pytest.mark.parametrize("bug", [bug for bug, (name, _) in BUGS.items() if name in NAMES])
def test_a_bug_is_found(bug):
    assert "raises" not in found(bug)


def test_right_attention_has_every_property():
    assert attend_right("numpy", NAMES).of("passed") == NAMES


def test_every_property_has_a_bug():
    assert {name for name, _ in BUGS.values()} == set(conformance.PROPERTIES)
