"""Invalid settings of captioning are refused when they are created."""

import pytest

from jaxformer.models import RecurrentCaptionerConfig, TransformerCaptionerConfig, choices
from jaxformer.tasks.captioning import DataConfig, DecodeConfig, LossConfig


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (DataConfig, {"batch_size": 0}, "batch_size must be at least 1"),
        (DataConfig, {"max_length": 1}, "max_length must be at least 2"),
        (DataConfig, {"shift": -1}, "shift must be at least 0"),
        (DataConfig, {"held_out": 1.0}, "held_out must be a fraction between 0 and 1, or an integer from 1, got 1.0"),
        (DataConfig, {"columns": (0, -1)}, "columns must be two different numbers from 0"),
        (DataConfig, {"columns": (1, 1)}, r"columns must be two different numbers from 0, got \(1, 1\)"),
        (DataConfig, {"test_images": "x"}, "test_images is x, but test names no captions"),
        (LossConfig, {"label_smoothing": 1.0}, "label_smoothing must be less than 1"),
        (choices.SoftAttention, {"doubly_stochastic": -1.0}, "doubly_stochastic must be at least 0"),
        (choices.HardAttention, {"soft_attention_rate": 1.1}, "soft_attention_rate must be from 0 to 1, got 1.1"),
        (choices.HardAttention, {"baseline_decay": 1.0}, "baseline_decay must be less than 1"),
        (DecodeConfig, {"max_length": 0}, "max_length must be at least 1"),
        (DecodeConfig, {"min_length": 50}, "min_length must be below max_length"),
        (RecurrentCaptionerConfig, {"num_layers": 0}, "num_layers must be at least 1, got 0"),
        (RecurrentCaptionerConfig, {"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        (TransformerCaptionerConfig, {"causal": False}, "a captioner must be causal"),
    ],
)
def test_refusals(kind, settings, message):
    with pytest.raises(ValueError, match=message):
        kind(**settings)
