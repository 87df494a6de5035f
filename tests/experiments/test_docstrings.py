"""The page on summaries of docstrings beside its record."""

from experiments.docstrings import __main__ as docstrings
from tests.experiments.pages import published


def test_the_page_has_the_results():
    """Its table equals results.json: the model is not above the first words of the text."""
    page, results = published(docstrings)
    assert docstrings.report(results).strip() in page
    (row,) = results["summary"]
    for name, part in row["results"].items():
        if (measure := name.rpartition(" ")[2]) in docstrings.MEASURES:
            assert max(part["values"]) < results["first words"][measure]
            assert len(part["values"]) == 3
