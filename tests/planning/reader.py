"""An independent reader of compiled programs, which shares no code with `planning.hlo`.


It reads what XLA writes for CPUs: loops with an exchange have a note of their iterations, and every exchange is one
instruction.
"""

import collections
import math

BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4}
EXCHANGES = "all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter"


def instructions(text):
    """``(times, result, opcode, operands, line)`` of every instruction, with how often it runs."""
    computations, lines = {}, []
    for line in text.splitlines():
        if line.endswith("{") and " -> " in line:
            lines = computations["entry" if line.startswith("ENTRY") else line.split()[0].lstrip("%")] = []
        elif " = " in line:
            words = "".join(part.rpartition("*/")[2] for part in line.strip().split("/*"))  # without comments
            lines.append(words.removeprefix("ROOT "))
    yield from _visited(computations, "entry", 1)


def _visited(computations, name, times):
    results = {}
    for line in computations[name]:
        defined, _, right = line.partition(" = ")
        end = _closing(right) + 1 if right.startswith("(") else right.index(" ")
        opcode, _, rest = right[end:].strip().partition("(")
        results[defined.lstrip("%")] = right[:end]
        operands = [results.get(word.split()[-1].lstrip("%")) for word in rest.split(")")[0].split(",") if word.strip()]
        yield times, right[:end], opcode, operands, line
        for role in ("body", "condition", "calls", "to_apply"):
            if f"{role}=" in line:
                callee = line.split(f"{role}=")[1].split(",")[0].split(")")[0].split()[0].lstrip("%")
                yield from _visited(computations, callee, times * (_turns(line) if opcode == "while" else 1))


def _turns(line):
    """As the compiler noted; NaN without a note, which no count of an exchange in the loop would equal."""
    _, note, rest = line.partition('known_trip_count":{"n":"')
    return int(rest.split('"')[0]) if note else math.nan


def _closing(text):
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return position
    raise ValueError(text)


def arrays(result):
    """``(type, dimensions)`` of each array of a result, such as ``(f32[8,4]{1,0}, s32[])``."""
    for part in result.split("]")[:-1]:
        name, _, dims = part.rpartition("[")
        yield name.split("(")[-1].split(",")[-1].split("}")[-1].strip(), [int(size) for size in dims.split(",") if size]


def exchanges(text):
    """``(times, kind, arrays, devices)`` of every exchange; a permutation counts as one between two."""
    for times, result, opcode, _, line in instructions(text):
        if opcode in EXCHANGES:
            yield times, opcode, list(arrays(result)), 2 if opcode == "collective-permute" else _group_size(line)


def _group_size(line):
    groups = line.split("replica_groups=")[1]
    if groups.startswith("["):  # [number of groups, size of each]<=...
        return int(groups[1:].split("]")[0].split(",")[1])
    if groups.startswith("mesh["):  # mesh['fsdp'=4,'tensor'=2] {'fsdp'}
        sizes, _, along = groups.removeprefix("mesh[").partition("]")
        named = dict(item.split("=") for item in sizes.split(","))
        return math.prod(int(named[name]) for name in along.split("{")[1].split("}")[0].split(","))
    assert groups.startswith("{{"), groups[:80]
    return len(groups[2:].split("}")[0].split(","))


def sent(text):
    """Bytes that are exchanged in a run, by kind and number of devices: the whole of each gather and each scatter."""
    found = collections.Counter()
    for times, kind, results, devices in exchanges(text):
        size = sum(BYTES[name] * math.prod(dims) for name, dims in results)
        found[kind, devices] += times * size * (devices if kind == "reduce-scatter" else 1)
    return found


def products(text):
    """Operations of all matrix products of a run."""
    found = 0
    for times, result, opcode, operands, line in instructions(text):
        if opcode == "dot":
            ((_, dims),) = arrays(result)
            ((_, left),) = arrays(operands[0])
            contracted = line.split("lhs_contracting_dims={")[1].split("}")[0]
            found += times * 2 * math.prod(dims) * math.prod(left[int(dim)] for dim in contracted.split(","))
    return found
