"""A report as text, JSON, Markdown and HTML, and the code of a failure."""

import json
import runpy

import numpy as np
import pytest

from jaxformer import conformance
from tests.conformance import wrong

pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value|divide by zero)")
PLAIN = {"framework": "numpy", "dtypes": ("float32",)}


def test_a_report_in_every_form():
    report = conformance.check(wrong.numpy_attend, only=["values", "empty rows", "bias"], **PLAIN)
    assert repr(report) == "Report(tests.conformance.wrong.numpy_attend: 1 passed, 1 failed, 1 not offered)"
    assert str(report).splitlines()[1].split() == ["property", "status", "error", "finding"]
    assert "print(numpy_attend(query, key, value, mask=mask))" in str(report)
    found = json.loads(report.to_json())
    assert [row["status"] for row in found["rows"]] == ["passed", "failed", "not offered"]
    assert found["rows"][1]["errors"]["by a mask"] is None  # infinite
    assert found["versions"]["numpy"] == np.__version__
    assert report.to_markdown().splitlines()[4].startswith("| bias | not offered |  | it takes no bias |")
    assert report._repr_html_().count("<tr>") == 4


def test_the_code_of_a_failure_runs(tmp_path, capsys):
    """As it is pasted: it prints the wrong result."""
    row = conformance.check(wrong.numpy_attend, only=["empty rows"], **PLAIN).rows[0]
    assert row.finding == "by a mask, by a length of 0: a query without keys gets NaN, not zeros"
    (tmp_path / "pasted.py").write_text(row.code)
    runpy.run_path(str(tmp_path / "pasted.py"))
    assert capsys.readouterr().out == "[[[[nan]]]]\n"
