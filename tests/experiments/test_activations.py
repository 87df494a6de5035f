"""The page on activations beside its record, and its smoke version."""

import dataclasses

import jax
import pytest

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


@pytest.mark.full
def test_a_smoke_run_resumes(tmp_path, capsys):
    words = ["--smoke", "--out", str(tmp_path)]
    with jax.numpy_dtype_promotion("standard"):  # a schedule of optax multiplies an integer
        assert activations.main(words) == 0
    first = capsys.readouterr().out
    assert activations.main(words) == 0
    assert capsys.readouterr().out == first
