"""The results of steps on their way to logs and screen."""

import itertools

import pytest

from jaxformer import training
from jaxformer.training.logging import JsonLog, read_log
from tests.training.small import OPTIMIZER, STEP, batch, fit, loss, new_state, settings, stream


@pytest.mark.parametrize(("every", "steps"), [(4, [4, 8, 10]), (0, [10])])
def test_reports_tokens_and_utilization(every, steps):
    seen = []

    class Reporter:
        def update(self, step, *, loss, tokens_per_second, utilization):
            seen.append((step, tokens_per_second > 0, utilization is not None and utilization > 0))

        def say(self, text): ...
        def close(self): ...

    fit(
        new_state(),
        10,
        flops=lambda b: 1e6,
        outputs=training.Outputs(reporter=Reporter(), peak_flops=1e12),
        config={"log_every": every},
    )
    assert seen == [(step, True, True) for step in steps]


def test_skipped_steps_are_counted_and_said(tmp_path):
    said = []

    class Reporter:
        def update(self, step, **figures): ...
        def say(self, text):
            said.append(text)

        def close(self): ...

    step = training.make_step(loss, OPTIMIZER, nonfinite="skip")
    bad = lambda start: (batch(number, nan=number in (2, 4)) for number in itertools.count(start))
    log = JsonLog(tmp_path / "log.jsonl")
    out = training.Outputs(log=log, reporter=Reporter())
    result = training.fit(step, new_state(), bad, config=settings(6), outputs=out)
    log.close()
    assert result.skipped == 2
    assert said == ["step 3: not finite, skipped (1 so far)", "step 5: not finite, skipped (2 so far)"]
    assert [entry["loss"] is None for entry in read_log(tmp_path / "log.jsonl")] == [s in (3, 5) for s in range(1, 7)]


def test_metrics_are_read_one_step_late():
    """Those of step n when step n + 1 is with the device: the device never waits for the host."""
    events = []

    class Log:
        def write(self, step, **values):
            events.append(("read", step))

        def flush(self): ...

    def watched(state, one):
        events.append(("dispatched", int(one["number"])))
        return STEP(state, one["batch"])

    numbered = lambda start: ({"number": n + 1, "batch": b} for n, b in enumerate(stream(start), start))
    training.fit(watched, new_state(), numbered, config=settings(3), outputs=training.Outputs(log=Log()))
    assert events == [("dispatched", 1), ("dispatched", 2), ("read", 1), ("dispatched", 3), ("read", 2), ("read", 3)]
