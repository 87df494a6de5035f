"""The experiment on classification: its cells, its report, and its smoke version, which resumes."""

import json

import pytest

from experiments.classification import __main__ as command
from experiments.classification.corpora import BAG, FILES, Cell, cells, configuration
from experiments.classification.report import by_negation, report, summary
from jaxformer.errors import ConfigError
from jaxformer.tasks.classification import TASK
from tests.experiments.smoke import check_resumes


def test_the_cells_and_their_configurations():
    every = cells(list(FILES), 5)
    names = [cell.name for cell in every]
    assert len(names) == len(set(names)) == 5 * (4 * 4 + 2 + 1) + 4
    for cell in every:
        if cell.way != BAG and cell.seed == 0:
            config = configuration(cell, "data", "run", {})
            config.check()
            assert bool(config.init_from) == (cell.way not in ("scratch", "average"))
            network = TASK.network(config, (config.data.vocab_size, 2))
            assert (network.net.config.num_layers == 0) == (cell.way == "average")
            assert (config.tune.adapters is not None) == (cell.way == "lora")
            assert config.train.metric == ("matthews" if cell.corpus == "cola" else "accuracy")


def test_negations_are_whole_words():
    rows = [
        {"text": text, "label": "1", "guess": guess}
        for text, guess in (
            ("it is n't bad", "1"),
            ("never dull", "0"),
            ("a notable knot", "1"),
            ("good", "0"),
            ("yes", "1"),
        )
    ]
    assert by_negation(rows) == {True: 50.0, False: pytest.approx(200 / 3)}


def test_the_report_has_means_and_intervals():
    rows = [{"text": "not good", "label": "0", "guess": "0"}, {"text": "good", "label": "1", "guess": "0"}]
    records = [
        (Cell("sst2", "full", seed), {"accuracy": 80.0 + seed, "seconds": 10.0, "rows": rows}) for seed in range(2)
    ]
    records.append((Cell("cola", BAG, 0), {"accuracy": 70.0, "Matthews correlation": 12.5, "rows": []}))
    text = report(records)
    assert "| cola | bag of words | Matthews correlation | 12.5 | 1 | 0 |" in text
    assert "| sst2 | full | accuracy | 80.5 ± 6.4 | 2 | 10 |" in text
    assert "| sst2 | full | 100.0 ± 0.0 | 0.0 ± 0.0 |" in text


def test_results_have_no_texts():
    """Texts belong to their corpora; the results have the measures that are computed from them."""
    rows = [{"text": "not good", "label": "0", "guess": "0"}, {"text": "good", "label": "1", "guess": "0"}]
    record = {"settings": "a", "accuracy": 50.0, "rows": rows}
    found = summary([(Cell("sst2", "full", 3), record), (Cell("trec", BAG, 0), record)])
    negation = {"accuracy with negation": 100.0, "accuracy without": 0.0}
    assert found == {"sst2-full-3": {"accuracy": 50.0, **negation}, "trec-bag-of-words-0": {"accuracy": 50.0}}


def test_records_of_another_encoder_are_refused(tmp_path, monkeypatch):
    """The training of the encoder may continue in its folder, and the settings of a cell name only that."""
    monkeypatch.setattr(command, "steps_per_epoch", lambda config, pretrained: 4)
    monkeypatch.setattr(command.command, "train", lambda config, run, end: 1.0)
    monkeypatch.setattr(command.jaxformer, "evaluate", lambda run, split, on_examples: {"test": []})
    given = (tmp_path / "out", tmp_path, tmp_path / "pretrained", {}, float("inf"))
    (tmp_path / "pretrained").mkdir()
    for steps in (2500, 5000):
        config = {"task": "masked_language_model", "config": {"train": {"steps": steps}}}
        (tmp_path / "pretrained" / "config.json").write_text(json.dumps(config))
        command.do(Cell("sst2", "scratch", 0), *given)
        if steps == 2500:
            command.do(Cell("sst2", "full", 0), *given)
    with pytest.raises(ConfigError, match=r"is of an encoder of 2,500 steps, not of 5,000; choose another --out"):
        command.do(Cell("sst2", "full", 0), *given)


def test_words_and_pairs():
    assert command._words_and_pairs("is n't bad") == ["is", "n't", "bad", "is n't", "n't bad"]


@pytest.mark.full
def test_the_smoke_version_resumes(tmp_path, capsys):
    words = ["--smoke", "--out", str(tmp_path), "--ways", "lora", "average", "bag of words"]
    text = check_resumes(command.main, words, tmp_path, capsys)
    assert "| sst2 | lora | accuracy |" in text
    assert "| sst2 | average | accuracy |" in text
