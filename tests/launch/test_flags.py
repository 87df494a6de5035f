"""Every flag of launch/flags is one that XLA knows: an unknown one would end a training before it begins."""

import os
import re
import subprocess
import sys

import pytest

from tests.launch import programs

PROFILES = sorted((programs.LAUNCH / "flags").glob("*.txt"))
CPU = "import jax; print('compiled', jax.jit(lambda x: x + 1)(1))"
TPU = """
import os
os.environ.update(JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1")
import jax, numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4").devices
rows = NamedSharding(Mesh(np.array(devices), ("x",)), PartitionSpec("x"))
x = jax.ShapeDtypeStruct((64, 64), np.float32, sharding=rows)
jax.jit(lambda x: x @ x).lower(x).compile()
print("compiled")
"""


def flags(path):
    return re.findall(r"^--\S+", path.read_text(encoding="utf-8"), flags=re.M)


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_every_flag_has_a_reason(path):
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert len(lines) == len(flags(path)) > 0
    assert all(re.fullmatch(r"--xla_\w+=\w+ +# .{5,}", line) for line in lines)
    command = re.search(r'export (\w+)="(\$\(.*\))"', path.read_text(encoding="utf-8"))
    assert command[1] == ("LIBTPU_INIT_ARGS" if path.stem.startswith("tpu") else "XLA_FLAGS")
    script = f'{command[1]}="{command[2]}"; printf %s "${command[1]}"'
    done = subprocess.run(["sh", "-c", script], cwd=programs.ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == flags(path)


def compiled(python, program, variable, given):
    known = {**os.environ, "JAX_PLATFORMS": "cpu", variable: " ".join(given)}
    done = subprocess.run([python, "-c", program], env=known, capture_output=True, text=True, timeout=200)
    return done.returncode == 0 and "compiled" in done.stdout, done.stderr[-1000:]


@pytest.mark.faults
@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_the_compiler_takes_them(path):
    """A TPU's in a compilation for eight of them; the others by the parser that CPU, GPU and all share."""
    tpu = path.stem.startswith("tpu")
    python = programs.python_with("libtpu") if tpu else sys.executable
    how = (python, TPU, "LIBTPU_INIT_ARGS") if tpu else (python, CPU, "XLA_FLAGS")
    taken, said = compiled(*how, flags(path))
    assert taken, said
    taken, said = compiled(*how, [*flags(path), "--xla_gpu_no_such_flag=true"])
    assert not taken
    assert "xla_gpu_no_such_flag" in said
