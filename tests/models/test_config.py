"""The configurations of all models check their choices, sizes and rates in the same way."""

import dataclasses
import inspect
import math
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer import axes, functional, models, modules, pure
from jaxformer.models import choices
from jaxformer.models.config import check_fields

SHAPES = [
    models.EncoderDecoderConfig, models.ClassifierConfig, models.Seq2SeqConfig, models.VisionTransformerConfig,
    models.ResidualNetworkConfig, models.RecurrentCaptionerConfig, models.TransformerCaptionerConfig,
]  # fmt: skip
FROM_DATA = {"vocab_size", "source_vocab_size", "target_vocab_size", "num_classes"}
MAY_BE_ZERO = FROM_DATA | {"num_token_types"}


@pytest.mark.parametrize("shape", SHAPES)
def test_sizes_and_rates(shape):
    for name, kind in typing.get_type_hints(shape).items():
        least = (
            0
            if name in MAY_BE_ZERO
            or (name == "num_layers" and issubclass(shape, models.EncoderConfig | models.ImageEncoderConfig))
            else 1
        )
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


def test_a_setting_exists_only_in_its_choice():
    """No model can be given the base of rotary positions beside learned ones."""
    fields = {field.name for field in dataclasses.fields(models.LanguageModelConfig)}
    parts = (choices.Rotary, choices.T5, choices.RelativeKeys, choices.Experts, choices.LayerNorm)
    of_parts = {field.name for part in parts for field in dataclasses.fields(part)}
    assert {"base", "num_buckets", "num_experts", "epsilon"} <= of_parts
    assert not fields & of_parts


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
        choices.YaRNScaling(trained_length=0)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (lambda: choices.YaRNScaling(factor=0.0), "^the factor of rotary .* above 0 .*, got 0.0$"),
        (lambda: choices.NTKScaling(factor=math.nan), "^the factor of rotary .* above 0 .*, got nan$"),
        (lambda: choices.Rotary(base=1.0), "^the base of rotary .* above 1 .*, got 1.0$"),
        (lambda: choices.T5(max_distance=16), "max_distance above half of it, got 32 and 16$"),
        (lambda: choices.RelativeKeys(0), "^max_distance must be at least 1, got 0$"),
        (lambda: choices.Learned(offset=-1), "^offset must be at least 0, got -1$"),
        (lambda: choices.Plain(dropout=1.0), r"^dropout must be in \[0, 1\), got 1.0$"),
        (lambda: choices.Experts(0), "^num_experts must be at least 1, got 0$"),
        (lambda: choices.Experts(capacity_factor=0.0), "^capacity_factor must be above 0 .*, got 0.0$"),
        (lambda: choices.Experts(load_balancing_weight=-1.0), "^load_balancing_weight must .* 0 .*, got -1.0$"),
    ],
)
def test_numbers_of_a_part(part, message):
    """Some gave NaN states; the others had no effect or another one."""
    with pytest.raises(ValueError, match=message):
        part()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"positions": "rope"},
            r"^positions must be one of Sinusoidal\(\), .*, None, got 'rope'; did you mean Rotary\(\)\?$",
        ),
        ({"activation": "swish"}, r", got 'swish'; did you mean 'silu'\?$"),
        ({"norm": "rmsnorm"}, r"^norm must be one of .*, got 'rmsnorm'; did you mean RMSNorm\(\)\?$"),
        ({"feed_forward": "swiglu"}, r", got 'swiglu'; did you mean Gated\(\)\?$"),
        ({"compute_dtype": "bf16"}, r", got 'bf16'; did you mean 'bfloat16'\?$"),
        ({"activation": "rope"}, r", got 'rope'$"),
        ({"norm": None}, r", got None$"),
    ],
)
def test_other_names_of_choices_are_suggested(settings, message):
    """rope is not similar to rotary; a name of another setting is not suggested."""
    config = models.LanguageModelConfig(9)
    for name, value in settings.items():  # the type checks of the tests would come first
        object.__setattr__(config, name, value)
    with pytest.raises(ValueError, match=message):
        config.__post_init__()


def test_language_models_differ_from_gpt2_in_two_settings():
    """The docstring names them."""
    text = " ".join(inspect.getdoc(models.LanguageModelConfig).split())
    assert "Two defaults differ from GPT-2: GELU is exact, and attention has no biases" in text
    ours, theirs = models.LanguageModelConfig(9), models.families.gpt2(9)
    names = [field.name for field in dataclasses.fields(ours)]
    differ = {name for name in names if getattr(ours, name) != getattr(theirs, name)}
    assert differ == {"activation", "attention_bias"}


def test_patches_of_images_take_no_settings_of_tokens():
    """Nor has an encoder settings of decoders."""
    names = {field.name for field in dataclasses.fields(models.VisionTransformerConfig)}
    assert not names & {"vocab_size", "positions", "max_positions", "embedding_scale", "embedding_norm", "output_bias"}
    names = {field.name for field in dataclasses.fields(models.ClassifierConfig)}
    assert not names & {"image_size", "patch_size", "num_channels", "output_bias", "output_scale", "attention_window"}


class Twice(nnx.Module):
    """A norm and a feed-forward network of one's own."""

    def __init__(self, *, rngs):
        self.factor = nnx.Param(jnp.full((), 2.0), axes=())

    def __call__(self, x, *, key=None):
        return self.factor * x


@dataclasses.dataclass(frozen=True)
class Own:
    module: type

    def make(self, config, *, rngs):
        return self.module(rngs=rngs)


class Ramp(modules.PositionScheme):
    def __init__(self, *, rngs):
        pass

    def rotate(self, x, positions):
        return functional.rotary(x, positions)


def test_parts_of_ones_own():
    """Objects with `make` in place of a choice: the model is the one with these modules, and has their parameters."""
    config = models.LanguageModelConfig(
        9,
        num_layers=2,
        d_model=8,
        num_heads=2,
        positions=Own(Ramp),
        norm=Own(Twice),
        feed_forward=Own(Twice),
        dropout=0.0,
    )
    net = pure(models.LanguageModel, config)
    params = net.init(jax.random.key(0))
    names = {axes.parameter_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)}
    assert {name for name in names if name.endswith("factor")} == {
        "decoder/norm/factor",
        *(f"decoder/stack/layers/{part}/factor" for part in ("attention_norm", "feed_forward", "feed_forward_norm")),
    }
    tokens = jnp.array([[1, 2, 3]], jnp.int32)
    plain = pure(models.LanguageModel, dataclasses.replace(config, positions=None)).apply(params, tokens)
    logits = net.apply(params, tokens)
    np.testing.assert_array_equal(logits[:, 0], plain[:, 0])
    assert (logits[:, 1:] != plain[:, 1:]).any()


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
