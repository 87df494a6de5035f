"""The mesh of devices, from a string such as ``data=8,tensor=4``."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import Mesh

from jaxformer.errors import ConfigError, did_you_mean
from jaxformer.targets import Device

AXES = ("slice", "data", "fsdp", "expert", "context", "tensor")
"""Mesh axes, outermost first: `slice` crosses the slow network between slices, `tensor` needs the fastest links."""


def mesh(text: str = "", devices: Sequence[Device] | None = None) -> Mesh:
    """Returns the mesh of comma-separated ``axis=size`` pairs; if the text is empty, all devices are on axis `data`.

    Axes are laid out in the order of `AXES`, not of the text, so that neighbors on the last axes are neighbors in the
    machine. One size may be ``*``, which stands for the remaining devices.

    Raises:
      ConfigError: a text that does not parse, an unknown axis (the message suggests the most similar name), or sizes
        whose product is not the number of devices.

    >>> dict(mesh("data=*", jax.devices()[:1]).shape)
    {'data': 1}
    """
    if devices is None:
        devices = jax.devices()
    slices = len(_slices(devices))
    sizes = parse(text or f"slice={slices},data=*".removeprefix("slice=1,"), len(devices))
    names = tuple(name for name in AXES if name in sizes)
    return Mesh(_arranged([sizes[name] for name in names], names, devices), names)


def num_slices(text: str) -> int:
    """Returns the number of slices in the text of a mesh.

    Raises:
      ConfigError: the text leaves the number open (``slice=*``), and there are no devices to count.

    >>> num_slices("slice=2,fsdp=*"), num_slices("data=8")
    (2, 1)
    """
    slices = _sizes(text or "slice=1").get("slice", 1)
    if not slices:
        raise ConfigError(f"mesh {text!r}: give the number of slices, such as slice=2; a topology describes one slice")
    return slices


def parse(text: str, num_devices: int) -> dict[str, int]:
    """Returns the axis sizes in the text of a mesh, with ``*`` computed from the number of devices.

    Raises:
      ConfigError: a text that does not parse, an unknown axis, or sizes whose product is not the number of devices.
    """
    sizes = _sizes(text)
    for name in (name for name, size in sizes.items() if size == 0):
        others = math.prod(size for size in sizes.values() if size)
        if num_devices % others:
            raise ConfigError(f"mesh {text!r}: {num_devices} devices cannot be divided by {others}")
        sizes[name] = num_devices // others
    if math.prod(sizes.values()) != num_devices:
        product = " x ".join(f"{name} {size}" for name, size in sizes.items())
        raise ConfigError(
            f"mesh {text!r} has {product} = {math.prod(sizes.values())} devices, but there are {num_devices}"
        )
    return sizes


def _sizes(text: str) -> dict[str, int]:
    """Returns the axis sizes in the text of a mesh, 0 for ``*``."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\w+)\s*=\s*([0-9]{1,9}|\*)\s*", part)
        if not match:
            raise ConfigError(f"mesh {text!r}: expected axis=size, such as data=8,tensor=4, got {part!r}")
        name, size = match.groups()
        if name not in AXES:
            raise ConfigError(f"mesh {text!r}: no axis {name!r}{did_you_mean(name, AXES)}")
        if name in sizes:
            raise ConfigError(f"mesh {text!r}: {name!r} twice")
        sizes[name] = int(size.replace("*", "0"))
        if size != "*" and sizes[name] < 1:
            raise ConfigError(f"mesh {text!r}: {name!r} must be at least 1, got {size}")
    unknown_sizes = [name for name, size in sizes.items() if size == 0]
    if len(unknown_sizes) > 1:
        raise ConfigError(f"mesh {text!r}: only one size may be *, got {' and '.join(unknown_sizes)}")
    return sizes


def _slices(devices: Sequence[Device]) -> set[int]:
    """Returns the slice indices of TPUs. JAX also numbers GPU hosts as slices; they need no axis and count as one."""
    return {getattr(device, "slice_index", 0) if device.platform == "tpu" else 0 for device in devices}


def _arranged(sizes: list[int], names: tuple[str, ...], devices: Sequence[Device]) -> np.ndarray:
    slices = _slices(devices)
    if len(slices) > 1:
        if names[0] != "slice" or sizes[0] != len(slices):
            raise ConfigError(f"the devices are {len(slices)} slices: the mesh must begin slice={len(slices)}")
        across, within = [sizes[0]] + [1] * (len(sizes) - 1), [1, *sizes[1:]]
        return mesh_utils.create_hybrid_device_mesh(within, across, devices, allow_split_physical_axes=True)
    return mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
