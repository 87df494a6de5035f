"""The command ``plan``: a training step for hardware that is not there."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from jaxformer.cli.command import REQUIRED, Options, Word, command, option, word
from jaxformer.errors import ConfigError

if TYPE_CHECKING:
    from jaxformer.planning.forecast import Forecast

MIB, GIB = 2**20, 2**30


@dataclasses.dataclass(frozen=True)
class Plan(Options):
    """Compiles the training step for target hardware: memory, collectives, estimated time.

    examples:
      jaxformer plan translation:big --topology h100:1x8 --mesh fsdp=8 --batch 512x256
      jaxformer plan wmt14:big_en_de --topology v5p:4x4x8 --mesh fsdp=32,tensor=4
      jaxformer plan wmt14:big_en_de --topology v6e:16x16 --mesh slice=2,fsdp=256 --batch 4096x64
      jaxformer plan wmt14:big_en_de --topology h100:4x8 --mesh data=4,fsdp=8
      jaxformer plan wmt14:large_en_de --topology v5e:4x4 --mesh fsdp=16 --model.remat True --json

    Nothing runs and no accelerator is needed: the training step is compiled ahead of time. wmt14 and other experiments
    need a clone of jaxformer as the working directory.
    """

    setting_prefix = "--"

    config: Annotated[str, Word("CONFIG")] = word("A configuration, as for `jaxformer train`.")
    topology: str = option(
        "A slice of TPUs: v4, v5p or tpu7x:2x2x4, v5e or v6e:4x4; hosts x GPUs: a100, h100, h200 or b200:4x8.", REQUIRED
    )
    batch: Annotated[str, Word("ROWSxLENGTH")] | None = option(
        "The shape of a batch; default: that of the longest sentences."
    )
    mesh: str | None = option("The axes and their sizes, such as fsdp=32,tensor=4; default: those of CONFIG.")
    json: bool = option("Print everything as JSON.", False)


@command
def plan(args: Plan, settings: list[str]) -> int:
    """Prints the memory and communication of a step; returns 0 if it fits, 2 if it does not or cannot be compiled."""
    shape = _shape(args.batch)
    from jaxformer.cli.arguments import resolved

    if args.mesh is not None:
        settings = [*settings, "--mesh", args.mesh]
    config = resolved(args.config, settings)
    import jax
    from rich.console import Console

    jax.config.update("jax_platforms", "cpu")  # leaves this machine's TPU free for other processes
    from jaxformer.tasks import planner

    with Console(stderr=True).status(f"compiling the training step for {args.topology}: a minute or two"):
        forecast, hints = planner.plan(config, args.topology, shape=shape)
    print(json.dumps(as_data(forecast, hints)) if args.json else report(config.name, forecast, hints))
    return 0 if forecast.memory.fits else 2


def _shape(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"([1-9]\d{0,8})x([1-9]\d{0,8})", text)
    if not match:
        raise ConfigError(f"--batch must be ROWSxLENGTH, such as 512x256, got {text!r}")
    return int(match[1]), int(match[2])


def as_data(forecast: Forecast, hints: Sequence[str]) -> dict[str, object]:
    """Returns a forecast as plain data, in bytes and seconds; `hints` are changes that would make the step fit."""
    data = dataclasses.asdict(forecast) | {"fits": forecast.memory.fits, "remedies": list(hints)}
    data["uncounted_loops"] = forecast.uncounted_loops
    if forecast.estimate is not None:
        times = {"overlapped": forecast.estimate.overlapped, "serial": forecast.estimate.serial}
        data["estimate"] |= times | {"bound": forecast.estimate.bound}
        data["utilization"] = {name: forecast.utilization(seconds) for name, seconds in times.items()}
    return data


def report(name: str, forecast: Forecast, hints: Sequence[str], *, rows: int = 12) -> str:
    """Returns a forecast as text, with the `rows` groups of collectives that take longest."""
    devices = math.prod(forecast.mesh.values())
    mesh = ",".join(f"{axis}={size}" for axis, size in forecast.mesh.items())
    memory = forecast.memory
    lines = [
        f"{name}: {forecast.parameters:,} parameters; {forecast.topology}, {devices} devices, mesh {mesh}",
        f"a batch of {forecast.description}, padding counted",
        "",
        "memory of a device, GiB",
        f"  {memory.parameters / GIB:9.3f}  parameters",
        f"  {memory.optimizer / GIB:9.3f}  optimizer",
        f"  {memory.temporaries / GIB:9.3f}  activations, gradients, other temporaries, program",
        f"  {memory.peak / GIB:9.3f}  peak, of the {memory.available / GIB:.0f} that JAX takes: "
        + ("it fits" if memory.fits else "IT DOES NOT FIT"),
    ]
    if hints:
        lines += ["", "what would make it fit", *(f"  {hint}" for hint in hints)]
    if forecast.estimate is None and not forecast.collectives_error:
        return "\n".join(lines)
    arithmetic = (
        f"arithmetic: {forecast.flops / 1e12:,.2f} TFLOP a step; with what the backward pass computes again "
        f"{forecast.computed_flops / 1e12:,.2f}, {forecast.computed_flops / devices / 1e12:,.3f} a device"
    )
    if forecast.has_frozen:
        arithmetic += "\n  frozen parameters save a part of it, but all of it is counted: compute is an upper limit"
    if forecast.estimate is None:
        return "\n".join(
            [*lines, "", f"collectives and time of a step: unknown; {forecast.collectives_error}", "", arithmetic]
        )
    lines += ["", *_traffic(forecast, rows), "", arithmetic]
    best = forecast.estimate
    least = "at least " * bool(forecast.uncounted_loops)
    lines += [
        "estimate (a roofline from data sheets, NOT a measurement), milliseconds a step",
        f"  compute {1e3 * best.compute:.2f}, memory at least {1e3 * best.memory:.2f}, "
        f"network {least}{1e3 * best.network:.2f}: the {best.bound} is the bound",
        f"  {1e3 * best.overlapped:.2f} with all overlapped, {1e3 * best.serial:.2f} if the network is waited for: "
        f"{forecast.utilization(best.overlapped):.0%} to {forecast.utilization(best.serial):.0%} of the peak, "
        f"{forecast.tokens / best.overlapped:,.0f} to {forecast.tokens / best.serial:,.0f} {forecast.unit}/s",
    ]
    return "\n".join(lines)


def _traffic(forecast: Forecast, rows: int) -> list[str]:
    """Returns the lines about collectives: the `rows` groups that take longest, and the sum of the rest."""
    from jaxformer.planning.hlo import group

    groups = sorted(group(forecast.collectives), key=lambda collective: -collective.bytes_sent * collective.count)
    sent = sum(collective.bytes_sent * collective.count for collective in groups)
    loops = forecast.uncounted_loops
    lines = [
        f"collectives of a step: {'at least ' * bool(loops)}{sent / MIB:,.1f} MiB sent by each device",
        "        MiB   times   sends MiB",
    ]
    lines += [
        f"  {collective.bytes / MIB:9.3f}  {collective.count:6}  "
        f"{collective.bytes_sent * collective.count / MIB:10.2f}  "
        f"{collective.kind} along {','.join(collective.axes) or 'nothing'}"
        + ", for each iteration of a loop"
        * bool(collective.uncounted_loops)
        for collective in groups[:rows]
    ]
    if groups[rows:]:
        count = sum(collective.count for collective in groups[rows:])
        left = sum(collective.bytes_sent * collective.count for collective in groups[rows:]) / MIB
        lines.append(f"  {count:17}  {left:10.2f}  the rest, in {len(groups) - rows} sizes")
    if loops:
        lines.append("  loops whose iterations depend on data, so that one of each is counted:")
        lines += [f"    {loop}" for loop in loops]
    return lines
