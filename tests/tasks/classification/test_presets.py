"""Built-in classifiers are valid, and have the encoders of the masked language models of the same size."""

import pytest

from jaxformer.config import from_data, to_data
from jaxformer.tasks.classification import TASK, ClassificationConfig, presets
from jaxformer.tasks.masked_language_model import presets as masked


@pytest.mark.parametrize(
    ("preset", "source"),
    [(presets.classification, masked.masked_language_model), (presets.tiny, masked.tiny), (presets.average, None)],
)
def test_encoders(preset, source):
    config = preset()
    config.check()
    assert from_data(ClassificationConfig, to_data(config)) == config
    if source is not None:
        config.check_init(source())
    else:
        assert list(TASK.network(config, (100, 2)).net.shapes["encoder"]) == ["embeddings"]


def test_the_smallest_preset_compiles_few_programs():
    assert (presets.tiny().data.num_shapes, presets.classification().data.num_shapes) == (3, 4)
