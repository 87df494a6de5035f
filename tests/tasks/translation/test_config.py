"""Settings without a meaning are refused when they are created."""

import pytest

from jaxformer.tasks.translation import DataConfig, DecodeConfig, LossConfig, TranslationConfig
from jaxformer.training.config import TrainConfig


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
