"""The target devices are those of this machine, until a context names others."""

import contextlib
import dataclasses

import jax

from jaxformer import targets


@dataclasses.dataclass(frozen=True)
class Device:
    platform: str
    device_kind: str


def test_devices_are_those_of_this_machine():
    assert list(targets.devices()) == jax.devices()


def test_compiling_for_names_others_inside_only_and_nests():
    tpu, gpu = Device("tpu", "TPU v5 lite"), Device("gpu", "NVIDIA H100")
    with targets.compiling_for([tpu, tpu]):
        with contextlib.suppress(KeyError), targets.compiling_for([gpu]):
            assert list(targets.devices()) == [gpu]
            raise KeyError
        assert list(targets.devices()) == [tpu, tpu]
    assert list(targets.devices()) == jax.devices()
