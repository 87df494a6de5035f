"""Golden limits of what a pod would hold and send: a constraint that is lost fails here, not on the pod.

Two and two layers of the real widths; depth adds to the state and the kept activations, not to any one exchange.
"""

import dataclasses
import functools
import pathlib

import pytest

from jaxformer.config import resolve
from jaxformer.tasks.planning import forecast

pytest.importorskip("libtpu", reason="no libtpu, which compiles for TPUs without one")
pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]

EXPERIMENTS = pathlib.Path(__file__).parents[2] / "experiments" / "translation" / "wmt14.py"
MIB = 2**20


@functools.cache
def planned(name, topology, mesh, rows, length, **options):
    _, config = resolve(f"{EXPERIMENTS}:{name}_en_de")
    model = dataclasses.replace(config.model, encoder_depth=2, decoder_depth=2)
    config = dataclasses.replace(config, mesh=mesh, model=model)
    return forecast(config, topology, shape=(rows, length, length), **options)
