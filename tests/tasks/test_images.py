"""Parts that image tasks share, for a model that has the size of its images and for one whose `image` has it."""

import types

import numpy as np
import pytest

from jaxformer.config import changed
from jaxformer.data.images import label_images, read_images
from jaxformer.errors import ConfigError, DataError
from jaxformer.tasks import captioning, vision
from jaxformer.tasks.images import ImagePredictor, decode_images, image_shape, normalized
from tests.data.pictures import write_folder
from tests.tasks.vision.small import picture

CONFIGS = {"model": vision.VisionConfig(), "model.image": captioning.CaptioningConfig()}


def sized(part, **changes):
    """The configuration of a task with these settings of its images."""
    return changed(CONFIGS[part], {"model": {"image": changes} if part == "model.image" else changes})


@pytest.mark.parametrize("part", CONFIGS)
def test_settings(part):
    config = sized(part, image_size=(12, 8), num_channels=1)
    assert image_shape(config.model) == (12, 8, 1)
    changed(config, {"data": {"shift": 7}}).check()
    with pytest.raises(ConfigError, match=r"data\.shift must be below 8, the shorter side of the images, got 8"):
        changed(config, {"data": {"shift": 8}}).check()
    with pytest.raises(ConfigError, match=rf"^{part}\.num_channels must be 1 \(gray\) or 3 \(RGB\), got 2"):
        sized(part, num_channels=2).check()


def test_pixels(tmp_path):
    """As large as the model takes them, if the settings say so, and kept in the cache that they name."""
    images = label_images(read_images(write_folder(tmp_path / "images", ["x/a.png", "x/b.png"])))
    config = changed(sized("model", image_size=(8, 4)), {"data": {"cache": str(tmp_path / "cache")}})
    with pytest.raises(DataError, match=r"a\.png is 6 x 4 pixels, but images must be 8 x 4"):
        decode_images(config, images)
    assert decode_images(changed(config, {"data": {"resize": "fit"}}), images).shape == (2, 8, 4, 3)
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert normalized(np.array([0, 255], np.uint8)).tolist() == [-1, 1]


def test_files(tmp_path):
    """Of any size and mode; a single path, and pixels of another size or dtype, are refused."""
    predictor = ImagePredictor()
    predictor.net = types.SimpleNamespace(config=sized("model.image", image_size=(8, 8)).model)
    picture(0).save(tmp_path / "a.png")
    picture(1, 20).convert("L").save(tmp_path / "b.png")
    images = predictor.read_all([tmp_path / "a.png", str(tmp_path / "b.png")])
    assert (images.shape, images.dtype) == ((2, 8, 8, 3), np.uint8)
    np.testing.assert_array_equal(images[0], np.asarray(picture(0)))
    assert predictor.read_all([]).shape == (0, 8, 8, 3)
    predictor._check(images)
    for wrong in (images[0], images[:, :, 1:]):
        with pytest.raises(ValueError, match=r"images must be \[N, 8, 8, 3\], got \["):
            predictor._check(wrong)
    for wrong, what in ((images / 255, "float64"), (images.astype(np.int32), "int32"), (list(images), "list")):
        with pytest.raises(ValueError, match=f"images must be an array of uint8, colors from 0 to 255, got {what}"):
            predictor._check(wrong)  # colors from 0 to 1 would become black
    for path in (tmp_path / "a.png", str(tmp_path / "a.png")):
        with pytest.raises(TypeError, match=r"paths must be a sequence of paths, got one path; write \[path\]"):
            predictor.read_all(path)
    with pytest.raises(DataError, match=r"cannot read .*gone\.png"):
        predictor.read_all([tmp_path / "gone.png"])
