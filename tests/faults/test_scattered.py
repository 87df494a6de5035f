"""Two hosts whose rows are not adjacent, as on a torus: each still reads its own, and the run is the same."""

import sys

import chex
import numpy as np
import pytest

from tests.faults.hosts import Run, losses, parameters

pytestmark = pytest.mark.faults

PROGRAM = """
import importlib, sys
from jaxformer.cli import main

mesh = importlib.import_module("jaxformer.sharding.mesh")
arranged = mesh._arranged
mesh._arranged = lambda sizes, names, devices: arranged(sizes, names, [devices[i] for i in ORDER])
sys.argv[0] = "jaxformer"
sys.exit(main.main())
"""


def test_scattered_rows(tmp_path):
    """Hosts hold pieces 0 and 2, 1 and 3 of every batch."""
    for out, order in (("usual", (0, 1, 2, 3)), ("scattered", (0, 2, 1, 3))):
        program = f"ORDER = {order}\n{PROGRAM}"
        Run(tmp_path, out, program=[sys.executable, "-c", program], steps=30, mesh="data=4").finish()
    usual, scattered = (np.array(losses(tmp_path, out)) for out in ("usual", "scattered"))
    assert len(usual) == 30
    np.testing.assert_allclose(scattered, usual, rtol=1e-5)
    chex.assert_trees_all_close(*(parameters(tmp_path, out, 30) for out in ("usual", "scattered")), rtol=0, atol=1e-4)
