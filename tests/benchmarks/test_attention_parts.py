"""The parts of the accelerator measurements that check and time attention: comparisons and compiled programs."""

import itertools
import math
import time
import types

import jax
import numpy as np
import pytest

from benchmarks.accelerator import attention, contract
from benchmarks.accelerator.record import Settings
from jaxformer import masks


@pytest.mark.full
def test_a_gradient_that_varies_from_run_to_run_is_accepted():
    """cuDNN's may vary; one that repeats itself, or is NaN, must not depend on the contents of unseen keys."""
    arrays, draws = contract.arrays(contract.TINY, "float32"), itertools.count(1)
    mask = masks.padding(np.arange(contract.TINY.T)[None] < np.array([[contract.TINY.T], [4]]))
    allowed = np.asarray(mask.dense(contract.TINY.T, contract.TINY.T))

    def broken(change):
        def program(query, key, value, upstream, mask):
            output, *gradients = contract._both("reference", query, key, value, upstream, mask)
            return output, *(x * change(np.isnan(key).any()) for x in gradients)

        return contract._laws(program, arrays, mask, program(*arrays, mask), allowed)

    leak = ["NaN in an unseen key changes a result"]
    assert broken(lambda leaks: 1.0) == []
    assert broken(lambda leaks: 1 + 1e-6 * next(draws)) == []
    assert broken(lambda leaks: 1 + 1e-3 * leaks) == leak
    assert set(broken(lambda leaks: math.nan if leaks else 1 + 1e-6 * next(draws))) == set(leak)


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "side"), [("padded", "blockwise"), pytest.param("packed", "jax.nn", marks=pytest.mark.full)]
)
def test_the_inputs_of_a_timed_program_are_its_arguments(kind, side, tmp_path, monkeypatch):
    """XLA makes constants of arrays that a program closes over, and may compute with them at compile time."""
    constants = []

    def jit(function):
        def call(*arguments):
            constants.extend(jax.make_jaxpr(function)(*arguments).consts)
            return function(*arguments)

        return call

    monkeypatch.setattr(attention, "jax", types.SimpleNamespace(**{**vars(jax), "jit": jit}))
    monkeypatch.setattr(attention, "seconds", lambda call, wait: 0.0)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        attention._measure(side, kind, (2, 32, 2, 8), Settings(tmp_path, time.monotonic() + 300, tiny=True))
    assert max(map(np.size, constants), default=0) < 32
