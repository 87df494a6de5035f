"""Plans one training step on slices of several sizes and prints the tables of launch/SCALING.md.

The JSON file holds the compiler's memory and collectives. The times are computed from it for every table.

python -m benchmarks.scaling --out plans.json              # plans what the file lacks, a minute or two each
python -m benchmarks.scaling --out plans.json --only v5p   # these machines only: TPUs need libtpu, GPUs the CUDA wheels
python -m benchmarks.scaling --out plans.json --tables     # prints the tables of the file
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
from typing import TYPE_CHECKING, Any

from benchmarks import command
from jaxformer.files import write_text

if TYPE_CHECKING:
    from jaxformer.planning.forecast import Forecast
    from jaxformer.planning.hlo import Collective

MACHINES = {
    "v5p": {8: "v5p:2x2x2", 128: "v5p:4x4x8", 512: "v5p:8x8x8"},
    "v6e": {8: "v6e:2x4", 128: "v6e:8x16", 512: "v6e:16x16"},  # the last one in two slices
    "h100": {8: "h100:1x8", 128: "h100:16x8", 512: "h100:64x8"},
}
MESHES = {8: "fsdp=8", 128: "data=4,fsdp=32", 512: "data=16,fsdp=32"}
FURTHER = [
    ("big", "v5p:2x4x4", "fsdp=32", 512, 256),
    ("big", "v5p:4x4x8", "fsdp=32,tensor=4", 512, 256),
    ("large", "v5p:4x4x8", "fsdp=32,tensor=4", 1024, 512),
    ("large", "h100:16x8", "fsdp=32,tensor=4", 1024, 512),
    ("large", "h100:16x8", "data=16,fsdp=8", 1024, 512),  # gathers and scatters within a host only
    ("large", "h200:1x8", "fsdp=8", 1024, 512),
]


def cases() -> list[tuple[str, str, str, int, int]]:
    """Returns (model, topology, mesh, batch size, length): strong scaling, weak scaling, and some further meshes."""
    result = []
    for model, batch_size, length in (("large", 1024, 512), ("big", 512, 256)):
        for machine in MACHINES.values():
            for size, mesh in MESHES.items():
                if machine[size] == "v6e:16x16":
                    mesh = "slice=2,data=8,fsdp=32"
                result.append((model, machine[size], mesh, batch_size, length))
            result.append((model, machine[size], mesh, batch_size * size // 8, length))
    return result + FURTHER


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("scaling", __doc__, required=True)
    parser.add_argument("--tables", action="store_true", help="print tables, compile nothing")
    parser.add_argument("--only", nargs="*", help="prefixes of topologies")
    parser.add_argument("--model", choices=["big", "large"])
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Plans the cases that the file lacks, and prints the tables."""
    for case in cases():
        wanted = args.model in (None, case[0]) and case[1].startswith(tuple(args.only or [""]))
        if wanted and not args.tables and list(case) not in [plan["case"] for plan in read(args.out)]:
            plan = planned(*case)
            write_text(args.out, json.dumps([*read(args.out), plan], indent=1) + "\n")
            print(*row(plan), flush=True)
    for model in ("big", "large"):
        print(table([plan for plan in read(args.out) if plan["case"][0] == model]))


def read(path: pathlib.Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text()) if path.exists() else []


def planned(model: str, topology: str, mesh: str, batch_size: int, length: int) -> dict[str, Any]:
    """Returns one forecast as plain data, with its collectives summed by kind and axes."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    from jaxformer.cli.plan import as_data
    from jaxformer.tasks import planner
    from jaxformer.tasks.registry import resolve

    config = dataclasses.replace(resolve(f"wmt14:{model}_en_de"), mesh=mesh)
    result, _ = planner.plan(config, topology, shape=(batch_size, length))
    sent: dict[str, float] = {}
    for collective in result.collectives:
        name = f"{collective.kind} along {','.join(collective.axes)}"
        sent[name] = sent.get(name, 0.0) + collective.bytes_sent * collective.count
    data = as_data(result, [])
    facts = {name: data[name] for name in ("topology", "mesh", "batch", "memory")}
    largest = dataclasses.asdict(result.collectives[0]) if result.collectives else None
    return {"case": [model, topology, mesh, batch_size, length]} | facts | {"collectives": sent, "largest": largest}


def restored(plan: dict[str, Any]) -> Forecast:
    """Returns the forecast of a plan in the file, with one collective for all of a kind and mesh axes."""
    import jax

    from jaxformer import sharding
    from jaxformer.planning.forecast import DeviceMemory, make_forecast
    from jaxformer.tasks.planner import planned_setup
    from jaxformer.tasks.registry import resolve

    config, mesh = resolve(f"wmt14:{plan['case'][0]}_en_de"), plan["mesh"]
    setup = planned_setup(config, sharding.mesh("data=1", jax.devices()[:1]))
    costs = setup.costs(setup.abstract_batch(*plan["case"][3:]))
    sent = [_collective(name, wire, mesh) for name, wire in plan["collectives"].items()]
    return make_forecast(costs, plan["topology"], mesh, DeviceMemory(**plan["memory"]), sent or None)


def _collective(name: str, sent: float, mesh: dict[str, int]) -> Collective:
    """Returns the collective of a name such as "all-reduce along data", in which each device sends this many bytes."""
    from jaxformer.planning.hlo import Collective

    kind, along = name.split(" along ")
    axes = tuple(along.split(","))
    devices = 2 if kind == "collective-permute" else math.prod(mesh[axis] for axis in axes)
    single_byte = Collective(kind, 1, 1, devices, axes, 1, "")
    size = round(sent / single_byte.bytes_sent)
    return dataclasses.replace(single_byte, bytes=size, largest=size)


def table(plans: list[dict[str, Any]]) -> str:
    """Returns a Markdown table, ordered by kind of chip, number of devices and batch."""

    def order(plan: dict[str, Any]) -> tuple[str, int, int]:
        _, topology, _, batch_size, _ = plan["case"]
        return topology.partition(":")[0], math.prod(plan["mesh"].values()), batch_size

    head = ["topology", "mesh", "batch", "peak, GiB", "sent, MiB", "compute, ms", "network, ms", "bound", "of the peak"]
    lines = [head, ["---"] * len(head), *(row(plan) for plan in sorted(plans, key=order))]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def row(plan: dict[str, Any]) -> list[str]:
    _, topology, mesh, batch_size, length = plan["case"]
    slices = plan["mesh"].get("slice", 1)
    cells = [
        f"{slices} x {topology}" if slices > 1 else topology,
        mesh,
        f"{batch_size} x {length}",
        f"{plan['memory']['peak'] / 2**30:.2f}",
    ]
    forecast = restored(plan)
    estimate = forecast.estimate
    if estimate is None:
        return [*cells, "", "", "", "does not fit", ""]
    return [
        *cells,
        f"{sum(plan['collectives'].values()) / 2**20:,.0f}",
        f"{1e3 * estimate.compute:.2f}",
        f"{1e3 * estimate.network:.2f}",
        estimate.bound,
        f"{forecast.utilization(estimate.serial):.0%} to {forecast.utilization(estimate.overlapped):.0%}",
    ]


if __name__ == "__main__":
    command.script(main)
