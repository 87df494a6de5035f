"""The time that a run spends on each part of its work."""

import time

import pytest

from jaxformer import training
from jaxformer.training import phase_timer
from jaxformer.training.phase_timer import PhaseTimer, read_starts
from tests.training.small import fit, new_state


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(phase_timer.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(phase_timer.time, "time", lambda: 5000.0 + now[0])
    return now


def test_setting_the_clock_changes_no_duration(clock, tmp_path, monkeypatch):
    """A machine may set its time of day after its start; a time limit would be over at once."""
    monkeypatch.setattr(phase_timer.time, "time", lambda: 1e9)
    timer = PhaseTimer(tmp_path / "time.json", began=clock[0] - 30)
    assert timer.total() == 30
    timer.save()
    assert read_starts(tmp_path / "time.json")[0]["began"] == "2001-09-09T01:46:10Z"


def test_parts_are_summed_over_starts(clock, tmp_path):
    path = tmp_path / "time.json"
    first = PhaseTimer(path, began=90.0)
    first.at("stepping")
    clock[0] += 20
    assert first.at("compiling") == "stepping"
    clock[0] += 5
    first.at("stepping")
    clock[0] += 1
    first.at("saving")
    clock[0] += 2
    assert (first.stepping(), first.working()) == (21, 23)
    first.ended(7, "terminated")
    second = PhaseTimer(path)
    clock[0] += 60
    assert second.report() == (
        "time 1:38 in 2 starts: starting 1:10, compiling 5.0 s, waiting for data 0.0 s, stepping 21.0 s, "
        "validating 0.0 s, saving 2.0 s"
    )
    (saved,) = read_starts(path)
    assert (saved["began"], saved["step"], saved["ended"]) == ("1970-01-01T01:24:50Z", 7, "terminated")
    second.step(8, {})
    second.save()
    assert [start["step"] for start in read_starts(path)] == [7, 8]


def test_times_are_saved_after_validations_and_saves(clock, tmp_path):
    """A kill loses only the time since."""
    timer = PhaseTimer(tmp_path / "time.json")
    for step, part in ((1, "stepping"), (1, "validating"), (1, "saving"), (2, "waiting for data")):
        timer.begins(step, part)
        timer.step(step, {})
        clock[0] += 1
        times = read_starts(tmp_path / "time.json")
        assert [start["seconds"][part] for start in times for part in ("validating", "saving")] == {
            "saving": [1, 0],
            "waiting for data": [1, 1],
        }.get(part, [])


LONG = '[3, {"seconds": 1}, {"seconds": {"stepping": "long"}}, {"seconds": {"stepping": Infinity}}]'


@pytest.mark.parametrize("text", ["[{", "{}", "7", LONG])
def test_a_damaged_time_file_loses_only_earlier_sums(tmp_path, text):
    (tmp_path / "time.json").write_text(text)
    assert read_starts(tmp_path / "time.json") == []


def test_every_second_of_a_training_belongs_to_a_part(tmp_path):
    began = time.monotonic()
    clock = PhaseTimer(tmp_path / "time.json")
    with training.Checkpoints(tmp_path / "c") as checkpoints:
        fit(
            new_state(),
            4,
            validate=lambda state: time.sleep(0.02) or {"loss": 1.0},
            checkpoints=checkpoints,
            hooks=[clock],
            config={"validate_every": 4},
        )
    parts, whole = clock.seconds(), time.monotonic() - began
    assert sum(parts.values()) == pytest.approx(whole, abs=0.05)
    assert min(parts["stepping"], parts["waiting for data"], parts["compiling"], parts["saving"]) > 0
    assert parts["validating"] >= 0.02
    (start,) = read_starts(tmp_path / "time.json")
    assert (start["step"], start["ended"]) == (4, "done")
