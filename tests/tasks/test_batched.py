"""Programs that run at the same time, and results in order."""

import threading

import jax.numpy as jnp
import pytest

from jaxformer.tasks.batched import batched, concurrently, in_order

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


@pytest.mark.parametrize("threads", [1, 2])
def test_texts_of_similar_length_share_a_batch_and_results_are_in_order(threads):
    """A batch of five rows holds two texts here; only their rows are read, and only when they are asked for."""
    batches, told = [], []

    def run(batch):
        batches.append(batch)
        return lambda: {"index": jnp.array([*batch, -1, -1, -1][:5]), "none": None}

    found = batched(run, [5, 900, 7, 6], 2, threads=threads, progress=told.append)
    assert batches == []
    assert [int(row["index"]) for row in in_order(found)] == [0, 1, 2, 3]
    assert (batches, told) == ([[0, 3], [2], [1]], [2, 1, 1])
    assert list(batched(run, [], 2)) == []
