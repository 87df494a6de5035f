"""The collectives of a compiled program, read from its text.

XLA's own cost analysis counts the body of a loop once; here every collective is counted as often as it runs.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

KINDS = "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute"
_KIND = "|".join((*KINDS, "collective-broadcast"))
_BITS = {"pred": 8, "token": 0, "opaque": 0}

_HEAD = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_LINE = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
_COLLECTIVE = re.compile(rf"^(.*?) ({_KIND})(-start)?\((.*)$")
_ACROSS = re.compile(r'^\((.*?), u32.* send\(.*_xla_megascale_transfer_type="(\w+)"')
"""A TPU's message to other slices: through its host, over the slow network."""
_CALLS = re.compile(r"\b(condition|body|calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_CONTINUED = re.compile(r'"async_collective_fusion_config":\{"flag_start":"\d')
"""A later part of a TPU collective that several fusions implement; the part that starts it has the flag -1."""
_IOTA = r"\[([\d,]+)\](?:T\(([\d,]+)\))?"
_BRANCHES = re.compile(r"\b(?:branch_computations|called_computations)=\{([^}]*)\}")


@dataclasses.dataclass(frozen=True)
class Collective:
    """One exchange between devices, as one device sees it."""

    kind: str
    """all-gather, all-reduce, ..."""
    bytes: int
    """Bytes of the full array that is exchanged: the result of a gather, the operand of a scatter."""
    largest: int
    """Bytes of the largest array in it, since the compiler sends several at once."""
    devices: int
    """The number of devices that take part together; 2 in a permutation, where one sends to one."""
    axes: tuple[str, ...]
    """The mesh axes along which these devices are."""
    count: int
    """The number of runs in one run of the program, loops included."""
    where: str
    """The name of the operation in the program."""
    uncounted_loops: tuple[str, ...] = ()
    """The loops around it whose number of iterations is unknown: `count` assumes one iteration of each."""

    @property
    def bytes_sent(self) -> float:
        """The bytes that a device sends in each run, around a ring: (n - 1) / n of `bytes`, twice in an all-reduce."""
        if self.kind.startswith("collective"):
            return self.bytes
        return self.bytes * (self.devices - 1) / self.devices * (1 + (self.kind == "all-reduce"))


def collectives(text: str, mesh: Mapping[str, int]) -> list[Collective]:
    """Returns the collectives of a compiled program, the largest array first.

    A loop whose number of iterations is not in the text, because it depends on data, is named in `uncounted_loops`.

    Args:
      text: ``compiled.as_text()``.
      mesh: ``mesh.shape``, the axes with their sizes in order.

    Raises:
      ValueError: groups of devices, or a message to another slice, are in an unknown notation.

    >>> (found,) = collectives('''ENTRY %main (x: f32[4]) -> f32[8] {
    ...   %x = f32[4]{0} parameter(0)
    ...   ROOT %y = f32[8]{0} all-gather(%x), replica_groups={{0,1},{2,3}}, dimensions={0}
    ... }''', {"data": 2, "tensor": 2})
    >>> found.kind, found.bytes, found.devices, found.axes, found.count
    ('all-gather', 32, 2, ('tensor',), 1)
    """
    program = _parse(text)
    times: Counter[Collective] = Counter()
    for (name, loops), runs in _runs(program).items():
        for line in program[name].values():
            if one := _read(line, mesh):
                if name.startswith("all-reduce-scatter"):  # of a TPU: a sum and a slice, run as one
                    one = dataclasses.replace(one, kind="reduce-scatter")
                times[dataclasses.replace(one, uncounted_loops=loops)] += runs
    counted = [dataclasses.replace(one, count=count) for one, count in times.items()]
    return sorted(counted, key=lambda one: (-one.largest, one.kind, one.where))


def group(collectives: Iterable[Collective]) -> list[Collective]:
    """Merges collectives of one kind, size and mesh axes, and adds their counts; `where` is taken from the first."""
    groups: dict[tuple, list[Collective]] = {}
    for one in collectives:
        groups.setdefault((one.kind, one.bytes, one.axes, one.uncounted_loops), []).append(one)
    return [dataclasses.replace(same[0], count=sum(one.count for one in same)) for same in groups.values()]


Computation = dict[str, str]
"""The lines of a function of the program, by the name that they define; the last one is its result."""


def _parse(text: str) -> dict[str, Computation]:
    program: dict[str, Computation] = {}
    lines: Computation = {}
    for line in text.splitlines():
        if head := _HEAD.match(line):
            lines = program[head[1]] = {}
            if line.startswith("ENTRY"):
                program[""] = lines
        elif defined := _LINE.match(line):
            lines[defined[1]] = defined[2]
    return program


def _runs(program: dict[str, Computation]) -> dict[tuple[str, tuple[str, ...]], int]:
    """Returns the number of runs of each computation that holds a collective, or calls one that does.

    The key is its name, and the loops around it that count as one iteration.
    """
    holds: dict[str, bool] = {}

    def interesting(name: str) -> bool:
        if name not in holds:
            holds[name] = False
            lines = program[name].values()
            inside = any(interesting(callee) for line in lines for _, callee in _callees(line))
            holds[name] = inside or any(_exchanges(line) for line in lines)
        return holds[name]

    runs: Counter[tuple[str, tuple[str, ...]]] = Counter()

    def visit(name: str, times: int, loops: tuple[str, ...]) -> None:
        runs[name, loops] += times
        for defined, line in program[name].items():
            for role, callee in _callees(line):
                if not interesting(callee):
                    continue
                turns = _turns(program, program[name], line) if role in ("body", "condition") else 1
                if turns is None:
                    operation = re.search(r'op_name="([^"]*)"', line)
                    visit(callee, times, (*loops, operation[1] if operation else defined))
                else:
                    visit(callee, times * turns, loops)

    visit("", 1, ())
    return runs


def _exchanges(line: str) -> bool:
    return bool((_COLLECTIVE.match(line) or _ACROSS.match(line)) and not _CONTINUED.search(line))


def _callees(line: str) -> list[tuple[str, str]]:
    if re.search(r" async-(done|update)\(", line):  # async-start has called it
        return []
    branches = [name for names in _BRANCHES.findall(line)[:1] for name in names.split(",")]
    return _CALLS.findall(line) + [("branch", name.strip().lstrip("%")) for name in branches]


def _turns(program: dict[str, Computation], caller: Computation, line: str) -> int | None:
    """Returns a loop's number of iterations, noted by the compiler or from ``start, start + step, ... < stop``.

    Returns None if it depends on data.
    """
    if noted := re.search(r'"known_trip_count":\{"n":"(\d+)"', line):
        return int(noted[1])
    called = dict(_CALLS.findall(line))
    condition, body = program[called["condition"]], program[called["body"]]
    compare = re.search(r"compare\(%?([\w.\-]+), %?([\w.\-]+)\), direction=LT", _last(condition))
    index = compare and re.search(r"get-tuple-element\(.*index=(\d+)", condition[compare[1]])
    carried = re.search(r" while\(%?([\w.\-]+)\)", line)
    if not compare or not index or not carried:
        return None
    added = re.findall(r" add\(%?([\w.\-]+), %?([\w.\-]+)\)", _element(body, _last(body), int(index[1])))[:1]
    steps = [_constant(_source(body, name)) for names in added for name in names]
    step = next(filter(None, steps), None)
    start = _constant(_element(caller, caller[carried[1]], int(index[1])))
    stop = _constant(_source(condition, compare[2]))
    return None if start is None or step is None or stop is None else max(0, -(-(stop - start) // step))


def _last(lines: Computation) -> str:
    return next(reversed(lines.values()))


def _element(lines: Computation, line: str, index: int) -> str:
    """Returns the line that defines an element of a tuple; an empty one if `line` makes no tuple."""
    elements = re.findall(r"%?([\w.\-]+)(?:,|\)|$)", re.sub(r"/\*.*?\*/", "", line.partition(" tuple(")[2]))
    return _source(lines, elements[index]) if index < len(elements) else ""


def _source(lines: Computation, name: str) -> str:
    """Returns the line that defines a value, or the value that it is a copy of."""
    line = lines[name]
    while copied := re.search(r" copy\(%?([\w.\-]+)\)", line):
        line = lines[copied[1]]
    return line


def _constant(line: str) -> int | None:
    """Returns the value of a scalar constant."""
    value = re.search(r" constant\((-?\d+)\)", line)
    return int(value[1]) if value else None


def _read(line: str, mesh: Mapping[str, int]) -> Collective | None:
    if across := _ACROSS.match(line):
        return _read_across(across[1], across[2], mesh)
    match = _COLLECTIVE.match(line)
    if not match or _CONTINUED.search(line):
        return None
    result, kind, start, operands = match.groups()
    arrays = _ARRAY.findall(result)
    if start and kind == "collective-permute" and len(arrays) > 2 and arrays[-2:] == [("u32", "")] * 2:
        arrays = arrays[:-2]  # two internal numbers of a TPU
    sizes = [_size(*array) for array in arrays]
    if start and (kind != "all-reduce" or result.startswith("((")):
        sizes = sizes[len(sizes) // 2 :]  # operands, then results; of an all-reduce both only on GPUs
    group = _group(operands, mesh)
    devices = 2 if kind == "collective-permute" else len(group)
    if kind == "reduce-scatter":
        sizes = [size * devices for size in sizes]
    if kind == "all-to-all":  # it may give a tuple of its parts
        sizes = [sum(sizes)]
    where = "".join(re.findall(r'op_name="([^"]*)"', operands)[:1])
    return Collective(kind, sum(sizes), max(sizes), devices, _axes(group, mesh), 0, where)


def _read_across(sent: str, kind: str, mesh: Mapping[str, int]) -> Collective:
    kind, slices = kind.lower().replace("_", "-"), mesh.get("slice", 1)
    if kind not in KINDS or slices < 2:
        raise ValueError(f"cannot read what is sent to another slice: {kind} of {sent} on a mesh of {dict(mesh)}")
    full = sum(_size(*array) for array in _ARRAY.findall(sent))
    if kind == "all-gather":
        full *= slices
    return Collective(kind, full, full, slices, ("slice",), 0, "")


def _size(kind: str, dims: str) -> int:
    bits = _BITS.get(kind)
    if bits is None:
        width = re.search(r"\d+", kind)
        if not width:
            raise ValueError(f"an array of unknown type {kind}")
        bits = int(width[0])
    return math.prod(int(dim) for dim in dims.split(",") if dim) * bits // 8


def _group(line: str, mesh: Mapping[str, int]) -> list[int]:
    """Returns the devices of the first group that takes part together, numbered along the mesh."""
    all_devices = list(range(math.prod(mesh.values())))
    if pairs := re.search(r"source_target_pairs=\{([\d,{} ]*)\}", line):
        numbers = [[int(number) for number in pair.split(",")] for pair in re.findall(r"\{([\d, ]+)\}", pairs[1])]
        return next(([a, b] for a, b in numbers if a != b), [0, 0])
    if iota := re.search(r"replica_groups=\[(\d+),(\d+)\]<=" + _IOTA, line):
        return _iota(*iota.groups()[2:]).reshape(int(iota[1]), int(iota[2]))[0].tolist()
    if named := re.search(rf"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\({_IOTA}\))? \{{([^}}:]*)\}}", line):
        sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", named[1])}
        axes = re.findall(r"'([^']+)'", named[4])
        numbers = _iota(named[2] or str(len(all_devices)), named[3]).reshape(list(sizes.values()))
        return numbers[tuple(slice(None) if name in axes else 0 for name in sizes)].reshape(-1).tolist()
    if listed := re.search(r"replica_groups=\{(\{[\d,{} ]*\})?\}", line):
        groups = re.findall(r"\{([\d, ]+)\}", listed[1] or "")
        return [int(n) for n in groups[0].split(",")] if groups else all_devices
    raise ValueError(f"cannot read which devices take part in: {line[:300]}")


def _iota(shape: str, order: str | None) -> np.ndarray:
    """Returns devices numbered in one order and read in another: ``[4,2]T(1,0)`` is 0, 2, 4, 6, 1, 3, 5, 7."""
    sizes = [int(size) for size in shape.split(",")]
    dims = [int(dim) for dim in order.split(",")] if order else range(len(sizes))
    return np.arange(math.prod(sizes)).reshape(sizes).transpose(dims).reshape(-1)


def _axes(group: list[int], mesh: Mapping[str, int]) -> tuple[str, ...]:
    coordinates = np.unravel_index(group, tuple(mesh.values()))
    return tuple(name for name, along in zip(mesh, coordinates, strict=True) if len(set(along.tolist())) > 1)
