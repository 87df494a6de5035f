"""The process of one side of a benchmark."""

import io
import json
import sys
import types

import numpy as np
import pytest

from benchmarks import worker


@pytest.mark.parametrize(("result", "sent"), [(np.ones(2), None), ([3, 4], [3, 4]), (0.5, 0.5)])
def test_a_side_answers_in_json_for_any_return_type(monkeypatch, capsys, result, sent):
    side = types.SimpleNamespace(
        build=lambda spec: lambda: result, versions=lambda: "1.0", product=lambda size: lambda: None
    )
    monkeypatch.setitem(sys.modules, "a_side", side)
    monkeypatch.setattr(sys, "stdin", io.StringIO("run 2\nstop\n"))
    worker.serve("a_side", {})
    ready, run, stop = map(json.loads, capsys.readouterr().out.splitlines())
    assert (ready["result"], ready["versions"]) == (sent, "1.0")
    assert len(run["seconds"]) == len(run["processor"]) == 2
    assert stop["memory"] > 0
