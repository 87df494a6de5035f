"""Published models by name: their shapes, published sizes, and published training costs.

`jaxformer.planning.sizes` computes their sizes. Importing this module imports no JAX.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from jaxformer.models import choices, families
from jaxformer.models.config import EncoderConfig, EncoderDecoderConfig, LanguageModelConfig

ModelConfig = EncoderConfig | EncoderDecoderConfig | LanguageModelConfig
"""The configuration of a preset: for `make_encoder`, `EncoderDecoder` or `LanguageModel`."""


@dataclasses.dataclass(frozen=True)
class TrainingRun:
    """The data and the hardware of a published training run; None for what was not published."""

    data: float | None = None
    """Bytes of text."""
    num_devices: int | None = None
    """The number of accelerators."""
    device: str = ""
    """The accelerator."""
    hours: int | None = None
    """The duration of the training."""

    @property
    def device_hours(self) -> int | None:
        """The number of accelerators times the hours."""
        return None if self.num_devices is None or self.hours is None else self.num_devices * self.hours


@dataclasses.dataclass(frozen=True)
class Preset:
    """A published model."""

    config: ModelConfig
    """The shape, without pre-training heads."""
    length: int
    """The sequence length in training, in tokens; for an encoder-decoder, the length of the source and of the
    target."""
    published: float
    """The number of parameters stated in the paper."""
    paper: str
    """The publication."""
    released: int | None = None
    """The exact number of parameters of the released checkpoint."""
    absent: tuple[tuple[str, int], ...] = ()
    """Parts of the released checkpoint that are missing in this shape, with their numbers of parameters."""
    note: str = ""
    """The reason why the number of parameters differs from the published one."""
    run: TrainingRun = TrainingRun()
    """The published training run."""


def _deep(d_model: int, num_layers: int, num_heads: int, length: int) -> dict[str, int]:
    """Returns the sizes of a stack whose feed-forward network is four times as wide as the model."""
    sizes = {"d_model": d_model, "num_layers": num_layers, "num_heads": num_heads, "d_ff": 4 * d_model}
    return sizes | {"max_positions": length}


_XLNET = EncoderConfig(32_000, positions=choices.TransformerXL(), norm=choices.LayerNorm(1e-12), activation="gelu")
"""XLNet as used after pre-training: one stream, and no mask."""
_LLAMA3 = {"d_model": 4096, "num_layers": 32, "num_heads": 32, "num_kv_heads": 8, "d_ff": 14_336}


def _pooler(d_model: int) -> tuple[tuple[str, int], ...]:
    return (("pooler", d_model**2 + d_model),)


_GB = 1e9
_CORRECTED = "the paper's count is wrong, according to its repository; the released checkpoint has exactly our count"
_RELEASED = "the published figure is rounded; the released checkpoint has exactly our count"


def _transformer(d_model: int, published: float, pieces: int, hours: int) -> Preset:
    """Returns a model of Vaswani et al. (2017), with 37,000 joint pieces."""
    config = EncoderDecoderConfig(37_000, 37_000, d_model=d_model, num_heads=d_model // 64, d_ff=4 * d_model)
    note = f'the paper has "about 37,000" pieces; {published / 1e6:.0f} M would be {pieces:,}'
    return Preset(config, 256, published, "Vaswani et al. 2017", note=note, run=TrainingRun(None, 8, "P100", hours))


def _bert(d_model: int, num_layers: int, num_heads: int, published: float, released: int, note: str) -> Preset:
    config, run = families.bert(30_522, **_deep(d_model, num_layers, num_heads, 512)), TrainingRun(13 * _GB)
    return Preset(config, 512, published, "Devlin et al. 2019", released, _pooler(d_model), note, run)


def _t5(shape: tuple[int, int, int, int, int], published: float, released: int, note: str = _RELEASED) -> Preset:
    d_model, d_ff, num_heads, head_dim, num_layers = shape
    sizes = {"d_model": d_model, "d_ff": d_ff, "num_heads": num_heads, "head_dim": head_dim}
    config = families.t5(32_128, **sizes, num_encoder_layers=num_layers, num_decoder_layers=num_layers)
    return Preset(config, 512, published, "Raffel et al. 2020", released, note=note)


def _gpt2(d_model: int, num_layers: int, num_heads: int, published: float, released: int) -> Preset:
    config = families.gpt2(50_257, **_deep(d_model, num_layers, num_heads, 1024))
    run = TrainingRun(40 * _GB)
    return Preset(config, 1024, published, "Radford et al. 2019", released, note=_CORRECTED, run=run)


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "transformer-base": _transformer(512, 65e6, 40_817, 12),
        "transformer-big": _transformer(1024, 213e6, 35_856, 84),
        "bert-base": _bert(
            *(768, 12, 12, 110e6, 109_482_240),
            "ours has no pooler (0.6 M), and the published figure is rounded",
        ),
        "bert-large": _bert(
            *(1024, 24, 16, 340e6, 335_141_888),
            "ours has no pooler (1.0 M); 340 M is more than the checkpoint with its heads (336 M)",
        ),
        "xlnet-large": Preset(
            dataclasses.replace(_XLNET, **_deep(1024, 24, 16, 512)),
            512,
            340e6,
            "Yang et al. 2019",
            360_268_800,
            (("segment biases", 24 * 3 * 1024), ("mask vector", 1024)),
            "published as about BERT's; without its relative projection, 24 x 1024 x 1024, ours would be 335 M",
            TrainingRun(126 * _GB, 512, "TPU v3", 60),
        ),
        "roberta-large": Preset(
            families.roberta(50_265, **_deep(1024, 24, 16, 512)),
            512,
            355e6,
            "Liu et al. 2019",
            355_359_744,
            _pooler(1024),
            "ours has no pooler (1.0 M)",
            TrainingRun(160 * _GB, 1024, "V100", 24),
        ),
        "gpt2": _gpt2(768, 12, 12, 117e6, 124_439_808),
        "gpt2-medium": _gpt2(1024, 24, 16, 345e6, 354_823_168),
        "gpt2-large": _gpt2(1280, 36, 20, 762e6, 774_030_080),
        "gpt2-xl": _gpt2(1600, 48, 25, 1542e6, 1_557_611_200),
        "t5-small": _t5((512, 2048, 8, 64, 6), 60e6, 60_506_624),
        "t5-base": _t5((768, 3072, 12, 64, 12), 220e6, 222_903_552),
        "t5-large": _t5(
            (1024, 4096, 16, 64, 24),
            770e6,
            737_668_096,
            "the paper says about 770 M; the released checkpoint has exactly our count",
        ),
        "t5-3b": _t5((1024, 16_384, 32, 128, 24), 2.8e9, 2_851_598_336),
        "t5-11b": _t5((1024, 65_536, 128, 128, 24), 11e9, 11_307_321_344),
        "megatron-8b": Preset(
            families.gpt2(51_200, **_deep(3072, 72, 32, 1024)),
            1024,
            8.3e9,
            "Shoeybi et al. 2019",
            note="the published figure is rounded",
            run=TrainingRun(174 * _GB, 512, "V100", 216),
        ),
        "turing-17b": Preset(
            families.gpt2(50_257, **_deep(4256, 78, 28, 1024)),
            1024,
            17e9,
            "Rosset 2020",
            note="its vocabulary is not published; GPT-2's is assumed",
            run=TrainingRun(None, 256, "V100"),
        ),
        "gpt3-175b": Preset(
            families.gpt2(50_257, **_deep(12_288, 96, 96, 2048)),
            2048,
            175e9,
            "Brown et al. 2020",
            note="the published figure is rounded",
            run=TrainingRun(694 * _GB),
        ),
        "gopher-280b": Preset(
            families.gpt2(
                32_000, positions=choices.TransformerXL(), norm=choices.RMSNorm(), **_deep(16_384, 80, 128, 2048)
            ),
            2048,
            280e9,
            "Rae et al. 2021",
            note="the published figure is rounded",
            run=TrainingRun(10.55e12, 4096, "TPU v3", 912),
        ),
        "llama2-7b": Preset(
            families.llama(32_000, d_model=4096, num_layers=32, num_heads=32, d_ff=11_008),
            4096,
            7e9,
            "Touvron et al. 2023",
            6_738_415_616,
            note=_RELEASED,
        ),
        "llama3-8b": Preset(
            families.llama(128_256, **_LLAMA3, positions=choices.Rotary(base=500_000.0)),
            8192,
            8e9,
            "Dubey et al. 2024",
            8_030_261_248,
            note=_RELEASED,
        ),
    }
)
"""Published models by name, grouped by family, in order of publication."""
