"""Invalid settings of images are refused when they are created."""

import pytest

from jaxformer.errors import ConfigError
from jaxformer.tasks.vision import DataConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"max_images": -1}, "max_images must be at least 0"),
        ({"shift": -1}, "shift must be at least 0"),
        ({"held_out": 0.0}, "held_out must be a fraction between 0 and 1, or an integer from 1, got 0.0"),
        ({"crop": 0.0}, "crop must be more than 0 and at most 1, got 0.0"),
        ({"test_labels": "x"}, "test_labels is x, but test names no images"),
        ({"cache": "gs://x"}, "is not a path"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ConfigError, match=message):
        DataConfig(**settings)


def test_names_of_classes():
    assert DataConfig(classes=" a, b ,").class_names == ("a", "b")
    assert DataConfig(classes="cafe\u0301, b").class_names == ("caf\u00e9", "b")
