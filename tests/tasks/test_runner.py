"""The runner: what it refuses, and what it leaves behind."""

import dataclasses

import jax
import pytest

import jaxformer
from jaxformer import training
from jaxformer.data.tokenizer import load_tokenizer
from jaxformer.errors import ConfigError, DataError
from jaxformer.tasks import registry, rundir, runner
from tests.contracts.task import quiet
from tests.tasks.small import small


def test_settings_put_right_are_not_another_run(tmp_path):
    """What ended for its settings, before a step, is in nobody's way: the advice of its message can be followed."""
    wrong = small(cache=str(tmp_path / "cache"))
    for config in (wrong, dataclasses.replace(wrong, data=dataclasses.replace(wrong.data, vocab_size=500))):
        with pytest.raises(DataError, match=r"model\.max_positions is 8"):
            jaxformer.train(config, tmp_path / "run", console=quiet())
    assert load_tokenizer(tmp_path / "run" / "tokenizer.model").vocab_size == 500
    assert registry.read_config(tmp_path / "run").data.vocab_size == 500


def test_scores_are_of_the_data_of_the_run(tmp_path):
    """Otherwise what is held out may have been trained on."""
    rundir.claim(tmp_path, "translation", small(), ())
    rundir.write_provenance(tmp_path, data={"train": "another", "validation": "one"})
    with pytest.raises(ConfigError, match="a run on other data, by its hash: train was 'another'"):
        jaxformer.evaluate(tmp_path, object())


def test_a_checkpoint_is_a_number_of_digits(tmp_path):
    with training.Checkpoints(tmp_path) as saved:
        saved.save(2, {"x": jax.numpy.ones(2)}, {})
        with pytest.raises(ConfigError, match="no checkpoint '²'"):
            runner._choose(saved, "²")
