"""The file of a part: results of one device and one mode, each with the machine and commit that measured it."""

import json
import math
import time

import pytest

from benchmarks.accelerator import __main__ as command
from benchmarks.accelerator import repeat, runner
from benchmarks.accelerator.record import Record, Settings, plain
from jaxformer.errors import ConfigError


def test_the_error_of_a_dead_process_names_its_machine(tmp_path):
    for session in ({"device": "D", "commit": "a"}, {"device": "D", "commit": "b"}):
        record = Record(tmp_path / "part-9.json", tiny=False)
        record.begin(session)
        record.start("one")
    Record(tmp_path / "part-9.json", tiny=False).finish("one", {"error": "killed"}, 0)
    assert Record(tmp_path / "part-9.json", tiny=False).cases["one"]["session"] == 1


def test_results_of_another_device_or_mode_are_separate(tmp_path):
    path = tmp_path / "part-1.json"
    record = Record(path, tiny=False)
    record.begin({"device": "A"})
    with pytest.raises(ConfigError, match="results of one device, got A and B"):
        Record(path, tiny=False).begin({"device": "B"})
    with pytest.raises(ConfigError, match="the same mode, got tiny=False"):
        Record(path, tiny=True)
    assert json.loads(path.read_text())["sessions"] == [{"device": "A"}]
    assert plain({"x": [math.inf, 1]}) == {"x": ["inf", 1]}


@pytest.mark.parametrize(("dates", "commits", "shown"), [("12", "aa", "yes"), ("11", "ab", "not compared")])
def test_runs_of_other_commits_are_not_compared_bit_for_bit(tmp_path, dates, commits, shown):
    """A part may be resumed after a change of the code, which would look like a program that does not repeat itself."""
    record = Record(tmp_path / "part-6.json", tiny=False)
    for turn, (date, commit) in enumerate(zip(dates, commits, strict=True), 1):
        record.begin({"device": "D", "driver": "1", "python": "3", "versions": {}, "date": date, "commit": commit})
        record.start(f"default {turn}")
        losses = ["00", "01" if commit == "a" else "02"]
        record.finish(f"default {turn}", {"result": {"losses": losses, "state": commit, "seconds": 0.01}}, 1.0)
    text = runner.report(repeat, record, Settings(tmp_path, time.monotonic() + 9))
    assert f" {shown}" in next(line for line in text.splitlines() if line.startswith("default "))


def test_the_errors_of_other_cases_are_kept(tmp_path, monkeypatch):
    """``--retry`` with ``--cases`` measures these cases only, so the others keep what is known of them."""
    record = Record(tmp_path / "part-6.json", tiny=True)
    for name in ("default 1", "default 2"):
        record.finish(name, {"error": "broken"}, 1.0)
    monkeypatch.setattr(command.runner, "supervise", lambda *given, **options: None)
    words = ["--part", "6", "--out", str(tmp_path), "--tiny", "--retry"]
    assert command.main([*words, "--cases", "default 1"]) == 0
    assert list(Record(record.path, tiny=True).cases) == ["default 2"]
    assert command.main(words) == 0
    assert not Record(record.path, tiny=True).cases
