"""A forecast of any function of arrays on target hardware, such as a training step of another library.

`Program` says what to compile: a function, the shapes of its arguments, a mesh, and where the arguments are. Nothing
here knows models, tasks or training.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Jaxpr
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer import targets
from jaxformer.errors import ConfigError, first_line
from jaxformer.hardware import GIB
from jaxformer.planning import graph, topology
from jaxformer.planning.forecast import Compiled, Memory, analyzed, device_bytes
from jaxformer.planning.hlo import Collective
from jaxformer.planning.roofline import Roofline, roofline
from jaxformer.reprs import brief

OPAQUE = frozenset(
    "pallas_call ffi_call custom_call pure_callback io_callback cholesky triangular_solve lu qr householder_product "
    "eig eigh svd schur tridiagonal_solve fft".split()
)
"""The operations whose arithmetic is not that of products in the graph, so that it is not counted."""

SMALLEST_HINT = 0.01
"""The share of the peak of the memory from which a change is worth a line."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A function to compile ahead of time, with its arguments and their places.

    Attributes:
      function: of arrays and trees of arrays; what ``jax.jit`` returned keeps its own donations and output shardings.
      arguments: for each argument a tree of arrays, or of their shapes (``jax.ShapeDtypeStruct``).
      mesh: a mesh of the target's devices, as `topology.mesh` makes it, or its axes as text, such as "data=2,fsdp=4".
      shardings: for each argument a ``PartitionSpec``, or a tree of them; None for a copy on every device.
      donate: the numbers of arguments whose memory the outputs may take.
    """

    function: Callable[..., Any]
    arguments: Sequence[Any]
    mesh: Mesh | str = ""
    shardings: Sequence[Any] | None = None
    donate: tuple[int, ...] = ()

    __repr__ = brief


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramMemory(Memory):
    """Bytes of one device that holds arguments."""

    arguments: tuple[int, ...]
    """The bytes of each argument."""

    @property
    def held(self) -> tuple[int, ...]:
        return self.arguments


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ProgramForecast(Compiled):
    """The memory, exchanges, arithmetic and least time of a program; what is unknown has a reason in `unknown`."""

    memory: ProgramMemory
    flops: int | None
    """Operations of all matrix products and convolutions, all devices together; None if a loop hides their number."""
    unknown: tuple[str, ...] = ()
    """Names of what is not counted, with reasons; the estimate is then a lower limit."""
    hints: tuple[str, ...] = ()
    """Changes that would take less memory or time, with their arithmetic."""


def forecast(program: Program, name: str) -> ProgramForecast:
    """Compiles a program for a topology.

    Raises:
      ConfigError: an unknown topology, a mesh that does not fit it or the arguments, no compiler for it, or a function
        that cannot be traced with these arguments.
    """
    mesh = program.mesh if isinstance(program.mesh, Mesh) else topology.mesh(name, program.mesh)
    arguments = placed(program, mesh)
    jitted: Any = program.function
    if not hasattr(jitted, "trace"):
        jitted = jax.jit(jitted, donate_argnums=program.donate)
    try:
        with targets.compiling_for(mesh.devices.flatten().tolist()):
            traced = jitted.trace(*arguments)
            jaxpr, lowered = traced.jaxpr.jaxpr, traced.lower()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the function cannot be traced: {first_line(error)}") from error
    sizes = tuple(device_bytes(argument) for argument in arguments)
    peak, sent, problem = analyzed(lowered, sum(sizes), name, mesh)
    memory = ProgramMemory(arguments=sizes, peak=peak, available=topology.parse(name).available)
    flops, unknown = _arithmetic(jaxpr)
    unknown += [f"collectives: {problem}"] * bool(problem)
    estimate = None if sent is None else _estimate(name, mesh, memory, jaxpr, flops, sent)
    return ProgramForecast(
        topology=name,
        mesh=dict(mesh.shape),
        memory=memory,
        flops=flops,
        collectives=tuple(sent or ()),
        estimate=estimate,
        unknown=tuple(unknown),
        hints=tuple(_hints(arguments, lowered, mesh, memory, sent or ())),
    )


def placed(program: Program, mesh: Mesh) -> list[Any]:
    """Returns the arguments as shapes with their shardings on a mesh.

    Raises:
      ConfigError: there are not as many shardings as arguments, a sharding names an axis that the mesh lacks, or the
        mesh does not divide a dimension.
    """
    specs = program.shardings
    if specs is None:
        specs = [PartitionSpec()] * len(program.arguments)
    if len(specs) != len(program.arguments):
        raise ConfigError(f"{len(program.arguments)} arguments need as many shardings, got {len(specs)}")
    is_spec = lambda x: x is None or isinstance(x, PartitionSpec)
    found = []
    for number, (spec, argument) in enumerate(zip(specs, program.arguments, strict=True)):
        try:
            shardings = jax.tree.map(lambda s: NamedSharding(mesh, s or PartitionSpec()), spec, is_leaf=is_spec)
            place = lambda sharding, part: jax.tree.map(lambda x: _at(x, sharding), part)
            found.append(jax.tree.map(place, shardings, argument))
        except ValueError as error:
            raise ConfigError(f"argument {number}: {first_line(error)}") from error
    return found


def _at(x: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    shape, dtype = jax.numpy.shape(x), jax.dtypes.result_type(x)
    sharding.shard_shape(shape)  # raises an error that names the axis and the dimension
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def _arithmetic(jaxpr: Jaxpr) -> tuple[int | None, list[str]]:
    """Returns the operations of all products, or None, and what is not counted, with reasons."""
    opaque = Counter(_opaque(jaxpr))
    unknown = [
        f"arithmetic of {name}, {count} in the graph: not a product of matrices" for name, count in opaque.items()
    ]
    try:
        return graph.flops(jaxpr), unknown
    except ValueError as error:
        return None, [*unknown, f"arithmetic of all products: {error}"]


def _opaque(jaxpr: Jaxpr) -> list[str]:
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive.name in OPAQUE:
            found.append(equation.primitive.name)
        else:
            found += [name for part in graph.graphs(equation) for name in _opaque(part)]
    return found


def _estimate(
    name: str, mesh: Mesh, memory: ProgramMemory, jaxpr: Jaxpr, flops: int | None, sent: Sequence[Collective]
) -> Roofline:
    """Returns the roofline, in which products of float32 run at their own rate."""
    target, devices = topology.parse(name), mesh.devices.size
    full = graph.flops(jaxpr, "float32") if flops else 0
    slower = target.chip.bfloat16_flops / target.chip.float32_flops
    work = ((flops or 0) + full * (slower - 1)) / devices
    # Arguments are read, and everything else is written and read.
    touched = memory.peak + memory.temporaries
    return roofline(target, dict(mesh.shape), flops=work, touched=touched, collectives=sent)


def _hints(
    arguments: Sequence[Any], lowered: jax.stages.Lowered, mesh: Mesh, memory: ProgramMemory, sent: Sequence[Collective]
) -> list[str]:
    least, hints = SMALLEST_HINT * memory.peak, []
    outputs = Counter((x.shape, x.dtype) for x in jax.tree.leaves(lowered.out_info))
    kept, _ = lowered.args_info
    is_donated = lambda infos: [x.donated for x in jax.tree.leaves(infos, is_leaf=lambda x: hasattr(x, "donated"))]
    leaves = [list(zip(jax.tree.leaves(x), is_donated(y), strict=True)) for x, y in zip(arguments, kept, strict=True)]
    for x in [x for pairs in leaves for x, donated in pairs if donated]:
        _take(outputs, x)
    for number, pairs in enumerate(leaves):
        if (saved := device_bytes([x for x, donated in pairs if not donated and _take(outputs, x)])) >= least:
            hints.append(f"donate argument {number}: outputs have the shapes of {saved / GIB:.3f} GiB of it")
    copies = [
        (device_bytes(x), f"argument {number}{jax.tree_util.keystr(path)}", x.shape)
        for number, argument in enumerate(arguments)
        for path, x in jax.tree_util.tree_leaves_with_path(argument)
        if x.sharding.is_fully_replicated and mesh.devices.size > 1
    ]
    for size, where, shape in sorted(copies, key=lambda copy: -copy[0])[:3]:
        fitting = [axis for axis, n in mesh.shape.items() if n > 1 and any(side % n == 0 for side in shape)]
        if size >= least and fitting:
            saved = size * (1 - 1 / mesh.shape[fitting[-1]]) / GIB
            hints.append(
                f"{where}, {size / GIB:.3f} GiB, is whole on every device: along {fitting[-1]}, {saved:.3f} less"
            )
    if sent:
        most = max(sent, key=lambda one: one.bytes_sent * one.count)
        size = most.bytes_sent * most.count / 2**20
        hints.append(
            f"the exchange that sends most, {size:,.1f} MiB: {most.kind} of {most.where or 'an unnamed operation'}"
        )
    return hints


def _take(outputs: Counter[tuple[tuple[int, ...], Any]], x: jax.ShapeDtypeStruct) -> bool:
    """Returns True if an output that no argument has taken yet has this shape and dtype, and takes it."""
    found = outputs[x.shape, x.dtype] > 0
    outputs[x.shape, x.dtype] -= found
    return found
