"""Settings of the site that `make docs` builds; its source folder is the root of the repository, whose pages it has."""

import inspect
import os
import pathlib
import re
import sys

from sphinx.util.inspect import stringify_signature

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE / "extensions")]
# Notebooks and docstrings run on the CPU, also where there is an accelerator.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])  # experiments

import jaxformer  # noqa: E402

project = "jaxformer"
author = "The jaxformer authors"
project_copyright = author
release = version = jaxformer.__version__
language = "en"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "formulas",
    "names",
    "source_pages",
]

root_doc = "README"
include_patterns = [
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md"),
    *("docs/**.md", "docs/**.rst"),
    *(f"{folder}/**.md" for folder in ("examples", "launch", "experiments", "benchmarks")),
]
exclude_patterns = [
    *(".*", "build", "dist", "runs", "data", "jaxformer", "tests", "**/jupyter_execute", "**/.jupyter_cache"),
    *("docs/contents.md", "experiments/*/results"),
]

html_theme = "furo"
html_title = "jaxformer"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_additional_pages = {"index": "index.html"}
templates_path = ["templates"]
html_show_sphinx = False
html_copy_source = False
html_math_renderer = "mathml"
pygments_style = "friendly"
pygments_dark_style = "native"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_dmath_allow_digits = False  # "$1 per hour" is money
myst_dmath_allow_space = False
myst_heading_anchors = 4

nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / ".cache" / "docs" / "notebooks")
nb_execution_raise_on_error = True
nb_execution_timeout = 900  # seconds for a cell
nb_merge_streams = True

default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autoclass_content = "class"
napoleon_numpy_docstring = False
napoleon_use_rtype = False
maximum_signature_line_length = 88
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"


def add_contents(app, docname: str, source: list[str]) -> None:
    """Appends the table of contents of the site to the README, which shows none on its own; without empty folders."""
    if docname == root_doc:
        lines = (HERE / "contents.md").read_text(encoding="utf-8").splitlines(keepends=True)
        source[0] += "".join(line for line in lines if "*" not in line or any(ROOT.glob(line.strip())))


def escape_patterns(app, what, name, obj, options, lines: list[str]) -> None:
    """Escapes the asterisk of patterns such as "encoder/*", which would begin an emphasis."""
    lines[:] = [re.sub(r'("[^"`*]*/)\*"', r'\1\\*"', line) for line in lines]


def signature_as_written(app, what: str, name: str, obj, options, signature: str, returns: str):
    """Returns a signature with the types of the source, so that arrays have shapes; of a class, of its `__init__`."""
    function = obj.__init__ if inspect.isclass(obj) else obj
    if what not in ("class", "function", "method") or not inspect.isfunction(inspect.unwrap(function)):
        return None
    written = inspect.signature(function)
    parameters = [each for each in written.parameters.values() if each.name not in ("self", "cls")]
    if inspect.isclass(obj):
        written = written.replace(return_annotation=inspect.Signature.empty)
    text = stringify_signature(written.replace(parameters=parameters), unqualified_typehints=True)
    text = re.sub(r"<function (\w+)>", r"\1", text)
    arguments, arrow, result = text.rpartition(" -> ")
    return (arguments, result) if arrow else (text, None)


def setup(app) -> None:
    app.connect("autodoc-process-signature", signature_as_written)
    app.connect("autodoc-process-docstring", escape_patterns)
    app.connect("source-read", add_contents)
