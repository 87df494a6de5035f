"""What becomes a row of a report, shrinking, code that reproduces a failure, adapters, and what is refused."""

import subprocess
import sys
import time

import numpy as np
import pytest

from jaxformer import conformance
from jaxformer.conformance.check import limited
from jaxformer.errors import ConfigError
from tests.conformance import wrong

pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value|divide by zero)")
PLAIN = {"framework": "numpy", "dtypes": ("float32",)}


def only(function, name, **fields):
    return conformance.check(function, only=[name], **fields)[name]


def test_a_function_that_raises_is_a_row():
    row = only(wrong.raises, "values", **PLAIN)
    assert (row.status, row.finding) == ("failed", "float32: raises RuntimeError: no such kernel")
    assert row.error == np.inf


def test_a_function_that_hangs_is_a_row_and_is_stopped():
    """The properties after it are tried, because its thread has ended."""
    began = time.monotonic()
    report = conformance.check(wrong.hangs, only=["values", "weights"], seconds=0.2, **PLAIN)
    assert [row.finding for row in report.rows] == ["takes more than 0.2 seconds"] * 2
    assert time.monotonic() - began < 3


def test_a_thread_that_cannot_be_stopped_is_left_behind():
    with pytest.raises(BaseException, match=r"^still runs$"):
        limited(lambda: time.sleep(1.2), 0.2)  # one call, in which no exception of Python is raised


def test_another_shape_is_a_row_of_every_property():
    function, fields = wrong.subject("a head too many")
    report = conformance.check(function, only=["values", "mask", "grouped heads"], **fields)
    assert report.of("failed") == ["values", "mask", "grouped heads"]
    assert "returns shape [1, 1, 2, 1], expected [1, 1, 1, 1]" not in report["values"].finding  # as it was found
    assert "returns shape [2, 5, 5, 4], expected [2, 5, 4, 4]" in report["values"].finding


def test_what_is_not_taken_is_not_offered():
    report = conformance.check(wrong.numpy_attend, **PLAIN)
    names = ["window", "mask", "bias", "dropout", "jit", "gradients"]
    assert {name: report[name].status for name in names} == {
        **dict.fromkeys(names, "not offered"), "mask": "passed", "window": "passed"
    }  # fmt: skip
    assert report["bias"].finding == "it takes no bias"
    assert report["window"].error < 1e-6  # by the mask
    assert "jit" not in report.of("passed")


@pytest.mark.parametrize(
    ("bug", "name", "small"),
    [
        ("NaN for empty rows", "empty rows", "query = np.array([[[[0.1]]]], np.float32)"),
        ("window off by one", "window", "key = np.array([[[[-0.5]], [[0.4]], [[1.3]], [[0.9]]]], np.float32)"),
        ("heads tiled", "grouped heads", "query = np.array([[[[0.1], [-0.1], [0.6], [0.1]]]], np.float32)"),
    ],
)
def test_a_failure_is_shrunk(bug, name, small):
    """To one example, one query and one dim, and as many keys and heads as the bug needs."""
    function, fields = wrong.subject(bug)
    assert small in only(function, name, **fields).code.splitlines()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: conformance.check(3), "an attention must be a function, got 3"),
        (
            lambda: conformance.check(wrong.hangs, only=["value"]),
            "there is no property 'value'; did you mean 'values'?",
        ),
        (lambda: conformance.check(wrong.hangs, layout="BTN"), "layout must be the letters B, T, N and H in any order"),
        (lambda: conformance.check(wrong.hangs, mazk="m"), "an adapter has no 'mazk'; did you mean 'mask'?"),
        (
            lambda: conformance.check(wrong.ADAPTER, layout="BNTH"),
            "an Adapter has its own fields, got layout beside it",
        ),
        (
            lambda: conformance.check(wrong.hangs, limits={"flaot32": 1.0}),
            "there is no limit of 'flaot32'; did you mean 'float32'?",
        ),
        (lambda: conformance.check(wrong.hangs, mask_is="x"), "mask_is must be one of boolean, inverted, additive"),
        (lambda: conformance.load("jax.nn"), "an attention must be package.module:function, got 'jax.nn'"),
        (lambda: conformance.load("jax.nn:dot_product"), "jax.nn has no 'dot_product'; did you mean 'dot_product_att"),
        (
            lambda: conformance.load("no_such:f"),
            "cannot import no_such: ModuleNotFoundError: No module named 'no_such'",
        ),
        (lambda: conformance.load("jax:__version__"), "jax:__version__ must be a function, got "),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(ConfigError) as error:
        call()
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_a_module_that_cannot_be_imported_is_one_line(tmp_path, monkeypatch):
    """An AttributeError of its own was taken for a function that it lacks, and raised again."""
    (tmp_path / "raises_here.py").write_text("import math\nmath.no_such\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"^cannot import raises_here: AttributeError: module 'math' has no"):
        conformance.load("raises_here:f")


def test_the_kit_needs_only_the_core():
    program = "import sys, jaxformer.conformance as c; assert c.check; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"pytest", "torch", "flax", "optax", "matplotlib"} & set(done.stdout.split())
