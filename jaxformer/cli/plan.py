"""``jaxformer plan``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxformer.errors import ConfigError

if TYPE_CHECKING:
    from jaxformer.planning.forecast import Forecast

EXAMPLES = """examples:
  jaxformer plan wmt14:big_en_de --topology v5p:4x4x8 --mesh fsdp=32,tensor=4
  jaxformer plan wmt14:big_en_de --topology v6e:16x16 --mesh slice=2,fsdp=256 --batch 4096x64
  jaxformer plan wmt14:big_en_de --topology h100:4x8 --mesh data=4,fsdp=8
  jaxformer plan wmt14:large_en_de --topology v5e:4x4 --mesh fsdp=16 --model.remat True --json

Nothing runs and no accelerator is needed: the training step is compiled for machines that are not here.
"""
MIB, GIB = 2**20, 2**30


def main(arguments: Sequence[str]) -> int:
    """Prints what a step needs and sends; 0 when it fits, 2 when it does not or cannot be compiled."""
    parser = argparse.ArgumentParser(
        prog="jaxformer plan",
        usage="jaxformer plan CONFIG --topology TOPOLOGY [--mesh MESH] [--batch ROWSxLENGTH] [--field value ...]",
        description="Compiles the training step for a machine that is not here: does it fit, and what does it send?",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("config", metavar="CONFIG", help="as for `jaxformer train`")
    machines = "a slice of TPUs: v5e:4x4, v5p:4x4x8, v6e:16x16, tpu7x:2x2x2; hosts x GPUs: h100:4x8, h200:64x8"
    parser.add_argument("--topology", required=True, help=machines)
    parser.add_argument("--batch", metavar="ROWSxLENGTH", help="default: the batch of the longest sentences")
    parser.add_argument("--mesh", help="axes and sizes, such as fsdp=32,tensor=4; default: CONFIG's")
    parser.add_argument("--json", action="store_true", help="everything, on standard output")
    options, rest = parser.parse_known_args(arguments)
    # Before CONFIG is known, the word after a setting could be its value or CONFIG.
    if rest and arguments.index(rest[0]) < arguments.index(options.config):
        raise ConfigError(f"CONFIG comes before its settings: jaxformer plan CONFIG ... {rest[0]} ...")
    from jaxformer.cli.arguments import override
    from jaxformer.tasks.registry import resolve

    mesh = [] if options.mesh is None else ["--mesh", options.mesh]
    config = override(resolve(options.config), [*rest, *mesh])
    import jax
    from rich.console import Console

    jax.config.update("jax_platforms", "cpu")  # a TPU that is here must not be touched
    from jaxformer.tasks import planner

    shape = _shape(options.batch)
    with Console(stderr=True).status(f"compiling the training step for {options.topology}: a minute or two"):
        forecast, hints = planner.plan(config, options.topology, shape=shape)
    print(json.dumps(as_data(forecast, hints)) if options.json else report(config.name, forecast, hints))
    return 0 if forecast.memory.fits else 2


def _shape(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"([1-9]\d{0,8})x([1-9]\d{0,8})", text)
    if not match:
        raise ConfigError(f"--batch must be ROWSxLENGTH, such as 512x256, got {text!r}")
    return int(match[1]), int(match[2])


def as_data(found: Forecast, said: Sequence[str]) -> dict[str, Any]:
    """Everything as plain data; bytes and seconds."""
    data = dataclasses.asdict(found) | {"fits": found.memory.fits, "remedies": list(said)}
    if found.estimate is not None:
        times = {"overlapped": found.estimate.overlapped, "serial": found.estimate.serial}
        data["estimate"] |= times | {"bound": found.estimate.bound}
        data["utilization"] = {name: found.utilization(seconds) for name, seconds in times.items()}
    return data


def report(name: str, found: Forecast, said: Sequence[str], *, rows: int = 12) -> str:
    """The forecast in words, with the `rows` groups of collectives that take longest."""
    from jaxformer.planning.hlo import group

    devices = math.prod(found.mesh.values())
    mesh = ",".join(f"{axis}={size}" for axis, size in found.mesh.items())
    memory = found.memory
    lines = [
        f"{name}: {found.parameters:,} parameters; {found.topology}, {devices} devices, mesh {mesh}",
        f"a batch of {found.description}, padding counted",
        "",
        "memory of a device, GiB",
        f"  {memory.parameters / GIB:9.3f}  parameters",
        f"  {memory.optimizer / GIB:9.3f}  optimizer",
        f"  {memory.temporaries / GIB:9.3f}  activations, gradients, other temporaries, program",
        f"  {memory.peak / GIB:9.3f}  peak, of the {memory.available / GIB:.0f} that JAX takes: "
        + ("it fits" if memory.fits else "IT DOES NOT FIT"),
    ]
    if said:
        lines += ["", "what would make it fit", *(f"  {one}" for one in said)]
    if found.estimate is None:
        return "\n".join(lines)
    groups = sorted(group(found.collectives), key=lambda one: -one.wire * one.count)
    sent = sum(one.wire * one.count for one in groups)
    lines += [
        "",
        f"collectives of a step: {sent / MIB:,.1f} MiB sent by each device",
        "        MiB   times   sends MiB",
    ]
    lines += [
        f"  {one.bytes / MIB:9.3f}  {one.count:6}  {one.wire * one.count / MIB:10.2f}  "
        f"{one.kind} along {','.join(one.axes) or 'nothing'}"
        for one in groups[:rows]
    ]
    if groups[rows:]:
        left = sum(one.wire * one.count for one in groups[rows:]) / MIB
        lines.append(
            f"  {sum(one.count for one in groups[rows:]):17}  {left:10.2f}  the rest, in {len(groups) - rows} sizes"
        )
    best = found.estimate
    lines += [
        "",
        f"arithmetic: {found.flops / 1e12:,.2f} TFLOP a step; with what the backward pass computes again "
        f"{found.computed / 1e12:,.2f}, {found.computed / devices / 1e12:,.3f} a device",
        "estimate (a roofline from data sheets, NOT a measurement), milliseconds a step",
        f"  compute {1e3 * best.compute:.2f}, memory at least {1e3 * best.memory:.2f}, "
        f"network {1e3 * best.network:.2f}: the {best.bound} is the bound",
        f"  {1e3 * best.overlapped:.2f} with all overlapped, {1e3 * best.serial:.2f} if the network is waited for: "
        f"{found.utilization(best.overlapped):.0%} to {found.utilization(best.serial):.0%} of the peak, "
        f"{found.tokens / best.overlapped:,.0f} to {found.tokens / best.serial:,.0f} target tokens/s",
    ]
    return "\n".join(lines)
