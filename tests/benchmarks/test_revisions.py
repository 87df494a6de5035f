"""The comparison of two revisions."""

import math

import pytest

from benchmarks import revisions


def test_the_interval_is_students():
    ratios = [0.9, 1.0, 1.1, 1.05, 0.95, 1.02, 0.98]
    logs = [math.log(x) for x in ratios]
    mean = sum(logs) / 7
    half = 2.446912 * (sum((x - mean) ** 2 for x in logs) / 6 / 7) ** 0.5  # the quantile for 6 degrees of freedom
    found = revisions.interval(ratios)
    assert found["low"] == pytest.approx(math.exp(mean - half), rel=1e-3)
    assert found["high"] == pytest.approx(math.exp(mean + half), rel=1e-3)


@pytest.mark.parametrize(("ratios", "enough"), [([1.0] * 6, False), ([1.0] * 7, True), ([0.8, 1.25] * 5, False)])
def test_turns_end_when_the_interval_is_narrow(ratios, enough):
    assert revisions.is_narrow(ratios) is enough


@pytest.mark.parametrize("case", list(revisions.CASES))
def test_turns_alternate_and_are_measured_in_pairs(monkeypatch, case):
    order, seconds = [], {"old": 2.0, "new": 1.0}

    class Side:
        def __init__(self, name, module, spec, *, root):
            self.name, self.seconds, self.processor = name.split()[-1], [], []

        def round(self, steps):
            order.append(self.name)
            self.seconds += [seconds[self.name]] * steps
            self.processor += [1.0] * steps

        def close(self):
            return {"seconds": seconds[self.name], "memory": 1, "first": 0.0}

    monkeypatch.setattr(revisions, "Side", Side)
    found = revisions.turns(case, dict.fromkeys(seconds), 20)
    assert found["ratio"] == pytest.approx(0.5)
    assert found["of_processor_time"]["ratio"] == pytest.approx(1.0)
    assert found["turns"] == 7
    assert order == ["new", "old", "old", "new"] * 3 + ["new", "old"]
