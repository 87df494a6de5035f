"""The page on beams beside its record."""

import dataclasses
import json

from experiments.beams import __main__ as beams
from tests.experiments.pages import published


def test_d7_the_page_has_the_results():
    """D7: its table equals results.json, and the results support its statements."""
    page, results = published(beams)
    assert beams.tables(results).strip() in page
    assert results["scale"] == json.loads(json.dumps(dataclasses.asdict(beams.FULL)))
    for record in results["records"]:
        assert record["steps"] == [3000]
        rows = {(row["penalty"], row["beam"]): row for row in record["rows"]}
        for beam in (4, 8):
            assert rows[1.0, beam]["bleu"] > rows[1.0, 1]["bleu"] + 0.5
            assert rows[1.0, beam]["seconds"] > 3 * rows[1.0, 1]["seconds"]
        lengths = [rows[0.0, beam]["length"] for beam in beams.FULL.beams]
        assert lengths == sorted(lengths, reverse=True)
        assert rows[0.0, 1]["bleu"] == rows[1.0, 1]["bleu"]
