"""Language models of several texts."""

import pytest

import jaxformer
from jaxformer.config import changed
from jaxformer.errors import ConfigError, DataError
from jaxformer.tasks.language_model import TASK
from jaxformer.tasks.language_model.config import DataConfig, TextConfig
from jaxformer.training.logging import read_log
from tests.contracts.task import quiet
from tests.tasks.language_model.small import tiny


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    (folder / "a").write_text("abcdefgh\n" * 300)
    (folder / "b").write_text("stuvwxyz\n" * 100)
    (folder / "c").write_text("short\n")
    corpora = {"a": {"text": "a", "weight": 1.0}, "b": {"text": "b", "weight": 3.0}}
    return changed(tiny(folder), {"data": {"text": "", "directory": folder, "corpora": corpora}})


def test_windows_are_of_one_text_each(config, tmp_path):
    data = TASK.prepare(config, TASK.read(config), tmp_path)
    for step in range(4):
        batch, of_row = data.train.batch(step), data.train.corpora(step)
        texts = ["".join(data.vocabulary.pieces(row)) for row in batch.tokens.ids[:, 1:]]
        assert [("w" in text, "c" in text) for text in texts] == [(x == 1, x == 0) for x in of_row.tolist()]
        assert 10 <= of_row.sum() <= 13
    assert [*data.validation.parts] == ["a", "b"]


@pytest.mark.full
def test_a_run_of_several_texts(config, tmp_path):
    """Its log and its scores are by text."""
    jaxformer.train(config, tmp_path / "run", console=quiet())
    entries = read_log(tmp_path / "run" / "log.jsonl")
    steps = [entry for entry in entries if "loss" in entry]
    assert all(entry["tokens"] == entry["tokens/a"] + entry["tokens/b"] for entry in steps)
    *_, validated = (entry for entry in entries if "validation_loss" in entry)
    mean = (validated["validation_loss/a"] + validated["validation_loss/b"]) / 2
    assert validated["validation_loss"] == pytest.approx(mean)
    assert [*jaxformer.evaluate(tmp_path / "run", say=str)] == ["a", "b", "mean"]
    other = {"train": {"steps": config.train.steps + 2}, "data": {"corpora": {"b": {"weight": 1.0}}}}
    with pytest.raises(ConfigError, match="weights of the corpora at step 1 would have been others"):
        jaxformer.train(changed(config, other), tmp_path / "run", console=quiet())
    later = other | {"data": {"corpora": {"b": {"reweighted": f"{config.train.steps + 1}=0"}}}}
    logs = []
    for out in ("run", "whole"):  # resumed, and never stopped
        jaxformer.train(changed(config, later), tmp_path / out, console=quiet())
        entries = [entry for entry in read_log(tmp_path / out / "log.jsonl") if "loss" in entry]
        logs.append([(entry["loss"], entry["tokens/a"], entry["tokens/b"]) for entry in entries])
    assert logs[0] == logs[1]
    assert [b > 0 for *_, b in logs[0]] == [True] * config.train.steps + [False] * 2


def test_the_same_text_in_another_file_is_refused(config, tmp_path):
    corpora = {"c": {"text": "./a", "weight": 1.0}}
    with pytest.raises(DataError, match=r"data\.corpora\.a and data\.corpora\.c hold the same text"):
        TASK.read(changed(config, {"data": {"corpora": corpora}}))


def test_a_text_that_is_shorter_than_a_window_is_named(config, tmp_path):
    corpora = {"c": {"text": "c", "weight": 1.0, "validation": "a"}}
    config = changed(config, {"data": {"corpora": corpora}})
    with pytest.raises(DataError, match=r"data\.corpora\.c: the text has 6 tokens, fewer than a window"):
        TASK.prepare(config, TASK.read(config), tmp_path)


A = TextConfig(text="a")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 2.0}, "temperature 2.0 has no effect: corpora names none"),
        ({"corpora": {"a": A}, "text": "b"}, "text 'b' has no effect with corpora"),
        ({"corpora": {"a": TextConfig()}}, "a names no file"),
        ({"corpora": {"a": A, "b": TextConfig(text="b", weight=1.0)}}, "b has a weight and a has none"),
    ],
)
def test_texts_without_an_effect_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        DataConfig(**settings)
