"""Every flag of launch/flags is one that XLA knows: an unknown one would end a training before it begins."""

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
    check(python, *((POD.format(name="v5e:2x4"), "LIBTPU_INIT_ARGS") if tpu else (CPU, "XLA_FLAGS")), flags(path))


@pytest.mark.faults
def test_the_compiler_for_gpus_takes_its_set():
    """By hand, where its wheels of 5 GB are; the reproducible set wants to ask a GPU which kernels it has."""
    given = flags(programs.LAUNCH / "flags" / "gpu.txt")
    check(programs.python_with("jax_cuda12_plugin"), POD.format(name="h100:2x4"), "XLA_FLAGS", given)


def check(python, program, variable, given):
    taken, said = compiled(python, program, variable, given)
    assert taken, said
    taken, said = compiled(python, program, variable, [*given, "--xla_gpu_no_such_flag=true"])
    assert not taken
    assert "xla_gpu_no_such_flag" in said
