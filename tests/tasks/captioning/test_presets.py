"""Built-in configurations of captioning are valid and have the documented sizes."""

import pytest

from jaxformer.config import from_data, to_data
from jaxformer.tasks.captioning import TASK, CaptioningConfig, presets


@pytest.mark.parametrize(
    ("preset", "millions"),
    [(presets.captioning, 4.5), (presets.tiny, 0.6), (presets.small, 4.5), (presets.transformer, 7.6)],
)
def test_sizes(preset, millions):
    config = preset()
    config.check()
    assert from_data(CaptioningConfig, to_data(config)) == config
    parameters = TASK.network(config, config.data.vocab_size).num_parameters
    assert round(parameters / 1e6, 1) == millions
