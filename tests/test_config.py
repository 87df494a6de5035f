"""Configurations: strict reading, nearest names, changes, fingerprints."""

import dataclasses
import json
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.config import changed, fingerprint, from_data, lasting, to_data
from jaxformer.errors import ConfigError
from jaxformer.models import EncoderDecoderConfig, Seq2SeqConfig
from jaxformer.tasks.translation import TranslationConfig
from jaxformer.tasks.translation.config import CorpusConfig


def test_round_trip_through_json():
    config = TranslationConfig(name="é", seed=3)
    assert from_data(TranslationConfig, json.loads(json.dumps(to_data(config)))) == config


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["seed", "name"]), st.integers(1, 9))
def test_fingerprint_follows_every_setting(name, value):
    config = TranslationConfig()
    other = dataclasses.replace(config, **{name: str(value) if name == "name" else value})
    assert fingerprint(other) != fingerprint(config)
    assert fingerprint(dataclasses.replace(config)) == fingerprint(config)


@pytest.mark.parametrize("place", [{"mesh": "fsdp=8"}, {"data": {"cache": "/tmp"}}, {"data": {"directory": "/data"}}])
def test_fingerprint_ignores_the_place(place):
    """A run can be started on one machine and continued on another."""
    assert fingerprint(from_data(TranslationConfig, place)) == fingerprint(TranslationConfig())
    assert fingerprint(from_data(TranslationConfig, {"data": {"source": "my.en"}})) != fingerprint(TranslationConfig())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"sede": 1}, r"unknown setting 'sede'; did you mean 'seed'\?"),
        ({"train": {"stepz": 1}}, r"unknown setting 'train\.stepz'; did you mean 'steps'\?"),
        ({"train": {"steps": "5"}}, r"train\.steps: got '5', expected int"),
        ({"train": {"steps": np.float32(3)}}, r"train\.steps: got .*3\.0.*, expected int"),
        ({"train": {"steps": 0}}, "steps must be at least 1, got 0"),
        ({"seed": 2.5}, "seed: got 2.5, expected int"),
        ({"seed": True}, "seed: got True, expected int"),
        ({"model": {"norm_position": "sideways"}}, "model.norm_position: got 'sideways', expected one of"),
        ({"model": {"d_model": 100, "num_heads": 3}}, r"model: d_model \(100\) must be divisible by num_heads \(3\)"),
        ({"model": {"kind": "cnn"}}, r"^model: got 'cnn', expected one of 'transformer', 'recurrent'$"),
        ({"model": {"kind": "recurrent", "num_heads": 2}}, r"^unknown setting 'model\.num_heads'"),
        (
            {"tune": {"adapters": {"rank": 4}}},
            r"^tune\.adapters of kind 'none' has no setting 'rank'; give its kind: lora",
        ),
        ({"tune": {"adapters": {"kind": "none", "rank": 4}}}, r"^tune\.adapters of kind"),
        ({"model": {"positions": {"kind": "rotary", "scaling": {"factor": 4.0}}}}, r"scaling of kind .*'factor'"),
        ({"data": 3}, "data must be a table of settings, got 3"),
        ({"data": {"columns": [1]}}, r"data.columns: got \[1\], expected tuple\[int, int\]"),
        # No training could use these numbers.
        (
            {"decode": {"search": {"length_penalty": math.inf}}},
            r"search\.length_penalty must be finite in float32",
        ),
        ({"decode": {"search": {"length_penalty": 1e39}}}, r"length_penalty must be .* in float32, got 1e\+39"),
        ({"loss": {"z_loss": math.inf}}, r"loss\.z_loss must be finite in float32, got inf"),
        ({"data": {"segmentation_alpha": math.nan}}, r"data: segmentation_alpha must be at least 0, got nan"),
        ({"model": {"d_ff": 10**10}}, r"model\.d_ff must be less than 2\*\*31, got 10000000000"),
        ({"data": {"columns": [0, 10**10]}}, r"data\.columns must be less than 2\*\*31"),
        ({"optimizer": {"learning_rate": 10**400}}, r"learning_rate: a number of 401 digits is too large"),
    ],
    ids=range(23),
)
def test_bad_data_names_the_setting(data, message):
    """In a file as among changes."""
    for read in (from_data, lambda kind, changes: changed(kind(), changes)):
        with pytest.raises(ConfigError, match=message):
            read(TranslationConfig, data)


def test_an_int_may_stand_for_a_float():
    assert from_data(TranslationConfig, {"optimizer": {"learning_rate": 1}}).optimizer.learning_rate == 1.0


def test_scalars_of_numpy_are_numbers():
    """As in a sweep over numpy.geomspace; they were refused as "got np.float64(0.001), expected float"."""
    changes = {
        "optimizer": {"learning_rate": np.float64(0.5)},
        "train": {"steps": np.int64(3), "tensorboard": np.True_},
    }
    config = changed(TranslationConfig(), changes | {"data": {"columns": np.array([1, 0])}})
    assert config.data.columns == (1, 0)
    assert type(config.optimizer.learning_rate) is float
    assert (config.optimizer.learning_rate, config.train.steps, config.train.tensorboard) == (0.5, 3, True)
    own = dataclasses.replace(config, seed=np.uint32(7))
    assert from_data(TranslationConfig, json.loads(json.dumps(to_data(own)))) == own


def test_changes_are_nested_and_checked(tmp_path):
    """Mappings change parts of a configuration; other settings stay; paths become text."""
    config = changed(TranslationConfig(), {"seed": 3, "train": {"steps": 5}, "data": {"source": tmp_path / "a"}})
    assert (config.seed, config.train.steps, config.data.source) == (3, 5, str(tmp_path / "a"))
    assert config.train.keep_last == TranslationConfig().train.keep_last


def test_the_kind_of_a_part_chooses_its_class():
    """A configuration that was saved before there were kinds has the first."""
    saved = to_data(TranslationConfig())
    del saved["model"]["kind"]
    assert from_data(TranslationConfig, saved) == TranslationConfig()
    recurrent = TranslationConfig(model=Seq2SeqConfig(cell="gru"))
    assert from_data(TranslationConfig, json.loads(json.dumps(to_data(recurrent)))) == recurrent


def test_another_kind_keeps_common_settings():
    config = TranslationConfig(model=EncoderDecoderConfig(d_model=24, num_heads=4, dropout=0.3), seed=5)
    got = changed(config, {"model": {"kind": "recurrent", "cell": "gru"}})
    layers = {"num_encoder_layers": 6, "num_decoder_layers": 6}
    assert got.model == Seq2SeqConfig(d_model=24, dropout=0.3, cell="gru", **layers)
    assert got.seed == 5
    assert changed(got, {"model": {"kind": "recurrent"}}) == got


class Own:
    """A position scheme of the user's."""

    @staticmethod
    def make(config, *, rngs):
        raise NotImplementedError


def test_a_run_has_no_parts_that_its_file_cannot_hold():
    model = dataclasses.replace(EncoderDecoderConfig(), positions=Own())
    with pytest.raises(
        ConfigError, match=r"^model\.positions is your own <.*Own object.*, which config\.json cannot hold"
    ):
        TranslationConfig(model=model)


def test_parts_that_a_user_names():
    """A mapping of names to settings: as plain data and back, changed by name, and named in errors."""
    config = changed(TranslationConfig(), {"data": {"corpora": {"a": {"source": "x"}}}})
    more = {"b": {"source": "y", "weight": 2.0}, "a": {"target": "z", "weight": 1}}
    config = changed(config, {"data": {"corpora": more}})
    corpora = {"a": CorpusConfig(source="x", target="z", weight=1.0), "b": CorpusConfig(source="y", weight=2.0)}
    assert config.data.corpora == corpora
    assert from_data(TranslationConfig, json.loads(json.dumps(to_data(config)))) == config
    assert "weight" not in lasting(config)["data"]["corpora"]["a"]
    for corpora, message in (
        ({"a-b": {}}, "data.corpora: a name has up to 40 letters, digits and _, got 'a-b'; take 'a_b'"),
        ("x", "data.corpora must be a table of names"),
        ({"a": {"sauce": "x"}}, "unknown setting 'data.corpora.a.sauce'; did you mean 'source'"),
        ({"a": {"weight": -1.0}}, "data.corpora.a: weight must be from 0 and finite in float32"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            from_data(TranslationConfig, {"data": {"corpora": corpora}})
    with pytest.raises(ConfigError, match=r"data\.corpora\.a: weight must be .* finite in float32, got 1e\+300"):
        changed(config, {"data": {"corpora": {"a": {"weight": 1e300}}}})
