"""XLA knows every flag of launch/flags: an unknown one would end a training before it begins."""

import os
import re
import subprocess
import sys

import pytest

from tests.launch import programs

PROFILES = sorted((programs.LAUNCH / "flags").glob("*.txt"))
CPU = "import jax; print('compiled', jax.jit(lambda x: x + 1)(1))"
POD = """
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxformer.planning import topology
rows = NamedSharding(Mesh(np.array(topology.devices("{name}")), ("x",)), PartitionSpec("x"))
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


def compiled(python, program, variable, options):
    env = {**os.environ, "JAX_PLATFORMS": "cpu", variable: " ".join(options)}
    done = subprocess.run([python, "-c", program], env=env, capture_output=True, text=True, timeout=200)
    return done.returncode == 0 and "compiled" in done.stdout, done.stderr[-1000:]


@pytest.mark.faults
@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_the_compiler_accepts_the_flags(path):
    """TPU flags compile a program for eight TPUs; the parser that CPU and GPU share reads the others."""
    tpu = path.stem.startswith("tpu")
    python = programs.python_with("libtpu") if tpu else sys.executable
    check(python, *((POD.format(name="v5e:2x4"), "LIBTPU_INIT_ARGS") if tpu else (CPU, "XLA_FLAGS")), flags(path))


@pytest.mark.faults
def test_the_gpu_compiler_accepts_its_flags():
    """Runs only if the CUDA wheels (5 GB) are installed. The reproducible set needs a GPU to choose kernels on."""
    options = flags(programs.LAUNCH / "flags" / "gpu.txt")
    check(programs.python_with("jax_cuda12_plugin"), POD.format(name="h100:2x4"), "XLA_FLAGS", options)


def check(python, program, variable, options):
    accepted, errors = compiled(python, program, variable, options)
    assert accepted, errors
    accepted, errors = compiled(python, program, variable, [*options, "--xla_gpu_no_such_flag=true"])
    assert not accepted
    assert "xla_gpu_no_such_flag" in errors
