"""The configurations of all models check their choices, sizes and rates in the same way."""

import dataclasses
import inspect
import math
import typing

import numpy as np
import pytest

from jaxformer import models, pure
from jaxformer.models.config import check_fields

SHAPES = [
    models.EncoderDecoderConfig, models.ClassifierConfig, models.Seq2SeqConfig, models.VisionTransformerConfig,
    models.ResidualNetworkConfig, models.RecurrentCaptionerConfig, models.TransformerCaptionerConfig,
]  # fmt: skip
FROM_DATA = {"vocab_size", "source_vocab_size", "target_vocab_size", "num_classes"}
MAY_BE_ZERO = FROM_DATA | {"position_offset", "num_token_types"}


@pytest.mark.parametrize("shape", SHAPES)
def test_sizes_and_rates(shape):
    for name, kind in typing.get_type_hints(shape).items():
        least = 0 if name in MAY_BE_ZERO or (name == "num_layers" and issubclass(shape, models.EncoderConfig)) else 1
        wrong = []
        if kind in (int, int | None):
            wrong = [(least - 1, f"^{name} must be at least {least}, got {least - 1}")]
        if name.endswith("dropout"):
            wrong = [(value, rf"^{name} must be in \[0, 1\), got {value}") for value in (-0.1, 1.0)]
        for value, message in wrong:
            with pytest.raises(ValueError, match=message):
                shape(**{name: value})


def test_choices():
    @dataclasses.dataclass
    class Shape:
        cell: typing.Literal["gru", "lstm"]

    check_fields(Shape("gru"))
    with pytest.raises(ValueError, match=r"^cell must be one of \('gru', 'lstm'\), got 'other'"):
        check_fields(Shape("other"))


@pytest.mark.parametrize(
    ("part", "choice", "message"),
    [
        ({"rotary": models.RotaryConfig(base=5e5)}, {"positions": "rotary"}, "rotary .* positions is 'learned'"),
        ({"experts": models.ExpertsConfig(4)}, {"feed_forward": "experts"}, "experts .* feed_forward is 'plain'"),
    ],
)
def test_settings_of_unused_parts_are_refused(part, choice, message):
    models.LanguageModelConfig(9, **part, **choice)
    with pytest.raises(ValueError, match=message):
        models.LanguageModelConfig(9, **part)


def test_choices_of_a_part():
    """An unknown scaling of rotary positions had no effect."""

    @dataclasses.dataclass
    class Part:
        scaling: typing.Literal["none", "yarn"]
        trained_length: int = 1

    @dataclasses.dataclass
    class Shape:
        rotary: Part

    check_fields(Shape(Part("yarn")))
    with pytest.raises(ValueError, match=r"^scaling must be one of \('none', 'yarn'\), got 'dynamic'"):
        check_fields(Shape(Part("dynamic")))
    with pytest.raises(ValueError, match=r"^trained_length must be at least 1, got 0"):
        models.LanguageModelConfig(9, rotary=models.RotaryConfig(scaling="yarn", factor=2.0, trained_length=0))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (lambda: models.RotaryConfig(scaling="yarn", factor=0.0), "^the factor of rotary .* above 0 .*, got 0.0$"),
        (lambda: models.RotaryConfig(scaling="ntk", factor=math.nan), "^the factor of rotary .* above 0 .*, got nan$"),
        (lambda: models.RotaryConfig(factor=4.0), "^the factor of rotary .* 4.0, has no effect: scaling is 'none'$"),
        (lambda: models.RotaryConfig(scaling="linear"), "^the scaling of rotary .* 'linear', has no effect: .* is 1$"),
        (lambda: models.RotaryConfig(scaling="yarn", base=1.0), "^the base of rotary .* above 1 .*, got 1.0$"),
        (lambda: models.ExpertsConfig(capacity_factor=0.0), "^capacity_factor must be above 0 .*, got 0.0$"),
        (lambda: models.ExpertsConfig(load_balancing_weight=-1.0), "^load_balancing_weight must .* 0 .*, got -1.0$"),
    ],
)
def test_numbers_of_a_part(part, message):
    """Some gave NaN states; the others had no effect or another one."""
    with pytest.raises(ValueError, match=message):
        part()


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (models.LanguageModelConfig, {"num_buckets": 8}, "^num_buckets has no effect: positions is .*, not 't5'$"),
        (
            models.EncoderConfig,
            {"max_distance": 8},
            "^max_distance has .* is 'sinusoidal', not 't5' or 'relative_keys'$",
        ),
        (models.EncoderDecoderConfig, {"position_offset": 2}, "^position_offset has no effect: .*, not 'learned'$"),
        (
            models.LanguageModelConfig,
            {"initialization": "xavier", "norm_position": "deep"},
            "^initialization has no effect: norm_position is 'deep', not 'post' or 'pre' or 'sandwich'$",
        ),
        (
            models.RotaryConfig,
            {"scaling": "ntk", "trained_length": 9},
            "^the trained_length .* 9, has no .* is .ntk., ",
        ),
        (models.EncoderConfig, {"patch_size": 8}, "^patch_size and num_channels .* no effect: image_size is None$"),
        (
            models.ClassifierConfig,
            {"num_channels": 1},
            "^patch_size and num_channels .* no effect: image_size is None$",
        ),
        (models.VisionTransformerConfig, {"vocab_size": 9}, "^vocab_size is for tokens, not for patches .*, got 9$"),
        (models.GridConfig, {"d_attention": 8}, "^d_attention has no effect: attention is 'none'$"),
        (models.ResidualNetworkConfig, {"attention_stage": 1}, "^attention_stage has no effect: attention is 'none'$"),
        (models.Seq2SeqConfig, {"d_attention": 8, "attention": "dot"}, "^d_attention has no effect: .* is 'dot', not "),
    ],
)
def test_settings_without_effect(config, settings, message):
    with pytest.raises(ValueError, match=message):
        config(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"positions": "rope"}, r"^positions must be one of \(.*, got 'rope'; did you mean 'rotary'\?$"),
        ({"activation": "swish"}, r", got 'swish'; did you mean 'silu'\?$"),
        ({"norm": "rmsnorm"}, r", got 'rmsnorm'; did you mean 'rms'\?$"),
        ({"feed_forward": "swiglu"}, r", got 'swiglu'; did you mean 'gated'\?$"),
        ({"compute_dtype": "bf16"}, r", got 'bf16'; did you mean 'bfloat16'\?$"),
        ({"activation": "rope"}, r", got 'rope'$"),
        ({"positions": None}, r", got None$"),
    ],
)
def test_other_names_of_choices_are_suggested(settings, message):
    """rope is not similar to rotary; a name of another setting is not suggested."""

    @dataclasses.dataclass
    class Shape:
        positions: typing.Any = "learned"
        activation: typing.Any = "relu"
        norm: typing.Any = "layer"
        feed_forward: typing.Any = "plain"
        compute_dtype: typing.Any = "float32"

    # The type checks of the tests would come first.
    hints = typing.get_type_hints(models.TransformerConfig)
    Shape.__annotations__ = {name: hints[name] for name in Shape.__annotations__}
    with pytest.raises(ValueError, match=message):
        check_fields(Shape(**settings))


def test_language_models_differ_from_gpt2_in_two_settings():
    """The docstring names them."""
    text = " ".join(inspect.getdoc(models.LanguageModelConfig).split())
    assert "Two defaults differ from GPT-2: GELU is exact, and attention has no biases" in text
    ours, theirs = models.LanguageModelConfig(9), models.families.gpt2(9)
    names = [field.name for field in dataclasses.fields(ours)]
    differ = {name for name in names if getattr(ours, name) != getattr(theirs, name)}
    assert differ == {"activation", "attention_bias"}


@pytest.mark.parametrize("shape", [models.EncoderConfig, models.ClassifierConfig, models.VisionTransformerConfig])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"positions": "rotary"}, "^the positions of patches must be learned, got 'rotary'"),
        ({"image_size": (32, 30)}, r"^image_size must be a multiple of patch_size 4, got \(32, 30\)"),
        ({"position_offset": 2}, "^position_offset is for tokens, not for patches of images, got 2"),
        ({"embedding_scale": 1.0}, "^embedding_scale is for tokens, not for patches of images, got 1.0"),
        ({"embedding_norm": True}, "^embedding_norm is for tokens, not for patches of images, got True"),
        ({"num_token_types": 2}, "^num_token_types is for tokens, not for patches of images, got 2"),
    ],
)
def test_patches_of_images_take_no_settings_of_tokens(shape, settings, message):
    given = {"image_size": (32, 32), "patch_size": 4, "positions": "learned"}
    shape(**given)
    with pytest.raises(ValueError, match=message):
        shape(**given | settings)


@pytest.mark.parametrize("shape", SHAPES)
def test_sizes_that_the_data_replace_may_be_zero(shape):
    names = FROM_DATA & {field.name for field in dataclasses.fields(shape)}
    assert names
    assert all(getattr(shape(**dict.fromkeys(names, 0)), name) == 0 for name in names)


def test_one_table_needs_one_vocabulary():
    message = r"tie_embeddings='all' shares one table, so vocabularies must be equal: source 12, target 13"
    with pytest.raises(ValueError, match=message):
        models.EncoderDecoderConfig(12, 13)


def test_a_model_needs_vocabularies():
    with pytest.raises(ValueError, match=r"vocab_size must be at least 1, got \(0, 0\)"):
        pure(models.EncoderDecoder, models.EncoderDecoderConfig()).shapes


def test_encoders_refuse_settings_of_decoders():
    for settings in ({"output_bias": True}, {"output_scale": 0.5}):
        with pytest.raises(ValueError, match="output_bias and output_scale are for decoders"):
            models.EncoderConfig(9, **settings)


def test_first_token_pooling_needs_layers():
    with pytest.raises(ValueError, match="set pooling='mean'"):
        models.ClassifierConfig(9, num_layers=0, num_classes=2)
    models.ClassifierConfig(9, num_layers=0, num_classes=2, pooling="mean")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("d_ff", 8 / 3 * 384, "d_ff must be an integer, got 1024.0"),
        ("d_ff", [50], r"d_ff must be an integer, got \[50\]"),
        ("num_kv_heads", 2.0, "num_kv_heads must be an integer, got 2.0"),
        ("image_size", 32, "image_size must be a tuple of integers, got 32"),
        ("image_size", (32,), r"image_size must have 2 integers, got \(32,\)"),
        ("widths", [8, 16], r"widths must be a tuple of integers, got \[8, 16\]"),
    ],
)
def test_sizes_are_integers(field, value, message):
    """A quotient was a float in a shape, and JAX's error did not name it."""

    @dataclasses.dataclass
    class Shape:
        d_ff: int = 8
        num_kv_heads: int | None = None
        image_size: tuple[int, int] | None = None
        widths: tuple[int, ...] = ()

    check_fields(Shape(np.int64(9), 1, (8, 9), (1, 2, 3)))
    with pytest.raises(ValueError, match=message):
        check_fields(Shape(**{field: value}))
