"""A classifier of images: one or several, in any mode and size, and its attention maps."""

import dataclasses
import functools

import chex
import jax
import numpy as np
import pytest

from jaxformer.inspection.attention_maps import rollout
from jaxformer.tasks.classes import Classes
from jaxformer.tasks.images import normalized
from jaxformer.tasks.vision import TASK, ImageClassifier, VisionConfig, predictor
from tests.modules.small import drawn, quick
from tests.tasks.vision.small import CONVOLUTION, TRANSFORMER, picture

MODELS = {"transformer": TRANSFORMER, "convolution": CONVOLUTION}


def net_of(model):
    return TASK.network(VisionConfig(model=model), 2).net


@functools.cache
def classifier(name):
    net = net_of(MODELS[name])
    return ImageClassifier(net, drawn(net.shapes), Classes(("dark", "light")))


@pytest.fixture
def paths(tmp_path):
    found = [tmp_path / f"{number}.png" for number in range(3)]
    for number, path in enumerate(found):
        picture(number).save(path)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_classes_and_maps(name, paths):
    """An image alone is classified as among others; each map is a part of one row of weights, or all."""
    model = classifier(name)
    images = np.stack([np.asarray(picture(number)) for number in range(3)])
    results, (alone,) = model.classify(paths), model.classify(paths[1:2])
    for result, row, image in zip(results, model.probabilities(images), images, strict=True):
        assert list(result.probabilities.values()) == pytest.approx(row.tolist(), abs=1e-6)
        assert sum(row) == pytest.approx(1, abs=1e-6)
        assert result.probabilities[result.label] == max(row)
        np.testing.assert_array_equal(result.image, image)
        assert set(result.attention_maps) == ({"last layer", "rollout"} if name == "transformer" else {"grid"})
        for grid in result.attention_maps.values():
            assert grid.shape == ((2, 2) if name == "transformer" else (4, 4))
            assert 0 < grid.sum() < 1.00001
    assert alone.probabilities == pytest.approx(results[1].probabilities, abs=1e-5)
    assert model.classify([]) == []


def seen(model, image):
    """The logits of an image, and the captured attention."""
    run = quick(lambda params, images: (model.net.apply(params, images), model.net.bind(params).captured(images)))
    return run(model.params, normalized(jax.numpy.asarray(image[None])))


@pytest.mark.full
def test_maps_are_of_the_class_vector(paths):
    model = classifier("transformer")
    result = model.classify(paths[:1])[0]
    logits, captured = seen(model, result.image)
    weights = np.stack([captured["encoder.self"].layer(i).weights()[0] for i in range(2)])
    np.testing.assert_allclose(result.attention_maps["last layer"].ravel(), weights[1].mean(0)[0, 1:], atol=1e-6)
    np.testing.assert_allclose(result.attention_maps["rollout"].ravel(), rollout(weights)[0, 1:], atol=1e-6)
    np.testing.assert_allclose(list(result.probabilities.values()), jax.nn.softmax(logits[0]), atol=1e-6)


@pytest.mark.full
def test_maps_of_a_mean_and_of_a_grid(paths):
    """The mean of the rows of all patches; and the mean attention that a position of the grid gets."""
    mean = dataclasses.replace(TRANSFORMER, pooling="mean")
    own, grid = (
        ImageClassifier(net, drawn(net.shapes), Classes(("dark", "light"))) for net in map(net_of, (mean, CONVOLUTION))
    )
    result = own.classify(paths[:1])[0]
    _, captured = seen(own, result.image)
    weights = np.stack([captured["encoder.self"].layer(i).weights()[0] for i in range(2)])
    np.testing.assert_allclose(result.attention_maps["last layer"].ravel(), weights[1].mean((0, 1)), atol=1e-6)
    np.testing.assert_allclose(result.attention_maps["rollout"].ravel(), rollout(weights).mean(0), atol=1e-6)
    _, captured = seen(grid, result.image)
    received = np.asarray(captured["grid"].weights())[0].mean((0, 1))
    assert np.ptp(received) > 1e-3
    np.testing.assert_allclose(grid.classify(paths[:1])[0].attention_maps["grid"].ravel(), received, atol=1e-6)


@pytest.mark.parametrize(("name", "matrix"), [("transformer", 2 * 3 * 5**2), ("convolution", 2 * 16**2)])
def test_batches_are_as_small_as_their_images_and_the_memory_allow(name, matrix, paths, monkeypatch):
    """Three images are in a batch of four, of three if the limit allows no more, or alone if it does not allow one."""
    model, captured, rows = classifier(name), predictor._captured, []
    recorded = lambda net, params, images: rows.append(len(images)) or captured(net, params, images)
    monkeypatch.setattr(predictor, "_captured", recorded)
    expected = model.classify(paths)
    for most in (3 * matrix, matrix // 2):
        monkeypatch.setattr(predictor, "MOST_WEIGHTS", most)
        for one, other in zip(model.classify(paths), expected, strict=True):
            chex.assert_trees_all_close(one.attention_maps, other.attention_maps, rtol=0, atol=1e-6)
    assert rows == [4, 3, 1, 1, 1]


@pytest.mark.parametrize("name", MODELS)
def test_another_image_size(name):
    larger = classifier(name).with_image_size((12, 8))
    assert larger.shape == (12, 8, 3)
    assert larger.probabilities(np.zeros((2, 12, 8, 3), np.uint8)).shape == (2, 2)
    if name == "convolution":
        assert larger.params is classifier(name).params
