"""The scale study follows from the compiler's results."""

import pathlib

import pytest

from benchmarks import scaling

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.full
def test_the_tables(monkeypatch):
    """The tables of launch/SCALING.md, row by row."""
    monkeypatch.chdir(ROOT)  # for `experiments`
    text = (ROOT / "launch" / "SCALING.md").read_text()
    plans = scaling.read(ROOT / "benchmarks" / "results" / "2026-11-21-scaling.json")
    assert len(plans) == len(scaling.cases())
    for model in ("big", "large"):
        assert scaling.table([found for found in plans if found["case"][0] == model]) in text
