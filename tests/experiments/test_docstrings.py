"""The page on summaries of docstrings beside its record."""

import json
import pathlib

from experiments.docstrings import __main__ as docstrings

PAGE = pathlib.Path(docstrings.__file__).parent


def test_the_page_has_the_results():
    """Its table equals results.json: the model is not above the first words of the text."""
    results = json.loads((PAGE / "results" / "results.json").read_text(encoding="utf-8"))
    assert docstrings.report(results).strip() in (PAGE / "README.md").read_text(encoding="utf-8")
    (row,) = results["summary"]
    for name, part in row["results"].items():
        if (measure := name.rpartition(" ")[2]) in docstrings.MEASURES:
            assert max(part["values"]) < results["first words"][measure]
            assert len(part["values"]) == 3
