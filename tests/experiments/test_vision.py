"""The experiment on images: its cells, its networks of equal size, its report, and its smoke version, which resumes."""

import types

import matplotlib.pyplot as plt
import numpy as np
import pytest

from experiments.tables import half_width
from experiments.vision import __main__ as command
from experiments.vision.cells import (
    CORPORA,
    MODELS,
    NUMBERS,
    RATES,
    SHIFTS,
    SIDE,
    SIZES,
    Cell,
    configuration,
    divide_digits,
    measured,
    shifted,
    trials,
    whole,
)
from experiments.vision.report import draw, report
from jaxformer.config import kind_of
from jaxformer.data.idx import read_idx, write_idx
from jaxformer.tasks.vision import TASK
from tests.experiments.smoke import check_resumes


def test_networks_have_equal_parameters_and_budgets():
    for corpus in CORPORA:
        configs = {model: configuration(Cell(corpus, model, 1e-3), "data", {}) for model in MODELS}
        sizes = [TASK.network(config, 10).num_parameters for config in configs.values()]
        assert max(sizes) < 1.02 * min(sizes)
        assert len({(c.train, c.data, c.optimizer) for c in configs.values()}) == 1
        for config in configs.values():
            config.check()
        assert [kind_of(getattr(config.model, "attention", "")) for config in configs.values()] == ["none", "gain", ""]


def test_cells():
    every = [
        cell
        for corpus in CORPORA
        for model in MODELS
        for cell in {*trials(corpus, model), *measured(corpus, model, 1e-3, 5), *whole(corpus, model, 1e-3, 5)}
    ]
    number = 2 * 3 * (len(RATES) - 1 + 5 * len(NUMBERS)) + 3 * 5  # only digits are also trained as they are
    assert len({cell.name for cell in every}) == len(every) == number
    config = configuration(Cell("mnist", "ViT", 3e-3, 500, 4), "data", {})
    assert (config.optimizer.learning_rate, config.data.max_images, config.seed) == (3e-3, 500, 4)
    assert [configuration(cell, "data", {}).model.image_size for cell in whole("mnist", "CNN", 1e-3, 1)] == [(28, 28)]


def test_shifts():
    images = np.random.default_rng(0).integers(1, 256, (2, 5, 6, 3), np.uint8)
    for down, right in ((0, 0), (2, 0), (-1, 0), (0, 3), (0, -4)):
        padded = np.pad(images, ((0, 0), (5, 5), (6, 6), (0, 0)))
        np.testing.assert_array_equal(
            shifted(images, down, right), padded[:, 5 - down : 10 - down, 6 - right : 12 - right]
        )


def test_digits_are_divided(tmp_path):
    images, labels = np.zeros((10_000, 2, 2), np.uint8), (np.arange(10_000) % 10).astype(np.uint8)
    write_idx(tmp_path / "t10k-images-idx3-ubyte.gz", images)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", labels)
    divide_digits(tmp_path, tmp_path / "data")
    np.testing.assert_array_equal(read_idx(tmp_path / "data" / "test-labels"), labels[8000:])
    assert read_idx(tmp_path / "data" / "train-images").shape == (8000, 2, 2)


def test_the_report_has_means_and_intervals():
    record = {"parameters": 310_000, "seconds": 10.0, "by_shift": dict.fromkeys(map(str, SHIFTS), 50.0)}
    records = {Cell("mnist", "ViT", 1e-3, 0, seed): record | {"accuracy": 80.0 + seed} for seed in range(2)}
    records[Cell("mnist", "ViT", 1e-3, 500)] = record | {"accuracy": 60.0}
    text = report(records)
    assert (
        "| mnist | ViT | 310,000 | 500 | 60.0 | 1 | 10 |\n| mnist | ViT | 310,000 | all | 80.5 ± 6.4 | 2 | 10 |" in text
    )
    assert "| mnist | ViT | 50.0 ± 0.0 |" in text
    assert "size" not in text
    own = Cell("mnist", "ViT", 1e-3, side=28)
    text = report(records | {own: record | {"accuracy": 90.0, "by_size": {"28": 90.0, "32": 80.0, "56": 70.0}}})
    assert "| corpus | network | size 28 | size 32 | size 56 |\n|---|---|---|---|---|\n" in text
    assert "| mnist-28 | ViT | 90.0 | 80.0 | 70.0 |\n" in text


def test_the_picture_has_intervals_of_the_usual_size(tmp_path, monkeypatch):
    """The bars are those of the report; one seed has none."""
    drawn = []
    monkeypatch.setattr(plt, "close", drawn.append)
    shifts = {str(n): 50.0 - n for n in SHIFTS}
    records = {
        Cell("mnist", "ViT", 1e-3, number, seed, side): {"accuracy": 80.0 + seed, "by_shift": shifts}
        for number, side, seeds in ((0, SIDE, 3), (500, SIDE, 1), (0, 28, 1))
        for seed in range(seeds)
    }
    draw(records, tmp_path / "accuracy.png")
    monkeypatch.undo()
    left, right = drawn[0].axes
    assert (left.get_title(), right.get_title()) == ("MNIST", "MNIST, all images")
    (points, _, (bars,)), *_ = left.containers
    assert points.get_ydata().tolist() == [80.0, 81.0]
    lengths = [float(np.ptp(segment[:, 1])) / 2 if len(segment) else None for segment in bars.get_segments()]
    assert lengths[-1] == pytest.approx(half_width([80.0, 81.0, 82.0]))
    assert len(lengths) == 1 or not lengths[0] or np.isnan(lengths[0])
    plt.close("all")


def test_the_picture_of_attention_is_of_the_chosen_learning_rate(tmp_path, monkeypatch):
    """All rates are tried before one is chosen, so it is drawn later."""
    monkeypatch.setattr(command, "ImageClassifier", types.SimpleNamespace)
    monkeypatch.setattr(command.command, "train", lambda config, run, end: run.mkdir() or 1.0)
    monkeypatch.setattr(command, "test_images", lambda config: (np.zeros((6, 8, 8, 1)), np.zeros(6, int)))
    monkeypatch.setattr(command, "measure_sizes", lambda config, run: dict.fromkeys(map(str, SIZES), 50.0))

    def load(run):
        found = types.SimpleNamespace(label="a", probabilities={"a": 1.0}, image=run.name, attention_maps={})
        return types.SimpleNamespace(
            vocabulary=types.SimpleNamespace(names=["a"]), classify_pixels=lambda images: [found] * len(images)
        )

    def measure(config, run):
        shifts = dict.fromkeys(map(str, SHIFTS), 50.0)
        validation = -config.optimizer.learning_rate  # the first one is the best
        return {"accuracy": 50.0, "by_shift": shifts, "validation": validation, "parameters": 100}

    monkeypatch.setattr(command.jaxformer, "load", load)
    monkeypatch.setattr(command, "measure", measure)
    monkeypatch.setattr(command.plots, "image_maps", lambda images, maps, titles: images[0])
    monkeypatch.setattr(command.plots, "save", lambda drawn, path: path.write_text(drawn))
    assert command.main(["--smoke", "--out", str(tmp_path), "--models", "ViT"]) == 0
    assert (tmp_path / "attention-mnist-ViT.png").read_text() == f"mnist-ViT-{min(RATES):g}-all-0"
    assert (tmp_path / "attention-mnist-28-ViT.png").read_text() == f"mnist-28-ViT-{min(RATES):g}-all-0"


@pytest.mark.full
def test_the_smoke_version_resumes(tmp_path, capsys):
    text = check_resumes(command.main, ["--smoke", "--out", str(tmp_path)], tmp_path, capsys)
    assert all(f"| mnist | {model} |" in text for model in MODELS)
    assert "size 28 | size 32 | size 56 |" in text
    assert sorted(path.name for path in tmp_path.glob("*.png")) == [
        "accuracy.png",
        "attention-mnist-28-ViT.png",
        "attention-mnist-CNN-with-attention.png",
        "attention-mnist-ViT.png",
    ]
    assert len(list((tmp_path / "records").iterdir())) == 3 * 3 + 1
