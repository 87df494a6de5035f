"""Every configuration below experiments/, and every built-in one, makes a network whose size is counted."""

import dataclasses
import math
import pathlib

import jax
import pytest

from jaxformer.config import from_data, to_data
from jaxformer.tasks import registry
from jaxformer.tasks.translation.corpora import load_corpora
from tests.selection import first

ROOT = pathlib.Path(__file__).parents[2]
TRANSLATION = (
    "multi30k:en_de multi30k:de_en multi30k:en_fr multi30k:published multi30k:published_accelerator "
    "multi30k:muon multi30k:muon_accelerator "
    "tatoeba:en_fr tatoeba:en_de "
    "wmt14:base_en_de wmt14:big_en_de wmt14:large_en_de wmt14:base_en_fr wmt14:big_en_fr"
).split()
LANGUAGE_MODEL = [
    f"tinyshakespeare:{name}" for name in ("characters", "characters_large", "characters_hour", "subwords", "no_mask")
]
LANGUAGE_MODEL += [f"published:{name}" for name in ("gpt2_xl", "megatron_8b", "gpt3_175b")]
NAMES = [*registry.BUILTIN, *TRANSLATION, *LANGUAGE_MODEL, "english:small"]
FEW = (
    *("demo", "language_model:tiny", "masked_language_model:tiny", "classification:tiny", "vision:tiny"),
    *("captioning:tiny", "wmt14:base_en_de", "wmt14:big_en_de"),
)


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_the_list_is_complete():
    listed = [name.rpartition("/")[2] for name, _ in registry.catalog()]
    assert sorted(listed) == sorted(NAMES)
    assert all(summary for _, summary in registry.catalog())


@pytest.mark.parametrize("name", first(NAMES, *FEW))
def test_configuration_makes_a_network(name):
    config = registry.resolve(name)
    assert from_data(type(config), to_data(config)) == config
    vocab_size = getattr(config.data, "vocab_size", 72)
    sizes = (vocab_size, 2) if config.task in {"classification", "tagging"} else vocab_size
    network = registry.task_of(config).network(config, sizes)
    parameters = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(network.net.shapes))
    assert parameters == network.num_parameters
    published = {"wmt14:base_en_de": 65e6, "wmt14:big_en_de": 213e6}.get(name)
    if published:  # the paper's table 3
        assert abs(parameters / published - 1) < 0.05


@pytest.mark.full
@pytest.mark.parametrize(("name", "pairs"), [("multi30k:published", 29_000), ("tatoeba:en_fr", 160_000)])
def test_corpora_are_read(name, pairs, data_directory):
    config = registry.resolve(name)
    data = dataclasses.replace(config.data, directory=str(data_directory))
    corpora = load_corpora(data)
    assert len(corpora.train) >= pairs
    train, test = (
        {line for lines in pairs.side(0) for line in lines} for pairs in (corpora.train, corpora.tests["test"])
    )
    assert not train & test


@pytest.mark.full
def test_tinyshakespeare_is_split_as_published(data_directory):
    config = registry.resolve("tinyshakespeare:characters")
    data = dataclasses.replace(config.data, directory=str(data_directory))
    corpus = registry.task_of(config).read(dataclasses.replace(config, data=data))
    assert (len(corpus.train), len(corpus.validation)) == (1_003_854, 111_540)
