"""Importing the settings of a task imports nothing else of it."""

import math
import subprocess
import sys

import pytest

from jaxformer.cli.arguments import override
from jaxformer.config import changed, from_data, to_data
from jaxformer.errors import ConfigError
from jaxformer.tasks import registry
from jaxformer.tasks.config import (
    Beam,
    Greedy,
    MinimumRisk,
    Sample,
    SearchConfig,
    TaskConfig,
    TuneConfig,
    split_classes,
    words,
)


@pytest.mark.parametrize("name", registry.TASKS)
def test_a_configuration_names_its_task(name):
    assert registry.get(name).config.task == name
    assert issubclass(registry.get(name).config, TaskConfig)


def test_settings_of_a_translation_are_resolved_without_its_libraries():
    program = "from jaxformer.tasks import registry; registry.resolve('demo'); import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    heavy = {"grain", "sentencepiece", "sacrebleu", "sacremoses", "matplotlib", "tensorboardX"}
    assert heavy & set(done.stdout.split()) == set()


def test_words_in_a_setting():
    assert words(" a, b ,,c d") == ("a", "b", "c d")
    assert words(" ") == ()
    assert split_classes("e\u0301, b") == ("\u00e9", "b")


@pytest.mark.parametrize("text", [",", " , ,", " "])
def test_forbidding_nothing_is_refused(text):
    with pytest.raises(ValueError, match="forbid names no word or phrase"):
        SearchConfig(forbid=text)
    assert SearchConfig(forbid="").forbidden_phrases == ()


@pytest.mark.parametrize("number", [1, 65_537, 2_000_000_000])
def test_the_number_of_candidates_is_limited(number):
    """Too many ended the process inside XLA."""
    with pytest.raises(ValueError, match=f"num_candidates must be from 2 to 65,536, got {number}$"):
        MinimumRisk(num_candidates=number)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sample(temperature=0.0), "temperature must be positive and finite, got 0.0; or take search greedy"),
        (lambda: Sample(temperature=math.inf), "temperature must be positive and finite, got inf"),
        (lambda: Sample(top_p=0.0), r"top_p must be in \(0, 1\], got 0.0"),
        (lambda: Sample(seed=2**32), r"seed must be less than 2\*\*32, got 4294967296"),
        (lambda: Beam(beam_size=0), "beam_size must be at least 1, got 0"),
        (lambda: Beam(patience=2.0, stopping="limit"), "patience 2.0 is for stopping first, got stopping limit"),
        (
            lambda: Beam(length_penalty=0.0, normalization="words"),
            "normalization words has no effect: length_penalty is",
        ),
        (
            lambda: SearchConfig(search="beam"),
            r"search must be one of Beam\(\), Greedy\(\), Sample\(\), MinimumRisk\(\)",
        ),
        (
            lambda: MinimumRisk(num_candidates=5, candidates=Beam()),
            "num_candidates must be at most candidates.beam_size, 4, got 5",
        ),
    ],
)
def test_settings_of_a_search_without_a_meaning_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_search_has_its_own_settings_in_plain_data():
    """Another search drops them; minimum Bayes risk holds those of its candidates."""
    risk = MinimumRisk(num_candidates=3, candidates=Beam(beam_size=6))
    config = SearchConfig(search=risk, max_length=9)
    data = to_data(config)["search"]
    assert (data["kind"], data["candidates"]["kind"], data["candidates"]["beam_size"]) == ("minimum_risk", "beam", 6)
    assert from_data(SearchConfig, to_data(config)) == config
    assert changed(config, {"search": "greedy"}) == SearchConfig(search=Greedy(), max_length=9)
    assert (config.finder, config.greedy.finder) == (Beam(beam_size=6), Beam(beam_size=1))
    assert [SearchConfig(search=x).num_texts(2) for x in (Sample(), Beam(), MinimumRisk())] == [2, 4, 32]
    seeds = {SearchConfig(search=MinimumRisk(candidates=Sample(seed=seed))).static for seed in (0, 1)}
    assert seeds == {SearchConfig(search=Sample(), batch_size=1)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"adapters": {"kind": "lora", "rank": 0}}, "rank must be at least 1, got 0"),
        ({"adapters": {"kind": "lora", "targets": " ,"}}, "targets names no matrix, got ' ,'"),
        ({"adapters": {"kind": "lora", "alpha": 0.0}}, "alpha must be more than 0, got 0.0"),
        ({"adapters": {"kind": "dora"}}, "adapters: got 'dora', expected one of 'lora', 'none'"),
        ({"frozen": ","}, "frozen names no parameter, got ','"),
    ],
)
def test_tuning_without_an_effect_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        from_data(TuneConfig, settings)


@pytest.mark.parametrize("name", registry.TASKS)
def test_held_out_is_a_fraction_or_a_number_in_every_task(name):
    config = registry.get(name).config()
    for word, value in (("0.1", 0.1), ("1", 1), ("20", 20)):
        found = from_data(type(config), to_data(override(config, ["--data.held-out", word]))).data.held_out
        assert (type(found), found) == (type(value), value)
    for word in ("1.0", "1.5", "-1", "0.0", "nan"):
        message = f"held_out must be a fraction between 0 and 1, or an integer from 1, got {word}"
        with pytest.raises(ConfigError, match=message):
            override(config, ["--data.held-out", word])
    with pytest.raises(ConfigError, match=r"data.held_out: got 'half', expected int . float"):
        changed(config, {"data": {"held_out": "half"}})


OF_TEXT = [name for name in registry.TASKS if hasattr(registry.get(name).config().data, "tokenizer")]


@pytest.mark.parametrize("name", OF_TEXT)
def test_subwords_without_room_for_the_bytes_are_refused_before_any_work(name):
    data = type(registry.get(name).config().data)
    with pytest.raises(ValueError, match="vocab_size must be at least 260, got 259"):
        data(tokenizer="unigram", vocab_size=259)
    assert data(tokenizer="unigram", vocab_size=260).vocab_size == 260
