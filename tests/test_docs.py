"""The examples in docstrings and in the README run, and every public function has one."""

import doctest
import importlib
import inspect
import os
import pathlib
import re
import subprocess
import sys

import jax
import pytest

import jaxformer
from jaxformer import functional, masks

ROOT = pathlib.Path(jaxformer.__file__).parent
FOLDERS = ("docs", "examples", "launch", "experiments", "benchmarks")
PAGES = [*ROOT.parent.glob("*.md"), *(path for name in FOLDERS for path in (ROOT.parent / name).rglob("*.md"))]
WITH_EXAMPLES = [path for path in sorted(ROOT.rglob("*.py")) if ">>>" in path.read_text(encoding="utf-8")]


def examples(module):
    """Returns the doctests of a module and its members; `doctest` alone overlooks functions that check their shapes."""
    found = doctest.DocTestFinder(recurse=False).find(module, module.__name__)
    for name, value in list(vars(module).items()):
        if getattr(value, "__module__", None) == module.__name__ and not name.startswith("__"):
            found += doctest.DocTestFinder().find(value, f"{module.__name__}.{name}", module=False, globs=vars(module))
    own = [test for test in found if test.examples and not test.name.endswith(".__repr__")]  # `brief`, of `reprs`
    return list({test.docstring: test for test in own}.values())  # a function that a class also holds, once


@pytest.mark.full
@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_examples_run(path):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
    tests = examples(module)
    runner = doctest.DocTestRunner()
    for test in tests:
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0
    assert sum(len(test.examples) for test in tests) == path.read_text(encoding="utf-8").count(">>> ")


PAGES_THAT_RUN = {
    "README.md": 1,
    "docs/models.md": 3,
    "docs/search.md": 2,
    "docs/derivatives.md": 1,
    "docs/conformance.md": 1,
    "docs/plan.md": 1,
}
"""The pages whose Python blocks run one after another, and the number of their blocks."""
BLOCKS_ELSEWHERE = {
    "docs/extend.md": "each block is a file, which tests/test_extend.py runs",
    "docs/families.md": "they need a pretrained model; tests/interop makes small ones for the same calls",
}
"""The other pages with Python blocks, with the reason."""


def test_every_python_block_is_run_or_is_listed_with_a_reason():
    """The blocks named `py`: the README's, which tests/tasks/test_runner.py runs, and two that need a trained run."""
    sources = {path.relative_to(ROOT.parent).as_posix(): path.read_text(encoding="utf-8") for path in PAGES}
    found = {name: text.count("```python\n") for name, text in sources.items() if "```python\n" in text}
    assert found.keys() == PAGES_THAT_RUN.keys() | BLOCKS_ELSEWHERE.keys()
    assert {name: found[name] for name in PAGES_THAT_RUN} == PAGES_THAT_RUN
    others = {name for name, text in sources.items() if "```py\n" in text}
    assert others == {"README.md", "docs/models.md", "docs/runs.md"}


KINDS_OF_BLOCKS = {
    "{code-cell}": "the build of the site runs them, as notebooks",
    "python": "see PAGES_THAT_RUN and BLOCKS_ELSEWHERE",
    "py": "see the test above",
    "sh": "tests/test_documented_commands.py parses each command; most need files or hours",
    "text": "diagrams and outputs",
    "{toctree}": "the contents of the site",
}
"""The languages of fenced blocks, with what runs them, or the reason why nothing does."""


def test_every_block_is_of_a_kind_that_is_run_or_has_a_reason():
    sources = {path.relative_to(ROOT.parent).as_posix(): path.read_text(encoding="utf-8") for path in PAGES}
    kinds = {
        (name, kind): text
        for name, text in sources.items()
        for kind, _ in re.findall(r"^ *```([^\n]*)\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    }
    assert {place for place in kinds if place[1] not in KINDS_OF_BLOCKS} == set()
    # Without these lines, a page is no notebook, and its cells would be shown but not run.
    notebooks = {name: text for (name, kind), text in kinds.items() if kind == "{code-cell}"}
    assert len(notebooks) > 3
    assert {name for name, text in notebooks.items() if not text.startswith("---\nfile_format: mystnb\n")} == set()


@pytest.mark.full
@pytest.mark.parametrize("page", PAGES_THAT_RUN)
def test_the_examples_of_a_page_run(page):
    """The Python blocks run one after another in a fresh process, as for a user who pastes them."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT.parent / page).read_text(encoding="utf-8"), re.DOTALL)
    names = ("compilation_cache_dir", "persistent_cache_min_compile_time_secs", "persistent_cache_min_entry_size_bytes")
    caches = {f"JAX_{name.upper()}": str(getattr(jax.config, f"jax_{name}")) for name in names}
    command = [sys.executable, "-c", "\n".join(blocks)]
    done = subprocess.run(command, env=os.environ | caches, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


def public(module):
    """Yields the functions and classes of a module, except the kinds of mask, which functions create."""
    for name, value in vars(module).items():
        ours = getattr(value, "__module__", "").startswith("jaxformer.") and not name.startswith("_")
        if ours and not (inspect.isclass(value) and issubclass(value, masks.Mask) and value is not masks.Mask):
            yield name, value


def test_every_public_function_has_an_example():
    missing = {
        name for module in (functional, masks) for name, value in public(module) if ">>> " not in (value.__doc__ or "")
    }
    assert not missing


def test_docstrings_name_the_errors():
    """A public function of `functional` that raises has a "Raises:" section."""
    undocumented = {
        name
        for name, value in public(functional)
        if inspect.isfunction(value)
        and "raise ValueError" in inspect.getsource(inspect.unwrap(value))
        and "Raises:" not in (value.__doc__ or "")
    }
    assert not undocumented
