"""Built-in configurations of image classification are valid and have the documented sizes."""

import pytest

from jaxformer.config import from_data, to_data
from jaxformer.tasks.vision import TASK, VisionConfig, presets


@pytest.mark.parametrize(
    ("preset", "millions"),
    [(presets.vision, 1.8), (presets.tiny, 0.5), (presets.convolution, 0.7), (presets.base, 86)],
)
def test_sizes(preset, millions):
    config = preset()
    config.check()
    assert from_data(VisionConfig, to_data(config)) == config
    parameters = TASK.network(config, 10).num_parameters
    assert round(parameters / 1e6, 1 if millions < 10 else None) == millions
