"""The configurations of all models check their choices, sizes and rates in the same way; what models refuse."""

import copy
import dataclasses
import functools
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
from tests.models.small import CONFIGS, LANGUAGE_CONFIGS, SOURCE, TARGET, B, T, V
from tests.modules.small import int32, normal

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
        check_fields(choices.Rotary(scaling=choices.YaRNScaling(trained_length=0)))


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


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("d_ff", 8 / 3 * 384, "d_ff must be an integer, got 1024.0"),
        ("d_ff", [50], r"d_ff must be an integer, got \[50\]"),
        ("num_kv_heads", 2.0, "num_kv_heads must be an integer, got 2.0"),
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


def settings(config, **changes):
    """Changes a configuration without the type checks of the tests, which would come first, and checks it."""

    def change():
        changed = copy.copy(config)
        for name, value in changes.items():
            object.__setattr__(changed, name, value)
        changed.__post_init__()

    return change


@pytest.mark.parametrize("config", [CONFIGS["post"], LANGUAGE_CONFIGS["untied"]], ids=lambda c: type(c).__name__)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_heads": 3}, r"d_model \(8\) must be divisible by num_heads \(3\)"),
        ({"num_heads": -2}, "num_heads must be at least 1, got -2"),
        ({"d_model": 7, "num_heads": 1}, r"sinusoidal positions need an even d_model, got 7"),
        ({"norm_position": "before"}, r"must be one of \('post', 'pre', 'sandwich', 'deep'\), got 'before'"),
        ({"positions": choices.Normalized()}, r"must not be 'normalized', t / \(N - 1\), in a decoder"),
        ({"positions": choices.Rotary(), "head_dim": 3}, "rotary positions need an even head dim, got 3"),
        ({"num_kv_heads": 3}, r"num_heads \(2\) must be divisible by num_kv_heads \(3\)"),
        ({"compute_dtype": "float16"}, r"compute_dtype must be one of \('float32', 'bfloat16'\), got 'float16'"),
    ],
)
def test_invalid_transformers_are_refused(config, change, message):
    """When they are created, not at the first use."""
    with pytest.raises(ValueError, match=message):
        settings(config, **change)()


def used(kind, config, call):
    """Calls a method of the model, abstractly."""
    net = pure(kind, config)
    return lambda: jax.eval_shape(lambda params: call(net.bind(params)), net.shapes)


def shapes_of(kind, config):
    return lambda: pure(kind, config).shapes


def started(model, memory=None, **sizes):
    given = () if memory is None else (memory,)
    return model.start(*given, **{"beam_size": 1, "length": T} | sizes)


def long_norm(config, rngs):
    def block(rngs):
        attention, feed_forward = modules.SelfAttention(8, 2, rngs=rngs), modules.FeedForward(8, 8, rngs=rngs)
        return modules.Block(attention, feed_forward, norm=lambda: modules.LayerNorm(8))

    stack = modules.Stack(block, 2, norm=modules.LayerNorm(8), rngs=rngs)
    return models.Decoder(modules.Embeddings(modules.Embedding(9, 8, rngs=rngs)), stack)


LM, SEQ2SEQ = models.LanguageModelConfig(9), models.Seq2SeqConfig(V, V, d_model=8)
VISION, RESIDUAL = models.VisionTransformerConfig(), models.ResidualNetworkConfig()
DECODER = models.DecoderConfig(V, d_model=8, num_heads=2, d_ff=16, num_layers=1)
WIDE = dataclasses.replace(DECODER, memory_dim=6)
CAPTIONER = models.RecurrentCaptionerConfig(image=models.GridConfig(image_size=(6, 10), widths=(4,)), vocab_size=V)
MEMORY = models.Memory(normal(B, 4, 5))
LONG, UNUSED = "a sequence of length 8 has no learned position beyond 7", r"a memory, got one of shape \[.*, 4, 5\];"
NO_VOCABULARY = "vocab_size must be at least 1, got "
REFUSALS = {
    # Another name of a choice is suggested; rope is not similar to rotary, and that of another setting is not.
    "rope": (settings(LM, positions="rope"), r"of Sinusoidal\(\), .*, None, got 'rope'; did you mean Rotary\(\)\?$"),
    "swish": (settings(LM, activation="swish"), r", got 'swish'; did you mean 'silu'\?$"),
    "rmsnorm": (settings(LM, norm="rmsnorm"), r"^norm must be one of .*, got 'rmsnorm'; did you mean RMSNorm\(\)\?$"),
    "swiglu": (settings(LM, feed_forward="swiglu"), r", got 'swiglu'; did you mean Gated\(\)\?$"),
    "bf16": (settings(LM, compute_dtype="bf16"), r", got 'bf16'; did you mean 'bfloat16'\?$"),
    "other name": (settings(LM, activation="rope"), r", got 'rope'$"),
    "no norm": (settings(LM, norm=None), r", got None$"),
    # Numbers of a part: some gave NaN states; the others had no effect or another one.
    "factor": (lambda: choices.YaRNScaling(factor=0.0), "^the factor of rotary .* above 0 .*, got 0.0$"),
    "factor NaN": (lambda: choices.NTKScaling(factor=math.nan), "^the factor of rotary .* above 0 .*, got nan$"),
    "base": (lambda: choices.Rotary(base=1.0), "^the base of rotary .* above 1 .*, got 1.0$"),
    "t5": (lambda: choices.T5(max_distance=16), "max_distance above half of it, got 32 and 16$"),
    "distance": (settings(LM, positions=choices.RelativeKeys(0)), "^max_distance must be at least 1, got 0$"),
    "offset": (settings(LM, positions=choices.Learned(offset=-1)), "^offset must be at least 0, got -1$"),
    "hidden": (settings(LM, feed_forward=choices.Plain(dropout=1.0)), r"^dropout must be in \[0, 1\), got 1.0$"),
    "experts": (settings(LM, feed_forward=choices.Experts(0)), "^num_experts must be at least 1, got 0$"),
    "capacity": (lambda: choices.Experts(capacity_factor=0.0), "^capacity_factor must be above 0 .*, got 0.0$"),
    "epsilon": (settings(LM, norm=choices.LayerNorm(epsilon=-1.0)), "^epsilon must be at least 0, got -1.0$"),
    "scale": (settings(LM, attention_scale=math.nan), "^attention_scale must be finite, got nan$"),
    "cap NaN": (settings(LM, attention_soft_cap=math.nan), "^attention_soft_cap must be finite, got nan$"),
    "cap": (settings(LM, attention_soft_cap=-1.0), "^attention_soft_cap must be above 0, got -1.0$"),
    "infinite": (settings(LM, embedding_scale=math.inf), "^embedding_scale must be finite, got inf$"),
    "experts per token": (
        lambda: choices.Experts(2, num_experts_per_token=4),
        "^num_experts_per_token must be at most num_experts, got 4 of 2$",
    ),
    "balance": (lambda: choices.Experts(load_balancing_weight=-1.0), "^load_balancing_weight must .* 0 .*, got -1.0$"),
    # Shapes.
    "one table": (
        lambda: models.EncoderDecoderConfig(12, 13),
        r"tie_embeddings='all' shares one table, so vocabularies must be equal: source 12, target 13",
    ),
    "one recurrent table": (settings(SEQ2SEQ, source_vocab_size=4), "shares one table, so vocabularies must be equal"),
    "recurrent attention": (settings(SEQ2SEQ, attention="bilinear"), r"one of Additive\(\), .*, None, got 'bilinear'"),
    "half a state": (settings(SEQ2SEQ, d_hidden=5), "must be even, half for each direction of the encoder, got 5"),
    "class token": (lambda: models.ClassifierConfig(9, num_layers=0, num_classes=2), "set pooling='mean'"),
    "no layers": (lambda: models.LanguageModelConfig(13, num_layers=0), "num_layers must be at least 1, got 0"),
    "fewer layers": (lambda: models.ClassifierConfig(9, num_layers=-1), "num_layers must be at least 0"),
    "image size": (settings(VISION, image_size=(30, 32)), r"multiple of patch_size 4, got \(30, 32\)"),
    "pooling": (settings(VISION, pooling="max"), "pooling must be one of"),
    "no widths": (settings(RESIDUAL, widths=()), "widths must have one number for each stage, got none"),
    "widths": (settings(RESIDUAL, widths=(8, 0)), r"widths must be at least 1, got \(8, 0\)"),
    "attention": (settings(RESIDUAL, attention="all"), "attention must be one of"),
    "stage": (settings(RESIDUAL, attention=choices.GainAttention(4)), "one of the 3 stages, got 4"),
    # Models.
    "classes": (shapes_of(models.Classifier, models.ClassifierConfig(9, num_classes=1)), "at least 2, got 1"),
    "classes of images": (shapes_of(models.ResidualNetwork, RESIDUAL), "num_classes must be at least 2, got 0"),
    "vocabularies": (shapes_of(models.EncoderDecoder, models.EncoderDecoderConfig()), f"{NO_VOCABULARY}0"),
    "recurrent": (shapes_of(models.Seq2Seq, models.Seq2SeqConfig()), f"{NO_VOCABULARY}0"),
    "vocabulary": (shapes_of(models.LanguageModel, models.LanguageModelConfig()), f"{NO_VOCABULARY}0"),
    "of an encoder": (shapes_of(models.make_encoder, models.EncoderConfig()), f"{NO_VOCABULARY}0"),
    "of a captioner": (shapes_of(models.RecurrentCaptioner, models.RecurrentCaptionerConfig()), f"{NO_VOCABULARY}0"),
    # Decoders have no argument for token types, so every token silently had type 0.
    "types": (
        shapes_of(models.LanguageModel, dataclasses.replace(LM, num_token_types=2)),
        "num_token_types must be 0",
    ),
    # Steps run the blocks themselves; they would leave out the norm of the stack.
    "norm of a stack": (shapes_of(long_norm, None), "the norm of the stack must be None: give it to the decoder"),
    "normalized": (
        used(
            models.LanguageModel,
            dataclasses.replace(LM, positions=choices.Normalized(), causal=False),
            functools.partial(started, batch_size=1),
        ),
        "N is not known before the end",
    ),
    "long text": (used(models.LanguageModel, LANGUAGE_CONFIGS["tied"], lambda m: m(int32(np.ones((1, 8))))), LONG),
    "long search": (
        used(models.LanguageModel, LANGUAGE_CONFIGS["tied"], lambda m: started(m, batch_size=1, length=8)),
        LONG,
    ),
    "long source": (used(models.EncoderDecoder, CONFIGS["pre"], lambda m: m(int32(np.ones((2, 8))), TARGET)), LONG),
    "long target": (used(models.EncoderDecoder, CONFIGS["pre"], lambda m: m(SOURCE, int32(np.ones((2, 8))))), LONG),
    "long translation": (
        used(models.EncoderDecoder, CONFIGS["pre"], lambda m: started(m, m.encode(SOURCE), length=8)),
        LONG,
    ),
    "no memory": (
        used(models.EncoderDecoder, CONFIGS["post"], lambda m: m.decoder(SOURCE)),
        "cross-attention needs a memory, got None",
    ),
    "unused memory": (used(models.make_decoder, DECODER, lambda m: m(TARGET, MEMORY)), UNUSED),
    "unused by steps": (used(models.make_decoder, DECODER, lambda m: started(m, MEMORY, batch_size=B)), UNUSED),
    # The error was that of a product within the attention.
    "width": (used(models.make_decoder, WIDE, lambda m: m(TARGET, MEMORY)), r"must be \[B, S, 6\], got .*, 4, 5\]"),
    "width in steps": (
        used(models.make_decoder, WIDE, lambda m: started(m, MEMORY, batch_size=B)),
        r"memory must be \[B, S, 6\], got shape \[.*, 4, 5\]",
    ),
    "no hypotheses": (
        lambda: inspect.unwrap(models.Decoder.step)(None, int32([3, 4]), None, None),
        r"tokens must be \[B, K\], got shape \[2\]",
    ),
    # The error is the core's: exit codes are for tasks.
    "cache": (
        used(models.Seq2Seq, SEQ2SEQ, lambda m: started(m, m.encode(SOURCE), cache_dtype=jnp.bfloat16)),
        "cache_dtype must be None: a recurrent decoder keeps no keys",
    ),
    "positions of a source": (
        used(models.Seq2Seq, SEQ2SEQ, lambda m: m(functional.Tokens(SOURCE, positions=SOURCE), TARGET)),
        "as one sequence, so it takes no positions",
    ),
    "segments of a target": (
        used(models.Seq2Seq, SEQ2SEQ, lambda m: m(SOURCE, functional.Tokens(TARGET, segments=TARGET))),
        "as one sequence, so it takes no segments",
    ),
    "images": (
        used(models.RecurrentCaptioner, CAPTIONER, lambda m: m.encode(normal(1, 6, 9, 3))),
        r"images must be \[B, 6, 10, 3\], got \[1, 6, 9, 3\]",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    call, message = REFUSALS[name]
    with pytest.raises(ValueError, match=message):
        call()
