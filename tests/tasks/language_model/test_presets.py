"""Built-in language models are valid and have the documented sizes."""

import pytest

from jaxformer.config import from_data, to_data
from jaxformer.tasks.language_model import TASK, LanguageModelingConfig, presets


@pytest.mark.parametrize(
    ("preset", "vocab_size", "layers", "millions"),
    [
        (presets.language_model, 80, 4, 0.8),
        (presets.tiny, 80, 2, 0.12),
        (presets.small, 80, 4, 0.8),
        (presets.base, 32_000, 12, 110),
        (presets.big, 32_000, 24, 336),
    ],
)
def test_sizes(preset, vocab_size, layers, millions):
    config = preset()
    TASK.check(config)
    assert from_data(LanguageModelingConfig, to_data(config)) == config
    assert config.model.num_layers == layers
    assert TASK.network(config, vocab_size).num_parameters == pytest.approx(millions * 1e6, rel=0.05)
