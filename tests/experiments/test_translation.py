"""Every configuration below experiments/ makes a model, and says what it costs."""

import dataclasses
import pathlib

import jax
import pytest

from jaxformer import models
from jaxformer.config import catalog, from_data, resolve, to_data
from jaxformer.modules import pure
from jaxformer.tasks.translation import TranslationConfig
from jaxformer.tasks.translation.corpora import load_corpora

ROOT = pathlib.Path(__file__).parents[2]
NAMES = (
    "multi30k:en_de multi30k:de_en multi30k:en_fr tatoeba:en_fr tatoeba:en_de wmt14:base_en_de wmt14:big_en_de "
    "wmt14:large_en_de wmt14:base_en_fr wmt14:big_en_fr demo translation"
).split()


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_the_list_is_complete():
    assert {name.removeprefix("translation/") for name, _ in catalog()} == set(NAMES)
    assert all(summary for _, summary in catalog())


@pytest.mark.parametrize("name", NAMES)
def test_configuration_makes_a_model(name):
    task, config = resolve(name)
    assert task == "translation"
    assert from_data(TranslationConfig, to_data(config)) == config
    size = config.data.vocab_size
    model = dataclasses.replace(config.model, source_vocab_size=size, target_vocab_size=size)
    shapes = pure(models.EncoderDecoder, model).shapes
    parameters = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    assert parameters == models.costs.encoder_decoder_parameters(model)
    published = {"wmt14:base_en_de": 65e6, "wmt14:big_en_de": 213e6}.get(name)
    if published:  # the paper's table 3
        assert abs(parameters / published - 1) < 0.05


@pytest.mark.full
@pytest.mark.parametrize(("name", "pairs"), [("multi30k:en_de", 29_000), ("tatoeba:en_fr", 160_000)])
def test_corpora_are_read(name, pairs, data_directory):
    _, config = resolve(name)
    data = dataclasses.replace(config.data, directory=str(data_directory))
    corpora = load_corpora(data, seed=0)
    assert len(corpora.train) >= pairs
    assert not set(corpora.train.source) & set(corpora.tests["test"].source)
