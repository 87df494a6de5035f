"""The comparison of attention: its lower bound of time, and sides that are not run."""

import argparse
import functools

import jax
import numpy as np
import pytest

from benchmarks import attention
from benchmarks.sides.attention_ideas import IDEAS
from jaxformer import functional, masks
from tests.modules.small import normal


class Side:
    """A side that takes a second, on a machine of 1 GFLOP/s."""

    def __init__(self, name, module, spec, **options):
        self.name = name
        attention.np.savez(spec["save"], attention.np.zeros(1))

    def round(self, steps):
        pass

    def close(self):
        return {"seconds": 1.0, "peak": 1e9, "first": 1.0, "memory": 1e9, "versions": ""}


def test_the_floor_is_the_products_of_a_definition(monkeypatch, capsys):
    """Two of attention, and two for the gradient of each of them."""
    monkeypatch.setattr(attention, "Side", Side)
    options = {
        "mask": "causal",
        "dtype": "float32",
        "rounds": 1,
        "memory": 16,
        "torch_python": "",
        "large_pages": False,
    }
    for backward, products in ((False, 2), (True, 6)):
        args = argparse.Namespace(backward=backward, **options)
        found = attention.measure((2, 64, 4, 8), ["blockwise"], args)
        floor = products * 2 * (2 * 64 * 65 / 2) * 4 * 8 / 1e9
        attention.np.testing.assert_allclose(found["blockwise"]["of_floor"], 1 / floor)
    assert attention.measure((1, 16384, 8, 64), ["jax.nn"], args) == {}
    assert "jax.nn: not run, it would need about 43 GB" in capsys.readouterr().out


@pytest.mark.parametrize("idea", attention.IDEAS[:-1])
def test_other_ways_to_compute_attention_are_attention(idea):
    query, key, value = (normal(2, 512, 4, 8, seed=seed) for seed in range(3))
    expected = functional.attention(query, key, value, mask=masks.causal())
    compute = functools.partial(IDEAS[idea], heads=2)
    np.testing.assert_allclose(jax.jit(compute)(query, key, value), expected, atol=2e-6)
