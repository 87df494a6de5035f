"""Requests to stop: training saves and stops, and restores the previous handlers."""

import os
import signal
import threading

import pytest

from jaxformer import signals, training
from tests.training.small import fit, new_state, stream


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGTERM, "terminated"), (signal.SIGINT, "interrupted")])
def test_signals_save_and_stop(tmp_path, number, reason):
    def batches(start):
        for i, one in enumerate(stream(start)):
            if i == 4:
                os.kill(os.getpid(), number)
            yield one

    with training.Checkpoints(tmp_path) as checkpoints:
        result = fit(new_state(), 50, batches=batches, checkpoints=checkpoints, config={"checkpoint_every": 100})
        assert (result.reason, int(result.state.step)) == (reason, 5)
        assert checkpoints.steps() == [5]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_second_ctrl_c_does_not_wait():
    before = signal.getsignal(signal.SIGINT)

    def batches(start):
        for i, one in enumerate(stream(start)):
            if i == 3:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
            yield one

    with pytest.raises(KeyboardInterrupt):
        fit(new_state(), 50, batches=batches)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_has_its_original_effect():
    """The handler of a command ends its process at once; SIGTERM does not count as Ctrl-C."""
    got = []
    previous = signal.signal(signal.SIGINT, lambda *_: got.append("before"))
    try:
        with signals.stop_requests() as requests:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGINT):
                os.kill(os.getpid(), number)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert (requests, got) == (["terminated", "interrupted"], ["before"])


def test_an_ignored_signal_stays_ignored():
    """As for a background job of a script, which Ctrl-C is not meant for."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with signals.stop_requests() as requests:
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, previous)
    assert requests == []


@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_a_signal_to_a_worker_is_not_a_request(number, code):
    """A fork that reads data ends by SIGTERM; Ctrl-C, which all processes of a terminal get, leaves it to training."""
    said = []
    with signals.stop_requests(said.append) as requests:
        if not (worker := os.fork()):
            os.kill(os.getpid(), number)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == code
    assert (said, requests) == ([], [])


def test_a_repeated_request_is_acknowledged_once():
    said = []
    with signals.stop_requests(said.append):
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
    assert said == [signals.MESSAGES[signal.SIGTERM]]


@pytest.mark.parametrize(
    ("number", "messages"),
    [
        (signal.SIGTERM, [signals.MESSAGES[signal.SIGTERM]]),
        (signal.SIGINT, [signals.MESSAGES[signal.SIGINT], signals.AGAIN]),
    ],
)
def test_a_request_is_acknowledged_while_the_main_thread_waits(number, messages):
    """It waits for a device, in code that runs no Python handler."""
    said, done = [], threading.Event()

    def say(text):
        said.append(text)
        done.set()

    previous = signal.signal(number, lambda *_: None)
    try:
        with signals._acknowledging(say):
            for _ in messages:
                done.clear()
                signal.pthread_kill(threading.get_ident(), number)
                assert done.wait(20)
    finally:
        signal.signal(number, previous)
    assert said == messages


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGRTMIN + 1])
def test_other_signals_are_passed_on(number):
    """The previous descriptor gets them, such as that of asyncio; the second signal has no name."""
    said, (reader, writer) = [], os.pipe()
    os.set_blocking(writer, False)
    previous = signal.signal(number, lambda *_: None), signal.set_wakeup_fd(writer)
    try:
        with signals.stop_requests(said.append):
            os.kill(os.getpid(), number)
        assert (os.read(reader, 1), said) == (bytes([number]), [])
    finally:
        signal.signal(number, previous[0])
        signal.set_wakeup_fd(previous[1])
        os.close(reader)
        os.close(writer)


def test_a_signal_during_the_last_save_does_not_cut_it_short(tmp_path):
    class Slow(training.Checkpoints):
        def wait(self):
            os.kill(os.getpid(), signal.SIGTERM)
            super().wait()

    with training.Checkpoints(tmp_path):
        checkpoints = Slow(tmp_path)
        assert fit(new_state(), 3, checkpoints=checkpoints).reason == "done"
        assert checkpoints.steps() == [3]


def test_a_signal_after_the_end_is_ignored():
    """Hooks run before the handlers are restored; otherwise SIGTERM would end this process."""

    class Late(training.Hook):
        def ended(self, step, reason):
            os.kill(os.getpid(), signal.SIGTERM)

    assert fit(new_state(), 3, hooks=[Late()]).reason == "done"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_an_error_outside_the_main_thread_has_no_other_cause():
    """Handlers can only be set in the main thread; their error is not part of its traceback."""
    errors = []

    def work():
        try:
            with signals.stop_requests(print) as requests:
                assert requests == []
                raise RuntimeError("of the training")
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert errors[0].__context__ is None
