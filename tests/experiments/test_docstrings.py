"""The page on summaries of docstrings beside its record."""

from experiments.docstrings import __main__ as docstrings
from jaxformer.errors import ConfigError
from tests.experiments.pages import published


def test_the_data_of_another_python_are_refused(tmp_path, monkeypatch, capsys):
    """They would replace those of trainings that are complete."""
    pairs = [(f"module{i}", (f"What the function number {i} does.", f"Do {i}.")) for i in range(60)]
    trained = []
    monkeypatch.setattr(docstrings, "pairs", lambda: pairs)
    monkeypatch.setattr(docstrings.command, "train_all", lambda *_, **__: trained.append(1))
    monkeypatch.setattr(docstrings.sweep, "report", lambda trials: {})
    monkeypatch.setattr(docstrings, "report", lambda results: "")
    arguments = ["--smoke", "--out", str(tmp_path)]
    assert docstrings.main(arguments) == docstrings.main(arguments) == 0
    before = {path: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    monkeypatch.setattr(docstrings, "pairs", lambda: pairs[::2])
    assert docstrings.main(arguments) == ConfigError.exit_code
    assert "train.tsv holds other data; choose another --out" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (tmp_path / "data").iterdir()} == before
    assert trained == [1, 1]


def test_the_page_has_the_results():
    """Its table equals results.json: the model is not above the first words of the text."""
    page, results = published(docstrings)
    assert docstrings.report(results).strip() in page
    (row,) = results["summary"]
    for name, part in row["results"].items():
        if (measure := name.rpartition(" ")[2]) in docstrings.MEASURES:
            assert max(part["values"]) < results["first words"][measure]
            assert len(part["values"]) == 3
