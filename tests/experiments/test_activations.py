"""The page on activations beside its record."""

import dataclasses

from experiments.activations import __main__ as activations
from tests.experiments.pages import published


def test_l13_the_page_has_the_results():
    """L13: its table equals results.json, and the results support its statements."""
    page, results = published(activations)
    assert activations.tables(results) in page
    assert results["scale"].items() <= dataclasses.asdict(activations.FULL).items()
    loss = {(record["text"], record["activation"]): record["loss"] for record in results["records"]}
    for text in activations.TEXTS:
        assert all(gelu < relu for gelu, relu in zip(loss[text, "gelu"], loss[text, "relu"], strict=True))
