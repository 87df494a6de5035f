"""Invalid configurations of image models are refused when they are created."""

import pytest

from jaxformer import models
from jaxformer.models import choices


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (models.VisionTransformerConfig, {"image_size": (30, 32)}, r"multiple of patch_size 4, got \(30, 32\)"),
        (models.VisionTransformerConfig, {"pooling": "max"}, "pooling must be one of"),
        (models.ResidualNetworkConfig, {"widths": ()}, "widths must have one number for each stage, got none"),
        (models.ResidualNetworkConfig, {"widths": (8, 0)}, r"widths must be at least 1, got \(8, 0\)"),
        (models.ResidualNetworkConfig, {"num_blocks": 0}, "num_blocks must be at least 1, got 0"),
        (models.ResidualNetworkConfig, {"num_classes": -1}, "num_classes must be at least 0, got -1"),
        (models.ResidualNetworkConfig, {"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        (models.ResidualNetworkConfig, {"attention": "all"}, "attention must be one of"),
        (models.ResidualNetworkConfig, {"attention": choices.GainAttention(4)}, "one of the 3 stages, got 4"),
    ],
)
def test_refusals(make, options, message):
    """Also without the type hook of the tests."""
    config = make()
    for name, value in options.items():
        object.__setattr__(config, name, value)
    with pytest.raises(ValueError, match=message):
        config.__post_init__()


def test_derived_sizes():
    assert models.ResidualNetworkConfig(attention=choices.GainAttention()).attention_dim == 8  # an eighth of 64
    assert models.ResidualNetworkConfig(attention=choices.ScaledAttention(d_attention=3)).attention_dim == 3
    assert models.VisionTransformerConfig().has_class_vector
    assert not models.VisionTransformerConfig(pooling="mean").has_class_vector
