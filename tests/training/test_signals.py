"""Requests to stop: training saves and stops, and the handlers are put back."""

import os
import signal

import pytest

from jaxformer import training
from tests.training.small import fit, new_state, stream


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGTERM, "terminated"), (signal.SIGINT, "interrupted")])
def test_signals_save_and_stop(tmp_path, number, reason):
    def batches(start):
        for i, one in enumerate(stream(start)):
            if i == 4:
                os.kill(os.getpid(), number)
            yield one

    with training.Checkpoints(tmp_path) as checkpoints:
        result = fit(
            new_state(), 50, batches=batches, outputs=training.Outputs(checkpoints), config={"checkpoint_every": 100}
        )
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


def test_a_signal_during_the_last_save_does_not_cut_it_short(tmp_path):
    class Slow(training.Checkpoints):
        def wait(self):
            os.kill(os.getpid(), signal.SIGTERM)
            super().wait()

    with training.Checkpoints(tmp_path):
        checkpoints = Slow(tmp_path)
        assert fit(new_state(), 3, outputs=training.Outputs(checkpoints)).reason == "done"
        assert checkpoints.steps() == [3]
