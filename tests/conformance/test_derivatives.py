"""Every bug planted in gradients and under transformations is found by its property."""

import pytest

from jaxformer import conformance
from tests.conformance.wrong import BUGS, attend_right, found, masked_in_vmap, of_framework
from tests.selection import first

NAMES = of_framework("jax")


FEW = (
    *("bias without gradient", "gradient of half", "NaN gradient of padding", "first of a vmap"),
    *("constant gradient", "bound to a device"),
)


@pytest.mark.parametrize("bug", first([bug for bug, (name, _) in BUGS.items() if name in NAMES], *FEW))
def test_a_bug_is_found(bug):
    assert ("raises" in found(bug)) == (bug in ("bound to a device", "first of a vmap"))


def test_transformations_are_tried_with_a_mask_of_the_library():
    report = conformance.check(conformance.LibraryAdapter(masked_in_vmap), only=["vmap"], shrink=False)
    assert report["vmap"].status == "failed"
    assert "output: differs from a loop" in report["vmap"].finding


@pytest.mark.full  # `TestReference` has a quicker one for each of most properties
def test_right_attention_has_every_property():
    assert attend_right("jax", NAMES).of("passed") == NAMES
