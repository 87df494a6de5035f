"""The command ``plan``: a training step for hardware that is not there."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from jaxformer.cli.command import REQUIRED, Options, Word, command, option, refuse, word
from jaxformer.errors import ConfigError

if TYPE_CHECKING:
    from jaxformer.planning.forecast import Compiled, Forecast
    from jaxformer.planning.program import ProgramForecast

MIB, GIB = 2**20, 2**30


@dataclasses.dataclass(frozen=True)
class Plan(Options):
    """Compiles the training step for target hardware: memory, collectives, estimated time.

    With --function, it compiles any function of arrays: FILE.py:NAME takes the mesh, and returns a Program of
    jaxformer.planning.program. The file is run.

    examples:
      jaxformer plan translation:big --topology h100:1x8 --mesh fsdp=8 --batch 512x256
      jaxformer plan wmt14:big_en_de --topology v5p:4x4x8 --mesh fsdp=32,tensor=4
      jaxformer plan wmt14:big_en_de --topology v6e:16x16 --mesh slice=2,fsdp=256 --batch 4096x64
      jaxformer plan wmt14:big_en_de --topology h100:4x8 --mesh data=4,fsdp=8
      jaxformer plan wmt14:large_en_de --topology v5e:4x4 --mesh fsdp=16 --model.remat True --json
      jaxformer plan --function examples/plan_any.py:flax_nnx --topology v5p:2x2x2 --mesh data=8

    Nothing runs and no accelerator is needed: the training step is compiled ahead of time. wmt14 and other experiments
    need a clone of jaxformer as the working directory.
    """

    setting_prefix = "--"

    config: Annotated[str | None, Word("CONFIG")] = word("A configuration, as for `jaxformer train`.", None)
    function: Annotated[str, Word("FILE.py:NAME")] | None = option(
        "Instead of CONFIG: a function from a mesh to a Program of your own."
    )
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
    if args.function is not None:
        return _plan_function(args, settings)
    refuse((args.config is None, "CONFIG is missing, or --function FILE.py:NAME"))
    assert args.config is not None
    shape = _shape(args.batch)
    from jaxformer.cli.arguments import resolved

    if args.mesh is not None:
        settings = [*settings, "--mesh", args.mesh]
    config = resolved(args.config, settings)
    with _compiling("the training step", args.topology):
        from jaxformer.tasks import planner

        forecast, hints = planner.plan(config, args.topology, shape=shape)
    if args.json:
        print(json.dumps(as_data(forecast, hints)))
    else:
        print(report(config.name, forecast, hints))
    return 2 * (not forecast.memory.fits)


def _plan_function(args: Plan, settings: list[str]) -> int:
    """Does the same as `plan` for a function in a file."""
    if left := [text for text in (args.config, args.batch and f"--batch {args.batch}", *settings) if text]:
        raise ConfigError(f"--function has no place for {left[0]}: its Program says everything but the mesh")
    assert args.function is not None
    with _compiling(args.function, args.topology):
        from jaxformer.planning import program
        from jaxformer.tasks import planner

        found = program.forecast(planner.load_program(args.function, args.topology, args.mesh), args.topology)
    if args.json:
        print(json.dumps(program_data(found)))
    else:
        print(program_report(args.function, found))
    return 2 * (not found.memory.fits)


def _compiling(what: str, topology: str) -> contextlib.AbstractContextManager[object]:
    """Shows what is compiled, on the CPU, which leaves this machine's TPU free for other processes."""
    import jax
    from rich.console import Console

    jax.config.update("jax_platforms", "cpu")
    return Console(stderr=True).status(f"compiling {what} for {topology}: a minute or two")


def _shape(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"([1-9]\d{0,8})x([1-9]\d{0,8})", text)
    if not match:
        raise ConfigError(f"--batch must be ROWSxLENGTH, such as 512x256, got {text!r}")
    return int(match[1]), int(match[2])


def as_data(forecast: Forecast, hints: Sequence[str]) -> dict[str, object]:
    """Returns a forecast as plain data, in bytes and seconds; `hints` are changes that would make the step fit."""
    data = program_data(forecast) | {"remedies": list(hints)}
    if forecast.estimate is not None:
        times = {"overlapped": forecast.estimate.overlapped, "serial": forecast.estimate.serial}
        data["utilization"] = {name: forecast.utilization(seconds) for name, seconds in times.items()}
    return data


def program_data(found: Compiled) -> dict[str, object]:
    """Returns the forecast of a program as plain data, in bytes and seconds."""
    data = dataclasses.asdict(found) | {"fits": found.memory.fits, "uncounted_loops": found.uncounted_loops}
    if found.estimate is not None:
        data["estimate"] |= {name: getattr(found.estimate, name) for name in ("overlapped", "serial", "bound")}
    return data


def report(name: str, forecast: Forecast, hints: Sequence[str], *, rows: int = 12) -> str:
    """Returns a forecast as text, with the `rows` groups of collectives that take longest."""
    devices = math.prod(forecast.mesh.values())
    lines = [
        f"{name}: {forecast.parameters:,} parameters; {_target(forecast)}",
        f"a batch of {forecast.description}, padding counted",
        *_memory(forecast, ["parameters", "optimizer"], "activations, gradients, other temporaries, program"),
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
    best = forecast.estimate
    rates = (
        f": {forecast.utilization(best.overlapped):.0%} to {forecast.utilization(best.serial):.0%} of the peak, "
        f"{forecast.tokens / best.overlapped:,.0f} to {forecast.tokens / best.serial:,.0f} {forecast.unit}/s"
    )
    *times, last = _times(forecast)
    return "\n".join([*lines, "", *_traffic(forecast, rows), "", arithmetic, *times, last + rates])


def program_report(name: str, found: ProgramForecast, *, rows: int = 12) -> str:
    """Returns the forecast of a program as text; see `report`."""
    arguments = [f"argument {number}" for number in range(len(found.memory.arguments))]
    others = "outputs that are no donated arguments, temporaries, program"
    lines = [f"{name}: {_target(found)}", *_memory(found, arguments, others)]
    if found.estimate is not None:
        lines += ["", *_traffic(found, rows)]
    if found.flops is not None:
        each = found.flops / math.prod(found.mesh.values())
        lines += ["", f"arithmetic: {found.flops / 1e12:,.3f} TFLOP, {each / 1e12:,.4f} a device"]
    if found.estimate is not None:
        lines += _times(found)
    for title, entries in (("not counted", found.unknown), ("what would help", found.hints)):
        if entries:
            lines += ["", title, *(f"  {entry}" for entry in entries)]
    return "\n".join(lines)


def _target(found: Compiled) -> str:
    mesh = ",".join(f"{axis}={size}" for axis, size in found.mesh.items())
    return f"{found.topology}, {math.prod(found.mesh.values())} devices, mesh {mesh}"


def _memory(found: Compiled, names: Sequence[str], others: str) -> list[str]:
    """Returns the lines about memory: what a device holds, by these names, all `others`, and the peak."""
    memory, verdict = found.memory, "it fits"
    if not memory.fits:
        verdict = "IT DOES NOT FIT"
    parts = [*zip(memory.held, names, strict=True), (memory.temporaries, others)]
    parts.append((memory.peak, f"peak, of the {memory.available / GIB:.0f} that JAX takes: {verdict}"))
    return ["", "memory of a device, GiB", *(f"  {size / GIB:9.3f}  {text}" for size, text in parts)]


def _times(found: Compiled) -> list[str]:
    """Returns the lines about the estimate, if there is one."""
    best = found.estimate
    assert best is not None
    return [
        "estimate (a roofline from data sheets, NOT a measurement), milliseconds a step",
        f"  compute {1e3 * best.compute:.2f}, memory at least {1e3 * best.memory:.2f}, network "
        f"{'at least ' * bool(found.uncounted_loops)}{1e3 * best.network:.2f}: the {best.bound} is the bound",
        f"  {1e3 * best.overlapped:.2f} with all overlapped, {1e3 * best.serial:.2f} if the network is waited for",
    ]


def _traffic(forecast: Compiled, rows: int) -> list[str]:
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
