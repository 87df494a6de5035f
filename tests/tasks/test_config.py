"""The settings of tasks: what is refused, and that importing them imports nothing else of a task."""

import math
import subprocess
import sys

import pytest

from jaxformer import models
from jaxformer.cli.arguments import override
from jaxformer.config import changed, from_data, to_data
from jaxformer.errors import ConfigError
from jaxformer.models import choices
from jaxformer.tasks import captioning, classification, language_model, registry, translation, vision
from jaxformer.tasks.config import (
    Beam,
    Greedy,
    LowRank,
    MinimumRisk,
    Sample,
    SearchConfig,
    TaskConfig,
    TuneConfig,
    split_classes,
    words,
)
from jaxformer.tasks.masked_language_model import MaskedLanguageModelingConfig


def test_settings_of_a_translation_are_resolved_without_its_libraries():
    program = "from jaxformer.tasks import registry; registry.resolve('demo'); import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    heavy = {"grain", "sentencepiece", "sacrebleu", "sacremoses", "matplotlib", "tensorboardX"}
    assert heavy & set(done.stdout.split()) == set()


def test_words_in_a_setting():
    assert words(" a, b ,,c d") == ("a", "b", "c d")
    assert words(" ") == ()
    assert split_classes("e\u0301, b") == ("\u00e9", "b")


REFUSED = [
    (lambda: Sample(temperature=0.0), "temperature must be positive and finite, got 0.0; or take search greedy"),
    (lambda: Sample(temperature=math.inf), "temperature must be positive and finite, got inf"),
    (lambda: Sample(top_p=0.0), r"top_p must be in \(0, 1\], got 0.0"),
    (lambda: Sample(seed=2**32), r"seed must be less than 2\*\*32, got 4294967296"),
    (lambda: Beam(beam_size=0), "beam_size must be at least 1, got 0"),
    (lambda: Beam(patience=2.0, stopping="limit"), "patience 2.0 is for stopping first, got stopping limit"),
    (lambda: Beam(length_penalty=0.0, normalization="words"), "normalization words has no effect: length_penalty is"),
    (lambda: MinimumRisk(num_candidates=1), "num_candidates must be from 2 to 65,536, got 1$"),
    (lambda: MinimumRisk(num_candidates=65_537), "num_candidates must be from 2 to 65,536, got 65537$"),
    (lambda: MinimumRisk(num_candidates=5, candidates=Beam()), "must be at most candidates.beam_size, 4, got 5"),
    (lambda: SearchConfig(search="beam"), r"search must be one of Beam\(\), Greedy\(\), Sample\(\), MinimumRisk\(\)"),
    (lambda: SearchConfig(forbid=" , ,"), "forbid names no word or phrase"),
    (lambda: from_data(TuneConfig, {"frozen": ","}), "frozen names no parameter, got ','"),
    (
        lambda: from_data(TuneConfig, {"adapters": {"kind": "dora"}}),
        "adapters: got 'dora', expected one of 'lora'",
    ),
    (lambda: LowRank(rank=0), "rank must be at least 1, got 0"),
    (lambda: LowRank(targets=" ,"), "targets names no matrix, got ' ,'"),
    (lambda: LowRank(alpha=0.0), "alpha must be more than 0, got 0.0"),
    (lambda: TaskConfig(seed=-1), "seed must be at least 0, got -1"),
    (lambda: TaskConfig(seed=2**32), r"seed must be less than 2\*\*32"),
    (lambda: TaskConfig(init_positions="copy"), "init_positions copy has no effect without init_from"),
    (lambda: translation.DataConfig(num_segmentations=-1), "num_segmentations must be at least 0"),
    (lambda: translation.DataConfig(segmentation_alpha=-0.1), "segmentation_alpha must be at least 0"),
    (lambda: translation.DataConfig(segmentation_alpha=0.1), "segmentation_alpha 0.1 has no effect: num_segmentations"),
    (
        lambda: translation.DataConfig(tokenizer="bpe", segmentation_alpha=1.5),
        "segmentation_alpha must be at most 1",
    ),
    (lambda: translation.DataConfig(num_shapes=0), "num_shapes must be at least 1"),
    (
        lambda: translation.DataConfig(corpus="grammar", source="a.en"),
        r"source 'a\.en' has no effect: corpus is gr",
    ),
    (lambda: translation.DataConfig(columns=(0, -3)), "columns must be two different numbers from 0"),
    (lambda: translation.DataConfig(pretokenize="moses", source_language="en"), "set source_language and target_lang"),
    (
        lambda: translation.DataConfig(target_language="zh-CN"),
        "target_language must be a two-letter .* got 'zh-CN'",
    ),
    (lambda: translation.DataConfig(source_language="EN"), "source_language must be .* got 'EN'; did you mean 'en'"),
    (lambda: translation.LossConfig(label_smoothing=1.0), "label_smoothing must be less than 1"),
    (lambda: translation.LossConfig(r_drop=-1.0), "r_drop must be at least 0"),
    (lambda: translation.LossConfig(r_drop=5.0, simcut=translation.SimCutConfig(3.0)), "both compare two passes"),
    (lambda: translation.SimCutConfig(weight=-1.0), "weight must be at least 0"),
    (lambda: translation.SimCutConfig(cut=1.0), "cut must be less than 1, got 1.0"),
    (lambda: translation.DecodeConfig(max_extra=-1), "max_extra must be at least 0"),
    (lambda: captioning.DataConfig(batch_size=0), "batch_size must be at least 1"),
    (lambda: captioning.DataConfig(max_length=1), "max_length must be at least 2"),
    (lambda: captioning.DataConfig(shift=-1), "shift must be at least 0"),
    (lambda: captioning.DataConfig(columns=(1, 1)), r"columns must be two different numbers from 0, got \(1, 1\)"),
    (lambda: captioning.DataConfig(test_images="x"), "test_images is x, but test names no captions"),
    (lambda: captioning.LossConfig(label_smoothing=1.0), "label_smoothing must be less than 1"),
    (lambda: captioning.DecodeConfig(max_length=0), "max_length must be at least 1"),
    (lambda: captioning.DecodeConfig(min_length=50), "min_length must be below max_length"),
    (lambda: choices.SoftAttention(doubly_stochastic=-1.0), "doubly_stochastic must be at least 0"),
    (lambda: choices.HardAttention(soft_attention_rate=1.1), "soft_attention_rate must be from 0 to 1, got 1.1"),
    (lambda: choices.HardAttention(baseline_decay=1.0), "baseline_decay must be less than 1"),
    (lambda: models.RecurrentCaptionerConfig(num_layers=0), "num_layers must be at least 1, got 0"),
    (lambda: models.RecurrentCaptionerConfig(dropout=1.0), r"dropout must be in \[0, 1\), got 1.0"),
    (lambda: models.TransformerCaptionerConfig(causal=False), "a captioner must be causal"),
    (lambda: vision.DataConfig(batch_size=0), "batch_size must be at least 1"),
    (lambda: vision.DataConfig(max_images=-1), "max_images must be at least 0"),
    (lambda: vision.DataConfig(shift=-1), "shift must be at least 0"),
    (lambda: vision.DataConfig(crop=0.0), "crop must be more than 0 and at most 1, got 0.0"),
    (lambda: vision.DataConfig(test_labels="x"), "test_labels is x, but test names no images"),
    (lambda: vision.DataConfig(cache="gs://x"), "is not a path"),
    (lambda: vision.DataConfig(classes="a"), "classes must be two or more different names, got 'a'"),
    (lambda: vision.DataConfig(classes="caf\u00e9, cafe\u0301"), "must be two or more different names, got"),
    (lambda: classification.DataConfig(classes="a,b,a"), "must be two or more different names, got"),
    (lambda: classification.DataConfig(max_examples=-1), "max_examples must be at least 0"),
    (lambda: language_model.DecodeConfig(max_tokens=0), "max_tokens must be at least 1"),
    (lambda: language_model.DecodeConfig(stop_at_end=True, eos_token_ids="4,-1"), "ids of tokens, .* got '4,-1'"),
    (lambda: language_model.DecodeConfig(stop_at_end=True, eos_token_ids=","), "must be ids of tokens, .* got ','"),
    (lambda: language_model.DecodeConfig(eos_token_ids="4"), "eos_token_ids 4 has no effect: stop_at_end is False"),
    (
        lambda: MaskedLanguageModelingConfig(model=models.EncoderConfig(positions=choices.Normalized())),
        r"model\.positions must not be 'normalized'",  # a row holds several texts
    ),
]
"""Settings without a meaning, which are refused when they are created."""


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_settings_without_a_meaning_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_settings_at_the_limit_are_taken():
    assert SearchConfig(forbid="").forbidden_phrases == ()
    assert TaskConfig(seed=2**32 - 1).seed == 2**32 - 1
    assert vision.DataConfig(classes=" a, b ,").class_names == ("a", "b")
    assert vision.DataConfig(classes="cafe\u0301, b").class_names == ("caf\u00e9", "b")


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
