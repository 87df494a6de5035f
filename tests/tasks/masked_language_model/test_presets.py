"""Built-in masked language models are valid and have the documented sizes."""

import pytest

from jaxformer.config import from_data, to_data
from jaxformer.tasks.masked_language_model import TASK, MaskedLanguageModelingConfig, presets


@pytest.mark.parametrize(
    ("preset", "layers", "millions"),
    [(presets.masked_language_model, 4, 5.3), (presets.tiny, 2, 1.5), (presets.base, 12, 110)],
)
def test_sizes(preset, layers, millions):
    config = preset()
    config.check()
    assert from_data(MaskedLanguageModelingConfig, to_data(config)) == config
    assert config.model.num_layers == layers
    network = TASK.network(config, TASK.vocab_size(config))
    assert network.num_parameters == pytest.approx(millions * 1e6, rel=0.05)
