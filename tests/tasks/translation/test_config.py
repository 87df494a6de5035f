"""Settings without a meaning are refused when they are created."""

import pytest

from jaxformer.tasks.translation import DataConfig, DecodeConfig, LossConfig, TranslationConfig
from jaxformer.tasks.translation.config import CorpusConfig
from jaxformer.training.config import TrainConfig

A, B = CorpusConfig(source="a", target_language="de"), CorpusConfig(source="b", target_language="fr")


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (TrainConfig, {"keep_last": 0}, "keep_last must be at least 1, got 0"),
        (TrainConfig, {"num_microbatches": 0}, "num_microbatches must be at least 1"),
        (TrainConfig, {"minutes": float("nan")}, "minutes must be at least 0, got nan"),
        (TrainConfig, {"ema_decay": 1.0}, "ema_decay must be less than 1"),
        (DataConfig, {"vocab_size": 259}, "vocab_size must be at least 260, got 259"),
        (DataConfig, {"num_segmentations": -1}, "num_segmentations must be at least 0"),
        (DataConfig, {"segmentation_alpha": -0.1}, "segmentation_alpha must be at least 0"),
        (DataConfig, {"segmentation_alpha": 0.1}, "segmentation_alpha 0.1 has no effect: num_segmentations is 1"),
        (DataConfig, {"tokenizer": "bpe", "segmentation_alpha": 1.5}, "segmentation_alpha must be at most 1 for bpe"),
        (DataConfig, {"num_shapes": 0}, "num_shapes must be at least 1"),
        (DataConfig, {"corpus": "grammar", "source": "a.en"}, r"source 'a\.en' has no effect: corpus is grammar"),
        (DataConfig, {"columns": (0, -3)}, "columns must be two different numbers from 0"),
        (DataConfig, {"columns": (0, 0)}, r"columns must be two different numbers from 0, got \(0, 0\)"),
        (DataConfig, {"pretokenize": "moses", "source_language": "en"}, "set source_language and target_language"),
        (
            DataConfig,
            {"target_language": "zh-CN"},
            "target_language must be a two-letter code .* got 'zh-CN'; did you me",
        ),
        (
            DataConfig,
            {"source_language": "EN"},
            "source_language must be a two-letter code .* got 'EN'; did you mean 'en'",
        ),
        (DataConfig, {"temperature": 2.0}, r"temperature 2\.0 has no effect: corpora names none"),
        (DataConfig, {"tags": "source"}, "tags source has no effect: corpora names none"),
        (DataConfig, {"corpora": {"a": A}, "source": "c"}, "source 'c' has no effect with corpora"),
        (DataConfig, {"corpora": {"a": A}, "corpus": "grammar"}, "corpora has no effect: corpus is grammar"),
        (DataConfig, {"corpora": {"a": A}, "mix_in_batch": False}, "mix_in_batch False has no effect"),
        (DataConfig, {"corpora": {"a": A, "b": A}}, r"corpora\.a and corpora\.b name the same pairs"),
        (DataConfig, {"corpora": {"a": CorpusConfig()}}, r"corpora\.a names no file"),
        (DataConfig, {"corpora": {"a": CorpusConfig(source="a")}, "tags": "source"}, "tags need a language"),
        (DataConfig, {"corpora": {"a": CorpusConfig(source="a", weight=2.0), "b": B}}, "a has a weight and b has none"),
        (
            DataConfig,
            {"corpora": {"a": A, "b": B}, "pretokenize": "moses", "source_language": "en", "target_language": "de"},
            r"the rules of one pair of languages, but corpora\.b has others",
        ),
        (CorpusConfig, {"source_language": "EN"}, "source_language must be a two-letter code"),
        (TranslationConfig, {"seed": -1}, "seed must be at least 0, got -1"),
        (TranslationConfig, {"seed": 2**32}, r"seed must be less than 2\*\*32"),
        (LossConfig, {"label_smoothing": 1.0}, "label_smoothing must be less than 1"),
        (LossConfig, {"r_drop": -1.0}, "r_drop must be at least 0"),
        (DecodeConfig, {"max_extra": -1}, "max_extra must be at least 0"),
    ],
)
def test_settings_without_an_effect_are_refused(kind, settings, message):
    with pytest.raises(ValueError, match=message):
        kind(**settings)
