"""Forecasts of any function: by hand, beside the compiler's own numbers, for the examples, and with mistakes."""

import importlib.util
import pathlib

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from jaxformer.cli.main import main
from jaxformer.errors import ConfigError
from jaxformer.planning import program, topology
from jaxformer.planning.program import Program
from jaxformer.tasks.planner import load_program

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "plan_any.py"
NAME = "v5e:2x4"
ROWS, WIDTH, INNER = 64, 32, 128
KERNELS = {"a": jax.ShapeDtypeStruct((WIDTH, INNER), jnp.float32), "b": jax.ShapeDtypeStruct((INNER, WIDTH), "float32")}
BATCH = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    """Eight CPU devices are a slice."""
    monkeypatch.setattr(topology, "devices", lambda name, *, slices: jax.devices())


def step(params, x):
    loss = lambda params: jnp.sum((jnp.tanh(x @ params["a"]) @ params["b"]) ** 2)
    return jax.tree.map(lambda p, d: p - 0.1 * d, params, jax.grad(loss)(params))


ROWS_CUT = None, PartitionSpec("data")


def planned(function=step, arguments=(KERNELS, BATCH), shardings=ROWS_CUT, **more):
    return program.forecast(Program(function, arguments, "data=8", shardings, **more), NAME)


def test_a_data_parallel_step_by_hand():
    found = planned(donate=(0,))
    kernels = 2 * WIDTH * INNER * 4
    assert found.memory.arguments == (kernels, ROWS // 8 * WIDTH * 4)
    assert (
        found.flops == 5 * 2 * ROWS * WIDTH * INNER
    )  # two forward; two of the kernels and one of the inner layer back
    assert {(one.kind, one.axes) for one in found.collectives} == {("all-reduce", ("data",))}
    assert sum(one.bytes * one.count for one in found.collectives) == kernels
    chip = topology.parse(NAME).chip
    assert found.estimate.compute == pytest.approx(found.flops / 8 / chip.float32_flops)
    assert found.unknown == ()


def test_the_memory_is_the_compilers():
    found = planned(donate=(0,))
    mesh = topology.mesh(NAME, "data=8")
    arguments = program.placed(Program(step, (KERNELS, BATCH), "", (None, PartitionSpec("data"))), mesh)
    about = jax.jit(step, donate_argnums=0).lower(*arguments).compile().memory_analysis()
    assert sum(found.memory.arguments) == about.argument_size_in_bytes
    outputs = about.output_size_in_bytes - about.alias_size_in_bytes
    assert found.memory.temporaries == outputs + about.temp_size_in_bytes + about.generated_code_size_in_bytes
    assert found.memory.fits


def test_what_would_help():
    plain, donated = planned(), planned(donate=(0,))
    assert plain.hints[0] == "donate argument 0: outputs have the shapes of 0.000 GiB of it"
    assert not any("donate" in hint for hint in donated.hints)
    assert "argument 0['a'], 0.000 GiB, is whole on every device: along data, 0.000 less" in donated.hints
    assert donated.hints[-1].startswith("the exchange that sends most, 0.")
    cut = planned(shardings=(PartitionSpec("data"), PartitionSpec("data")), donate=(0,))
    assert not any("is whole" in hint for hint in cut.hints)
    assert cut.memory.arguments[0] == donated.memory.arguments[0] // 8


def test_products_of_bfloat16_run_at_their_own_rate():
    narrow = lambda tree: jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.bfloat16), tree)
    product = lambda params, x: x @ params["a"]
    slow, fast = (planned(product, found) for found in ((KERNELS, BATCH), narrow((KERNELS, BATCH))))
    chip = topology.parse(NAME).chip
    assert slow.estimate.compute / fast.estimate.compute == pytest.approx(chip.bfloat16_flops / chip.float32_flops)


def test_what_cannot_be_counted_is_named_and_the_rest_remains():
    def search(params, x):
        grow = lambda state: (state[0] + 1, jnp.tanh(state[1] @ params["a"] @ params["b"]))
        _, x = jax.lax.while_loop(lambda state: jnp.sum(state[1]) < state[0], grow, (0, x))
        return jnp.linalg.cholesky(x.T @ x)

    found = planned(search)
    assert found.flops is None
    first, second = found.unknown
    assert first == "arithmetic of cholesky, 1 in the graph: not a product of matrices"
    assert second.startswith("arithmetic of all products: the products of a while loop have no known number")
    assert found.collectives
    assert found.memory.peak > sum(found.memory.arguments)
    assert found.estimate.compute == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"shardings": (None,)}, "2 arguments need as many shardings, got 1"),
        ({"shardings": (None, PartitionSpec("model"))}, "argument 1: .*model"),
        ({"arguments": (KERNELS, jax.ShapeDtypeStruct((65, WIDTH), "float32"))}, "argument 1: .*65"),
        ({"arguments": (KERNELS, jax.ShapeDtypeStruct((64, 9), "float32"))}, "the function cannot be traced: .*9"),
    ],
)
def test_mistakes_are_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        planned(**given)


FILE = """
from jaxformer.planning.program import Program

def nothing(mesh):
    return 3

def broken(mesh):
    return Program(None, missing)

def bare():
    return Program(lambda x: x + 1, (1.0,))
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--function file", "--function must be FILE.py:NAME, got 'file'"),
        ("--function gone.py:make", "no file gone.py"),
        ("--function file.py:nothin", "file.py has no function 'nothin'; did you mean 'nothing'?"),
        ("--function file.py:nothing", "file.py:nothing returned int, not a jaxformer.planning.program.Program"),
        ("--function file.py:broken", "file.py, line 8: NameError: name 'missing' is not defined"),
        ("--function file.py:bare --batch 2x2", "--function has no place for --batch 2x2"),
        ("demo --function file.py:bare", "--function has no place for demo"),
        ("--function file.py:bare --mesh data=3", "data=3"),
    ],
)
def test_the_command_names_what_is_wrong(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("file.py").write_text(FILE)
    assert main(["plan", *words.split(), "--topology", NAME]) == 2
    assert said in capsys.readouterr().err


def test_the_command_prints_a_report(tmp_path, capsys):
    (tmp_path / "file.py").write_text(FILE)
    words = ["plan", "--function", f"{tmp_path}/file.py:bare", "--topology", NAME, "--mesh", "data=8"]
    assert main(words) == 0
    assert "file.py:bare: v5e:2x4, 8 devices, mesh data=8\n\nmemory of a device, GiB\n" in capsys.readouterr().out


@pytest.mark.parametrize("library", ["plain_jax", "flax_nnx", "equinox"])
def test_the_examples_have_the_same_arithmetic(library):
    """Nothing else differs but the biases: three products of the loss's two and three of its gradient."""
    if library == "equinox" and importlib.util.find_spec("equinox") is None:
        pytest.skip("equinox is not installed: pip install equinox")
    with jax.numpy_dtype_promotion("standard"):  # for optax
        found = program.forecast(load_program(f"{EXAMPLES}:{library}", NAME, "data=2,fsdp=4"), NAME)
    assert found.flops == 5 * 2 * 4096 * 1024 * 4096
    kernels = 3 * 2 * 1024 * 4096 * 4 // 4
    assert kernels <= found.memory.arguments[0] < 1.01 * kernels
    assert {axis for one in found.collectives for axis in one.axes} == {"data", "fsdp"}
    assert not any("donate argument 0" in hint for hint in found.hints)
