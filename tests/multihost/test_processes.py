"""Exchanges between processes, simulated by one: the data that each would have sent are given."""

import jax
import numpy as np
import pytest

from jaxformer.errors import ConfigError, DataError, JaxformerError
from jaxformer.multihost import processes


def test_one_process_decides_alone():
    assert processes.is_first()
    assert processes.all_true(True)
    assert not processes.all_true(False)
    assert processes.broadcast(True)
    assert not processes.broadcast(False)
    assert processes.first_request(3, ["interrupted"]) == "interrupted"
    assert processes.first_request(3, []) is None
    processes.barrier("a place")
    assert processes.num_hosts() == 1


@pytest.fixture
def three(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    return lambda name, function: monkeypatch.setattr(processes.multihost_utils, name, function)


@pytest.mark.parametrize(("others", "expected"), [((True, True), True), ((True, False), False)])
def test_all_true(three, others, expected):
    three("process_allgather", lambda mine: np.stack([mine, *map(np.asarray, others)]))
    assert processes.all_true(True) is expected
    assert processes.all_true(False) is False


def fails():
    raise DataError("mine")


def in_all(three, make, mine, others):
    """`in_all` here, with the answers that two other processes would give, one pair for each exchange."""
    answers = iter(others)
    three("process_allgather", lambda here: mine.append(bool(here)) or np.stack([here, *next(answers)]))
    return processes.in_all(make, "another process failed")


def test_what_fails_in_one_process_fails_in_all(three):
    """With its own message there, and with an error of the same kind elsewhere."""
    fine, mine = (True, True), []
    assert in_all(three, lambda: 5, mine, [fine]) == 5
    with pytest.raises(DataError, match="mine"):
        in_all(three, fails, mine, [fine, fine, fine])
    for elsewhere, error in (
        ([(True, False), (False, True)], ConfigError),
        ([(True, False), fine, (True, False)], DataError),
        ([(False, True), fine, fine], OSError),
    ):
        with pytest.raises(error, match="another process failed"):
            in_all(three, lambda: 5, mine, elsewhere)
    assert mine == [True, False, True, False, *2 * [True], *3 * [True], *3 * [True]]


def test_the_first_process_decides(three):
    three("broadcast_one_to_all", lambda mine: np.asarray(True))
    assert processes.broadcast(False) is True


def test_asked_to_stop(three):
    three("reached_preemption_sync_point", lambda step: step == 5)
    assert [processes.first_request(step, []) for step in (4, 5)] == [None, "terminated"]


@pytest.mark.parametrize(("others", "expected"), [(("here", "here"), 1), (("here", "there"), 2), (("a", "b"), 3)])
def test_processes_of_one_host_count_once(three, monkeypatch, others, expected):
    def on(host):
        monkeypatch.setattr(processes.platform, "node", lambda: host)
        return processes.num_hosts()

    digests = []
    for host in others:
        three("process_allgather", lambda mine: digests.append(mine) or mine[None])
        on(host)
    three("process_allgather", lambda mine: np.stack([mine, *digests]))
    assert on("here") == expected


def test_barrier_passes_its_name(three):
    places = []
    three("sync_global_devices", places.append)
    processes.barrier("the tokenizer is saved")
    assert places == ["the tokenizer is saved"]


def test_the_first_process_writes(monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 2)
    assert not processes.is_first()


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (AssertionError(), ConfigError, "JAX finds no device, JAX_PLATFORMS=cuda"),
        (RuntimeError("'abacus' is not in the list of known backends"), ConfigError, "'abacus' is not in the list"),
        (RuntimeError("the device is busy"), JaxformerError, "the device is busy"),
    ],
)
def test_a_platform_without_devices_is_an_error_for_users(monkeypatch, error, kind, message):
    """A missing one is a wrong setting; one that does not respond may respond later."""

    def devices():
        raise error

    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setattr(jax, "devices", devices)
    with pytest.raises(JaxformerError, match=f"^{message}") as caught:
        processes.find_devices()
    assert (type(caught.value), caught.value.exit_code) == (kind, 2 if kind is ConfigError else 1)
