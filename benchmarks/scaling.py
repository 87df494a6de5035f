"""Plans of one training step on slices of several sizes: the tables of launch/SCALING.md.

python -m benchmarks.scaling --out plans.json            # what is not in the file yet, a minute each; needs libtpu
python -m benchmarks.scaling --out plans.json --tables   # the tables of what is in it
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
from typing import Any

CASES = [
    # model, topology, mesh, rows, length
    ("big", "v5p:4x4x8", "fsdp=128", 512, 256),
    ("big", "v5p:4x4x8", "fsdp=32,tensor=4", 512, 256),
    ("big", "v5p:4x4x8", "data=4,fsdp=32", 512, 256),
    ("large", "v5p:4x4x8", "fsdp=32,tensor=4", 1024, 512),
    ("big", "v5p:2x2x2", "fsdp=8", 512, 256),
    ("big", "v5p:8x8x8", "fsdp=512", 512, 256),
    ("large", "v5p:4x4x8", "fsdp=128", 1024, 512),
    ("large", "v5p:8x8x8", "fsdp=512", 1024, 512),
    ("large", "v5p:8x8x8", "fsdp=128,tensor=4", 1024, 512),
    ("large", "v5p:2x2x2", "fsdp=8", 1024, 512),
    ("big", "v5p:8x8x8", "fsdp=512", 2048, 256),
    ("big", "v5p:2x2x2", "fsdp=8", 32, 256),
    ("large", "v5p:8x8x8", "fsdp=512", 4096, 512),
    ("large", "v5p:2x2x2", "fsdp=8", 64, 512),
    ("large", "v6e:16x16", "fsdp=256", 1024, 512),
    ("large", "v6e:16x16", "slice=2,fsdp=256", 1024, 512),
    ("large", "v6e:4x4", "fsdp=16", 1024, 512),
    ("big", "v6e:16x16", "fsdp=256", 512, 256),
    ("big", "v6e:16x16", "slice=2,fsdp=256", 512, 256),
    ("big", "v6e:4x4", "fsdp=16", 512, 256),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--tables", action="store_true", help="compile nothing")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of cases")
    known = parser.parse_args()
    for number, case in enumerate(CASES):
        if not known.tables and (known.only is None or number in known.only):
            done = read(known.out)
            if list(case) not in [plan["case"] for plan in done]:
                plan = planned(*case)
                known.out.write_text(json.dumps([*read(known.out), plan], indent=1) + "\n")
                print(*row(plan))
    for model in ("big", "large"):
        print(table([plan for plan in read(known.out) if plan["case"][0] == model]))


def read(path: pathlib.Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text()) if path.exists() else []


def planned(model: str, topology: str, mesh: str, rows: int, length: int) -> dict[str, Any]:
    """One forecast as plain data, its collectives summed by kind and axes."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    from jaxformer.cli.plan import as_data
    from jaxformer.config import resolve
    from jaxformer.tasks.planning import forecast

    _, config = resolve(f"wmt14:{model}_en_de")
    found = forecast(dataclasses.replace(config, mesh=mesh), topology, shape=(rows, length, length))
    sent: dict[str, float] = {}
    for one in found.collectives:
        name = f"{one.kind} along {','.join(one.axes)}"
        sent[name] = sent.get(name, 0.0) + one.wire * one.count
    data = as_data(found, [])
    largest = dataclasses.asdict(found.collectives[0]) if found.collectives else None
    return {"case": [model, topology, mesh, rows, length]} | data | {"collectives": sent, "largest": largest}


def table(plans: list[dict[str, Any]]) -> str:
    """Markdown, in the order of batch, kind of chip and number of devices."""
    head = ["batch", "topology", "mesh", "peak, GiB", "sent, MiB", "compute, ms", "network, ms", "bound", "of the peak"]
    lines = [head, ["---"] * len(head), *sorted((row(plan) for plan in plans), key=lambda cells: cells[:3])]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def row(plan: dict[str, Any]) -> list[str]:
    _, topology, mesh, rows, length = plan["case"]
    cells = [f"{rows} x {length}", topology, mesh, f"{plan['memory']['peak'] / 2**30:.2f}"]
    best = plan["estimate"]
    if best is None:
        return [*cells, "", "", "", "does not fit", ""]
    share = plan["utilisation"]
    return [
        *cells,
        f"{sum(plan['collectives'].values()) / 2**20:,.0f}",
        f"{1e3 * best['compute']:.2f}",
        f"{1e3 * best['network']:.2f}",
        best["bound"],
        f"{share['serial']:.0%} to {share['overlapped']:.0%}",
    ]


if __name__ == "__main__":
    main()
