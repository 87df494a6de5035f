"""Built-in translation configurations: allowed, of the size they promise, and with docstrings that lists can show."""

import dataclasses

import pytest

from jaxformer.config import from_data, to_data
from jaxformer.tasks.translation import TASK, DataConfig, TranslationConfig, presets

PRESETS = [presets.demo, presets.translation, presets.tiny, presets.small, presets.base, presets.big]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_a_configuration_of_the_task(preset):
    config = preset()
    assert config.name.rpartition("-")[2] == preset.__name__
    config.check()
    assert from_data(TranslationConfig, to_data(config)) == config
    assert preset() == config


@pytest.mark.parametrize(
    ("preset", "layers", "d_model", "millions"),
    [
        (presets.demo, 2, 128, 0.92),
        (presets.translation, 4, 256, 9.4),
        (presets.tiny, 2, 128, 1.95),
        (presets.small, 4, 256, 9.4),
        (presets.base, 6, 512, 60.5),
        (presets.big, 6, 1024, 209),
    ],
)
def test_sizes(preset, layers, d_model, millions):
    config = preset()
    assert config.model.num_encoder_layers == config.model.num_decoder_layers == layers
    assert config.model.d_model == d_model
    network = TASK.network(config, TASK.vocab_size(config))
    assert network.num_parameters == pytest.approx(millions * 1e6, rel=0.05)


def test_the_data_of_the_demo_is_built_in_and_that_of_the_other_is_yours():
    assert presets.demo().data.corpus == "grammar"
    data = presets.translation().data
    assert (data.corpus, data.source, data.target) == (DataConfig().corpus, "", "")


def test_validation_and_checkpoints_fall_on_the_last_step():
    """So that the last parameters are scored, and saved."""
    for preset in PRESETS:
        train = preset().train
        assert train.steps % train.validate_every == train.steps % train.checkpoint_every == 0
        assert dataclasses.replace(train) == train


def test_the_smallest_presets_compile_few_programs():
    """Six took minutes on a busy laptop. The batches of the demo, and with them its losses, are recorded."""
    assert [preset().data.num_shapes for preset in PRESETS] == [3, 6, 3, 6, 6, 6]
