"""The mesh of devices, from a line such as ``data=8,tensor=4``."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import Mesh

AXES = ("slice", "data", "fsdp", "expert", "context", "tensor")
"""Mesh axes, outermost first: `slice` crosses the slow network between slices, `tensor` wants the fastest links."""


def mesh(text: str = "", devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh of these devices (all by default): ``axis=size`` pairs, by commas; with nothing said, all are `data`.

    Axes are laid out in the order of `AXES`, whatever their order here, so that neighbors on the last ones are
    neighbors in the machine.  One size may be ``*``, for what is left.

    Raises:
      ValueError: a line that does not parse, an axis that there is not (the nearest is named), or sizes that do not
        multiply to the number of devices.

    >>> dict(mesh("data=*", jax.devices()[:1]).shape)
    {'data': 1}
    """
    devices = jax.devices() if devices is None else devices
    slices = len(_slices(devices))
    sizes = parse(text or ("data=*" if slices == 1 else f"slice={slices},data=*"), len(devices))
    if math.prod(sizes.values()) != len(devices):
        product = " x ".join(f"{name} {size}" for name, size in sizes.items())
        raise ValueError(
            f"mesh {text!r} has {product} = {math.prod(sizes.values())} devices, but there are {len(devices)}"
        )
    names = tuple(name for name in AXES if name in sizes)
    return Mesh(_arranged([sizes[name] for name in names], names, devices), names)


def num_slices(text: str) -> int:
    """The slices that a mesh is for, as its line says.

    Raises:
      ValueError: it leaves them open, for there is nothing to count.

    >>> num_slices("slice=2,fsdp=*"), num_slices("data=8")
    (2, 1)
    """
    slices = _sizes(text).get("slice", 1) if text else 1
    if not slices:
        raise ValueError(f"mesh {text!r}: say how many slices, such as slice=2, for a topology is one of them")
    return slices


def parse(text: str, num_devices: int) -> dict[str, int]:
    """Axis sizes from a line, with ``*`` worked out."""
    sizes = _sizes(text)
    for name in (name for name, size in sizes.items() if size == 0):
        others = math.prod(size for size in sizes.values() if size)
        if num_devices % others:
            raise ValueError(f"mesh {text!r}: {num_devices} devices cannot be shared out by {others}")
        sizes[name] = num_devices // others
    return sizes


def _sizes(text: str) -> dict[str, int]:
    """Axis sizes from a line, 0 for ``*``."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\w+)\s*=\s*([0-9]{1,9}|\*)\s*", part)
        if not found:
            raise ValueError(f"mesh {text!r}: expected axis=size, such as data=8,tensor=4, got {part!r}")
        name, size = found.groups()
        if name not in AXES:
            near = difflib.get_close_matches(name, AXES, 1)
            raise ValueError(
                f"mesh {text!r}: no axis {name!r}{f'; did you mean {near[0]!r}?' if near else ''} ({', '.join(AXES)})"
            )
        if name in sizes:
            raise ValueError(f"mesh {text!r}: {name!r} twice")
        sizes[name] = 0 if size == "*" else int(size)
        if size != "*" and sizes[name] < 1:
            raise ValueError(f"mesh {text!r}: {name!r} must be at least 1, got {size}")
    open_ = [name for name, size in sizes.items() if size == 0]
    if len(open_) > 1:
        raise ValueError(f"mesh {text!r}: only one size may be *, got {' and '.join(open_)}")
    return sizes


def _slices(devices: Sequence[Any]) -> set[int]:
    """Of TPUs.  JAX numbers the hosts of GPUs so, too, but they need no axis of their own, for in order they lie."""
    return {getattr(device, "slice_index", 0) if device.platform == "tpu" else 0 for device in devices}


def _arranged(sizes: list[int], names: tuple[str, ...], devices: Sequence[Any]) -> np.ndarray:
    slices = _slices(devices)
    if len(slices) > 1:
        if names[0] != "slice" or sizes[0] != len(slices):
            raise ValueError(f"the devices are {len(slices)} slices: the mesh must begin slice={len(slices)}")
        across, within = [sizes[0]] + [1] * (len(sizes) - 1), [1, *sizes[1:]]
        return mesh_utils.create_hybrid_device_mesh(within, across, devices, allow_split_physical_axes=True)
    return mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
