"""The command ``sizes``: the parameters, operations and bytes of published models."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from jaxformer.cli.command import Name, Options, command, option, word
from jaxformer.config import to_data
from jaxformer.errors import ConfigError, did_you_mean
from jaxformer.models.presets import PRESETS, Preset

if TYPE_CHECKING:
    from jaxformer.planning.sizes import Sizes as SizesOfModel


@dataclasses.dataclass(frozen=True)
class Sizes(Options):
    """Counts the parameters, FLOPs and bytes of published models, built with this library's settings.

    examples:
      jaxformer sizes
      jaxformer sizes gpt3-175b
      jaxformer sizes bert-base bert-large --json | jq

    Nothing is allocated: parameters are counted from shapes. --json has more, such as the published training and the
    parts of the bytes. `jaxformer plan` compiles a training step.
    """

    names: tuple[Name, ...] = word("The models; default: all.", ())
    json: bool = option("Print everything as JSON.", False)


@command
def sizes(args: Sizes) -> int:
    """Prints the sizes of published models."""
    for name in args.names:
        if name not in PRESETS:
            raise ConfigError(f"unknown model {name!r}{did_you_mean(name, PRESETS)}")
    import jax

    jax.config.update("jax_platforms", "cpu")  # leaves accelerators free for other processes
    from jaxformer.planning import sizes as planned

    models = {name: planned.sizes(PRESETS[name]) for name in args.names or PRESETS}
    if args.json:
        print(json.dumps({name: as_data(PRESETS[name], size) for name, size in models.items()}))
    else:
        print(f"{parameters_table(models)}\n\n{costs_table(models)}\n\n{NOTES}")
    return 0


NOTES = """\
GFLOP per token: forward and backward pass, attention over whole sequences included. Training: parameters, gradients
and Adam's two moments in float32, without activations. Decoding: parameters, and keys and values of one sequence of
the given length (in an encoder-decoder also of its source), in bfloat16. Data and machines as published. The products
with Transformer-XL's positions, in XLNet and Gopher, are not counted."""


def as_data(preset: Preset, size: SizesOfModel) -> dict[str, object]:
    """Returns a preset with its sizes as plain data, in bytes and operations."""
    data = dataclasses.asdict(size) | {"training_flops": size.training_flops}
    parts = {"training": size.training, "decoding": size.decoding}
    totals = {part: {dtype: sum(held.values()) for dtype, held in by.items()} for part, by in parts.items()}
    run = dataclasses.asdict(preset.run) | {"device_hours": preset.run.device_hours}
    facts = {name: getattr(preset, name) for name in ("length", "published", "paper", "released", "note")}
    config = to_data(preset.config)
    return data | {"total_bytes": totals} | facts | {"absent": dict(preset.absent), "run": run, "config": config}


def parameters_table(models: Mapping[str, SizesOfModel]) -> str:
    """Returns the numbers of parameters beside the published ones, with reasons for differences."""
    rows = [
        (
            name,
            size.num_layers,
            f"{PRESETS[name].config.d_model:,}",
            PRESETS[name].config.num_heads,
            f"{size.vocab_size:,}",
            f"{size.parameters:,}",
            count(PRESETS[name].published),
            f"{size.difference:+.1%}",
            PRESETS[name].note,
        )
        for name, size in models.items()
    ]
    return table(
        ["model", "layers", "D", "heads", "vocabulary", "parameters", "published", "difference", "reason"], rows
    )


def costs_table(models: Mapping[str, SizesOfModel]) -> str:
    """Returns the costs of training and decoding, and the published training runs."""
    rows = []
    for name, size in models.items():
        preset = PRESETS[name]
        in_decoding = [number(x / 1e9) for x in size.decoding.get("bfloat16", {}).values()] or ["", ""]
        rows.append(
            (
                name,
                f"{preset.length:,}",
                number(size.training_flops / 1e9),
                number(sum(size.training["float32"].values()) / 1e9),
                *in_decoding,
                gigabytes(preset.run.data),
                machines(preset),
            )
        )
    head = ["model", "length", "GFLOP/token", "training, GB", "decoding, GB", "cache, GB", "data", "trained on"]
    return table(head, rows)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a Markdown table with aligned columns; columns of numbers are aligned to the right."""
    cells = [list(map(str, row)) for row in rows]
    columns = list(zip(head, *cells, strict=True))
    sizes = [max(map(len, column)) for column in columns]
    right = [all(not cell or cell[0] in "+-0123456789" for cell in column[1:]) for column in columns]
    rule = ["-" * (size - 1) + "-:"[to_right] for size, to_right in zip(sizes, right, strict=True)]
    formats = [f"{'<>'[to_right]}{size}" for size, to_right in zip(sizes, right, strict=True)]
    return "\n".join(f"| {' | '.join(map(format, line, formats))} |" for line in (head, rule, *cells))


def count(value: float) -> str:
    """Returns text such as "110 M", "8.3 B" or "1.542 B"."""
    return f"{value / 1e9:.4g} B" if value >= 1e9 else f"{value / 1e6:.4g} M"


def number(value: float) -> str:
    """Returns a number with three significant digits, but without dropping digits before the decimal point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def gigabytes(value: float | None) -> str:
    """Returns text such as "13 GB", or nothing for an unknown value."""
    return "" if value is None else f"{value / 1e9:,.0f} GB"


def machines(preset: Preset) -> str:
    """Returns text such as "512 x TPU v3, 60 h", or nothing if nothing was published."""
    run = preset.run
    if run.num_devices is None:
        return ""
    return f"{run.num_devices:,} x {run.device}" + ("" if run.hours is None else f", {run.hours:,.0f} h")
