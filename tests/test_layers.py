"""Rules for the source, checked on its syntax trees without running it."""

import ast
import functools
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = sorted((ROOT / "jaxformer").rglob("*.py"))
FOLDERS = ("experiments", "examples", "benchmarks", "launch", "tests")
EVERYTHING = PACKAGE + [p for f in FOLDERS for p in sorted((ROOT / f).rglob("*.py"))]

HOME = {
    "sentencepiece": "tokenizers/subwords.py",
    "grain": "data/pipeline.py",
    "PIL": "data/images.py",
    "sacrebleu": "evaluation/scores.py",
    "sacremoses": "tokenizers/moses.py",
    "matplotlib": "inspection/plots.py",
    "orbax": "training/checkpoint.py",
    "tensorboardX": "training/logging.py",
    "tokenizers": "tokenizers/pretrained.py",
    "safetensors": "interop/tensors.py",
    "huggingface_hub": "interop/hub.py",
    "ctranslate2": "interop/ctranslate2.py",
    "wandb": "training/tracking.py",
    "mlflow": "training/tracking.py",
    "IPython": "training/progress.py",
    "torch": "conformance/torch_functions.py",
    "pytest": "conformance/plugin.py",
}
"""The one file that imports each optional dependency."""

FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
FORBIDDEN_CALLS = {"eval", "exec", "yaml.load", "os.system", "os.popen"}


@functools.cache
def imported(tree: ast.AST) -> set[str]:
    """Returns the top-level names of all modules that a file imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.partition(".")[0])
    return found


def dotted(node: ast.AST) -> str:
    """Returns a name such as `os.system`; what is not a name is empty. `ast.unparse` would take ten seconds in all."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def offenses(tree: ast.AST) -> list[str]:
    """Returns the constructs that run or load unreviewed code."""
    found = sorted(imported(tree) & FORBIDDEN_MODULES)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if (called := dotted(node.func)) in FORBIDDEN_CALLS:
                found.append(called)
            for keyword in node.keywords:
                if keyword.arg in ("shell", "allow_pickle") and not _false(keyword.value):
                    found.append(f"{keyword.arg}=")
        if isinstance(node, ast.ExceptHandler) and all(isinstance(line, ast.Pass) for line in node.body):
            found.append("except: pass")
    return found


def _false(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


@functools.cache
def parse(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def name(path: pathlib.Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize(
    ("text", "offense"),
    [
        ("import pickle", "pickle"),
        ("from dill.x import y", "dill"),
        ("eval('1')", "eval"),
        ("import os\nos.system('ls')", "os.system"),
        ("yaml.load(f)", "yaml.load"),
        ("run(x, shell=True)", "shell="),
        ("np.load(f, allow_pickle=flag)", "allow_pickle="),
        ("try:\n  f()\nexcept OSError:\n  pass", "except: pass"),
        ("re.compile('x'); yaml.safe_load(f); run(x, shell=False)", None),
    ],
)
def test_offenses_are_found(text, offense):
    assert offenses(ast.parse(text)) == ([offense] if offense else [])


def test_nothing_runs_or_loads_unreviewed_code():
    found = {name(path): offenses(parse(path)) for path in EVERYTHING}
    assert {path: constructs for path, constructs in found.items() if constructs} == {}


def test_an_optional_dependency_enters_through_one_file():
    found = {module: [path for path in PACKAGE if module in imported(parse(path))] for module in [*HOME, "tensorflow"]}
    entries = {module: [path.relative_to(ROOT / "jaxformer").as_posix() for path in found[module]] for module in found}
    assert entries == {module: [home] for module, home in HOME.items()} | {"tensorflow": []}


def late_imports(tree: ast.AST) -> set[str]:
    """Returns the top-level names of the modules that functions import."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return set().union(*map(imported, functions))


@pytest.mark.parametrize(
    ("text", "modules"),
    [
        ("import a\nfrom b import c", set()),
        ("def f():\n  import a.b\n  def g():\n    from c.d import e", {"a", "c"}),
        ("class A:\n  async def f(self):\n    import a", {"a"}),
    ],
)
def test_late_imports_are_found(text, modules):
    assert late_imports(ast.parse(text)) == modules


def test_functions_import_only_optional_dependencies():
    # A command imports what it uses when it runs, so that `jaxformer --help` and wrong arguments are answered at once.
    library = [path for path in PACKAGE if "cli" not in path.relative_to(ROOT / "jaxformer").parts]
    found = {name(path): late_imports(parse(path)) - set(HOME) for path in library}
    assert {path: modules for path, modules in found.items() if modules} == {}


def test_one_file_renames_temporary_files():
    # `jaxformer.files` writes whole or not at all for all others; training renames damaged checkpoints, and files of
    # weights, in a folder that is not complete, are named when their number is known.
    calls = {
        name(path): {dotted(node.func) for node in ast.walk(parse(path)) if isinstance(node, ast.Call)}
        for path in PACKAGE
    }
    renames = {
        path: {f for f in functions if f.endswith(("os.replace", ".rename"))} for path, functions in calls.items()
    }
    allowed = {"jaxformer/files.py", "jaxformer/training/checkpoint.py", "jaxformer/interop/tensors.py"}
    assert {path for path, functions in renames.items() if functions} == allowed


LONG = 400
"""The lines of a file that are advice; a file of up to a tenth more need not be cut or squeezed."""


def test_files_are_short():
    lengths = {name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in EVERYTHING}
    assert {path: length for path, length in lengths.items() if length > 1.1 * LONG} == {}


def code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Returns the number of lines of a function without its docstring."""
    text = node.body[0].end_lineno - node.body[0].lineno + 1 if ast.get_docstring(node) else 0
    return node.end_lineno - node.lineno + 1 - text


def test_functions_are_short():
    lengths = {
        f"{name(path)}:{node.name}": code_lines(node)
        for path in PACKAGE
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {function: length for function, length in lengths.items() if length > 60} == {}


def test_no_reminders_are_left():
    marks = ("TO" + "DO", "FIX" + "ME", "X" + "XX")
    found = [name(path) for path in EVERYTHING if any(mark in path.read_text(encoding="utf-8") for mark in marks)]
    assert found == []


def test_public_functions_and_classes_have_docstrings():
    undocumented = []
    for path in PACKAGE:
        for node in parse(path).body:
            public = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
            overload = public and any(ast.unparse(mark) == "overload" for mark in node.decorator_list)
            if public and not overload and not ast.get_docstring(node):
                undocumented.append(f"{name(path)}:{node.name}")
    assert undocumented == []


def other_tests(tree: ast.AST) -> list[str]:
    """Returns the imports of other test modules, and the calls of test functions, in a file of tests."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("tests")):
            modules = [node.module or "", *(alias.name for alias in node.names)]
            found += [f"import {x}" for x in modules if x.rpartition(".")[2].startswith("test_")]
        elif isinstance(node, ast.Import):
            found += [f"import {x.name}" for x in node.names if x.name.rpartition(".")[2].startswith("test_")]
        elif isinstance(node, ast.Call):
            if not dotted(node.func).rpartition(".")[2].startswith("test_"):
                continue
            if not (function := ast.unparse(node.func)).startswith("super()."):
                found.append(f"{function}()")
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from tests.seeds.test_masks import attend", ["import tests.seeds.test_masks"]),
        ("from tests.seeds import test_masks", ["import test_masks"]),
        ("import tests.seeds.test_masks", ["import tests.seeds.test_masks"]),
        ("def test_a():\n  test_b(1)", ["test_b()"]),
        ("contract.test_empty_rows(x)", ["contract.test_empty_rows()"]),
        # A contract's subclass may narrow the parameters of an inherited test.
        ("super().test_empty_rows(x)\nfrom tests.modules.small import normal", []),
        ("from jax.test_util import check_grads", []),
    ],
)
def test_other_tests_are_found(text, expected):
    assert other_tests(ast.parse(text)) == expected


def test_tests_call_no_tests():
    found = {name(path): other_tests(parse(path)) for path in sorted((ROOT / "tests").rglob("*.py"))}
    assert {path: uses for path, uses in found.items() if uses} == {}


OF_NO_ONE_MODULE = {"contracts", "browser", "seeds", "parity", "faults", "launch", "experiments", "benchmarks"}
"""Folders of tests whose files are about no single module."""


def test_tests_mirror_the_package():
    """`jaxformer/a/b.py` is tested in `tests/a/test_b.py`, at least nine modules of ten; no other files are there."""
    modules = {path.relative_to(ROOT / "jaxformer") for path in PACKAGE if path.name != "__init__.py"}
    files = {path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    tested = {path.with_name(path.name.removeprefix("test_")) for path in files}
    assert len(modules & tested) >= 0.9 * len(modules), sorted(map(str, modules - tested))
    mirroring = {path for path in tested if len(path.parts) > 1 and path.parts[0] not in OF_NO_ONE_MODULE}
    assert mirroring - modules == set()


@pytest.mark.parametrize("file", [".ci/run", "Makefile", "CONTRIBUTING.md"])
def test_named_tests_exist(file):
    """pytest refuses a path that does not exist, but only when that line runs."""
    named = set(re.findall(r"\btests/[\w/.]*\w", (ROOT / file).read_text(encoding="utf-8")))
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def loaded_after(statement: str) -> set[str]:
    """Returns the top-level modules of a fresh process after a statement."""
    program = f"{statement}\nimport sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    return set(done.stdout.split())


@pytest.mark.parametrize("statement", ["import jaxformer", "import jaxformer.config", "import jaxformer.cli.main"])
def test_importing_the_surface_loads_nothing_heavy(statement):
    assert loaded_after(statement) & {"jax", "flax", "numpy", "rich", *HOME} == set()


def test_the_light_core_needs_no_extra():
    # flax itself brings orbax, and IPython where it is installed; our own files must import no extra.
    loaded = loaded_after("from jaxformer import functional, masks, modules, models, pure")
    assert loaded & (set(HOME) - {"orbax", "IPython"}) == set()


CORE_ALONE = """
import sys
sys.modules.update(dict.fromkeys(EXTRAS))  # importing any of them is an ImportError
import jax, jax.numpy as jnp, optax
from jaxformer import decoding, functional, models, pure, sharding, training

net = pure(models.LanguageModel, models.LanguageModelConfig(8, d_model=8, num_heads=2, d_ff=8, num_layers=1))
batch = {"tokens": functional.Tokens(jnp.ones((2, 3), int)), "labels": jnp.ones((2, 3), int)}
optimizer = training.make_optimizer(training.AdamConfig(), steps=2)
placement = sharding.Placement(sharding.mesh("data=1", jax.devices()[:1]))
state, shardings = training.create_sharded(net, optimizer, jax.random.key(0), placement=placement)
loss = lambda params, batch, key: (*net.bind(params).loss(batch["tokens"], labels=batch["labels"]), {})
step = training.make_step(placement.with_axis_rules(loss), optimizer, shardings=shardings)
state, metrics = step(state, placement.assemble(batch))
model = net.bind(state.params)
context, start = model.start(batch_size=1, beam_size=2, length=3)
advance = lambda tokens, state: model.step(tokens, state, context)
decoding.beam_search(advance, start, decoding.Limits(max_length=3, bos=1, eos=2), beam_size=2)
print(int(state.step), bool(jnp.isfinite(metrics["loss_sum"])))
"""


@pytest.mark.full
def test_the_core_installation_trains_and_searches():
    """As in the README: without any extra, a model is created, trained for a step and searched."""
    extras = sorted(set(HOME) - {"orbax"})  # flax itself brings orbax
    program = f"EXTRAS = {extras}{CORE_ALONE}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert done.stdout.split() == ["1", "True"], done.stderr
