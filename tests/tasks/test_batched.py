"""Programs that run at the same time, and results in order."""

import threading

import jax.numpy as jnp
import pytest

from jaxformer.tasks.batched import concurrently

TIMEOUT = 60


def test_programs_run_at_once_and_results_are_in_order():
    """Each waits for the other; one at a time would never end."""
    together = threading.Barrier(2)

    def run(number):
        together.wait(TIMEOUT)
        return jnp.full(1, number)

    runs = ((number, lambda number=number: run(number)) for number in range(6))
    assert [(key, found.tolist()) for key, found in concurrently(runs, 2)] == [(n, [n]) for n in range(6)]


def test_few_results_wait():
    """The next programs are made when the first results have been read, so that not all inputs exist at once."""
    made = []

    def runs():
        for number in range(20):
            made.append(number)
            yield number, lambda: 0

    found = concurrently(runs(), 2)
    next(found)
    assert len(made) == 3


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_is_raised_and_nothing_else_begins(threads):
    begun, before = [], threading.active_count()

    def run(number):
        begun.append(number)
        if number == 1:
            raise ValueError("broken")
        return number

    found = concurrently(((number, lambda number=number: run(number)) for number in range(20)), threads)
    with pytest.raises(ValueError, match="broken") as raised:
        list(found)
    assert raised.traceback  # it keeps the threads, unless they have been joined
    assert threading.active_count() == before
    assert len(begun) <= 2 + threads
