"""Directives of the reference: the entries of public names, made from their docstrings.

    .. names:: jaxformer.masks

       causal padding

    .. modules:: jaxformer.data

The second one lists every module among the public names of a package, with what only the module has.
"""

import importlib
import inspect
import re
import sys

from docutils import nodes
from sphinx import addnodes
from sphinx.pycode import ModuleAnalyzer
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective

OPTIONS = {
    "class": ["   :members:", "   :special-members: __call__", "   :show-inheritance:"],
    "exception": ["   :show-inheritance:"],
}


def kind_of(value: object) -> str:
    """Returns the kind of an object, as in the names of the directives of autodoc."""
    if inspect.ismodule(value):
        return "module"
    if inspect.isclass(value):
        return "exception" if issubclass(value, BaseException) else "class"
    return "function" if inspect.isroutine(value) else "data"


def docstring_of_data(package: str, name: str) -> str:
    """Returns the docstring of an alias or a constant, from the file that sets it."""
    for module in (package, *sorted(module for module in sys.modules if module.startswith(f"{package}."))):
        analyzer = ModuleAnalyzer.for_module(module)
        analyzer.analyze()
        if ("", name) in analyzer.attr_docs:
            return "\n".join(analyzer.attr_docs["", name]).strip()
    value = getattr(sys.modules[package], name)
    if type(value).__module__.startswith("jaxformer."):
        return f"A `{type(value).__name__}`."
    raise LookupError(f"{package}.{name} has no docstring")


def entry(package: str, name: str) -> list[str]:
    """Returns the lines of the entry of a name."""
    value = getattr(importlib.import_module(package), name)
    kind = kind_of(value)
    if kind == "module":
        return module_entry(value, [])
    if kind == "data":
        text = docstring_of_data(package, name)
        return [f".. py:data:: {package}.{name}", "", *(f"   {line}" for line in text.splitlines()), ""]
    return [f".. auto{kind}:: {package}.{name}", *OPTIONS.get(kind, []), ""]


def module_entry(module, elsewhere: list[str]) -> list[str]:
    """Returns the lines of the entry of a module; names that its package has are there."""
    excluded = [f"   :exclude-members: {', '.join(elsewhere)}"] if elsewhere else []
    return [f".. automodule:: {module.__name__}", "   :members:", *excluded, ""]


class Names(SphinxDirective):
    """The entries of some names of a package."""

    required_arguments = 1
    has_content = True

    def run(self):
        package = self.arguments[0]
        lines = [line for name in " ".join(self.content).split() for line in entry(package, name)]
        return self.parse_text_to_nodes("\n".join(lines))


class Modules(SphinxDirective):
    """The entries of the modules among the public names of a package."""

    required_arguments = 1

    def run(self):
        package = importlib.import_module(self.arguments[0])
        lines = []
        for name in sorted(package.__all__):
            value = getattr(package, name)
            if inspect.ismodule(value) and not hasattr(value, "__all__"):  # a package has a place of its own
                lines += [f".. rubric:: {value.__name__.removeprefix('jaxformer.')}", "   :class: module-name", ""]
                lines += module_entry(value, [name for name in package.__all__ if hasattr(value, name)])
        return self.parse_text_to_nodes("\n".join(lines))


PACKAGES = [
    "functional",
    "masks",
    "modules",
    "models",
    "decoding",
    "training",
    "sharding",
    "tasks",
    "data",
    "tokenizers",
]
NAME = re.compile(r"(?:F|[a-z]+)(?:\.\w+)+(?:\(\))?")


class Links(SphinxPostTransform):
    """Finds the entries that names in docstrings, types and inline code refer to; Sphinx's own search is a guess."""

    default_priority = 5

    def run(self, **_) -> None:
        for node in list(self.document.findall(addnodes.pending_xref)):
            if node.get("refdomain") == "py":
                known = self.known(node["reftarget"], node.get("py:module"), node.get("py:class"))
                if known:
                    node["reftarget"], node["refspecific"] = known, False
                elif node["reftype"] in ("obj", "class", "data"):
                    is_short = lambda child: isinstance(child, nodes.Element) and child.get("condition") == "resolved"
                    node.replace_self(next(filter(is_short, node.children), node).children)
        if not self.env.docname.startswith("docs/api"):
            for node in list(self.document.findall(nodes.literal)):
                linked = isinstance(node.parent, nodes.reference | addnodes.pending_xref)
                if NAME.fullmatch(node.astext()) and not linked:
                    self.link(node)

    def known(self, name: str, module: str | None, owner: str | None) -> str | None:
        """Returns the full name of an entry, from a name as a docstring or a page writes it."""
        name = re.sub(r"^F\.", "functional.", name.removesuffix("()").lstrip(".~"))
        parents = [module.rsplit(".", n)[0] for n in range(module.count(".") + 1)] if module else []
        packages = [f"jaxformer.{package}" for package in PACKAGES] if module else []
        scopes = [*[f"{module}.{owner}"] * bool(owner), *parents, "jaxformer", *packages]
        known = self.env.get_domain("py").objects
        return next((full for full in (name, *(f"{scope}.{name}" for scope in scopes)) if full in known), None)

    def link(self, node: nodes.literal) -> None:
        """Makes inline code a link to the entry of the name that it is, if there is one."""
        known = self.known(node.astext(), None, None)
        if known and self.env.get_domain("py").objects[known].objtype != "module":
            target = {"refdomain": "py", "reftype": "obj", "reftarget": known, "refdoc": self.env.docname}
            link = addnodes.pending_xref("", refspecific=False, **target)
            node.replace_self(link)
            link += node


def setup(app) -> dict[str, bool]:
    app.add_directive("names", Names)
    app.add_post_transform(Links)
    app.add_directive("modules", Modules)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
