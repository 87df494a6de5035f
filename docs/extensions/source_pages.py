"""Pages of the files of the repository: names of the reference lead to their source, links of pages to what they name.

A link to a folder leads to its README, or to a list of its files. Other files than programs are copied as they are.
"""

import functools
import importlib
import inspect
import os
import pathlib
import shutil
from urllib.parse import quote

from docutils import nodes
from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.transforms import SphinxTransform
from sphinx.util.osutil import relative_uri

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = "source"
PROGRAMS = {".py", ".sh", ".sbatch", ".yaml", ".toml", ".cff", ""}


def page_of(env, path: pathlib.Path) -> str:
    """Returns the address, from the top of the site, of the page of a file or folder, which will be made."""
    name = path.relative_to(ROOT).as_posix()
    if (path / "README.md").exists():
        return f"{name}/README.html"
    env.repository_files.setdefault(env.docname, set()).add(name)
    return f"{FOLDER}/{name}.html" if path.is_dir() or path.suffix in PROGRAMS else f"{FOLDER}/{name}"


def address(env, page: str) -> str:
    """Returns the relative address of a page, from the page that is read."""
    return relative_uri(f"{env.docname}.html", page)


class FileLinks(SphinxTransform):
    """Turns the links to files and folders that are no pages of the site into links to their source."""

    default_priority = 100

    def apply(self, **_) -> None:
        here = (ROOT / self.env.docname).parent
        links = addnodes.pending_xref | addnodes.download_reference
        for node in list(self.document.findall(lambda node: isinstance(node, links))):
            if isinstance(node, addnodes.pending_xref) and node.get("reftype") != "myst":
                continue
            path = pathlib.Path(os.path.normpath(here / node["reftarget"]))
            if path.exists() and path != ROOT and path.suffix != ".md":
                link = nodes.reference("", "", refuri=address(self.env, page_of(self.env, path)), internal=True)
                link += node.children
                node.replace_self(link)


def source_of(module: str, name: str) -> tuple[pathlib.Path, int] | None:
    """Returns the file and the line of an object, or None for data."""
    try:
        value = functools.reduce(getattr, filter(None, name.split(".")), importlib.import_module(module))
        value = inspect.unwrap(value.fget if isinstance(value, property) else value)
        path = pathlib.Path(inspect.getsourcefile(value) or "")
        line = 1 if inspect.ismodule(value) else inspect.getsourcelines(value)[1]
    except (AttributeError, TypeError, OSError, ImportError):
        return None
    return (path, line) if path.is_relative_to(ROOT / "jaxformer") else None


def link_sources(app, doctree) -> None:
    """Adds a link to its source to each signature of the reference."""
    for node in doctree.findall(addnodes.desc_signature):
        found = source_of(node["module"], node["fullname"]) if node.get("module") else None
        if found:
            page = f"{page_of(app.env, found[0])}#line-{found[1]}"
            link = nodes.reference("", "", refuri=address(app.env, page), internal=True, classes=["source-link"])
            link += nodes.inline("", "source")
            node += link


PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name} - jaxformer</title>
<link rel="stylesheet" href="{top}_static/pygments.css">
<link rel="stylesheet" href="{top}_static/styles/furo.css">
<link rel="stylesheet" href="{top}_static/site.css">
<body class="source-page">
<p><a href="{top}README.html">jaxformer</a></p>
<h1>{name}</h1>
{body}
"""
"""A page without the navigation of the theme, which takes a third of a second for each of hundreds of files."""


def make_pages(app) -> list[tuple[str, dict[str, object], str]]:
    """Writes the pages of programs and folders, and copies other files; Sphinx has none of them to write."""
    for name in sorted(set().union(*app.env.repository_files.values())):
        path = ROOT / name
        if path.is_dir():
            members = sorted(member.name for member in path.iterdir() if member.is_file())
            for member in members:
                copy(app, f"{name}/{member}")
            lines = "".join(f'<li><a href="{path.name}/{quote(member)}">{member}</a></li>' for member in members)
            write(app, name, f"<ul>{lines}</ul>")
        elif path.suffix in PROGRAMS:
            write(app, name, highlighted(app, path))
        else:
            copy(app, name)
    return []


def write(app, name: str, body: str) -> None:
    page = pathlib.Path(app.outdir, FOLDER, f"{name}.html")
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(PAGE.format(name=name, top="../" * (name.count("/") + 1), body=body), encoding="utf-8")


def highlighted(app, path: pathlib.Path) -> str:
    text = path.read_text(encoding="utf-8")
    try:
        language = get_lexer_for_filename(path.name).aliases[0]
    except ClassNotFound:
        language = "text"
    return app.builder.highlighter.highlight_block(text, language, linenos="inline", lineanchors="line", linespans="")


def copy(app, name: str) -> None:
    target = pathlib.Path(app.outdir) / FOLDER / name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / name, target)


def begin(app) -> None:
    app.env.repository_files = getattr(app.env, "repository_files", {})


def forget(app, env, docname: str) -> None:
    env.repository_files.pop(docname, None)


def setup(app) -> dict[str, bool]:
    app.add_transform(FileLinks)
    app.connect("builder-inited", begin)
    app.connect("env-purge-doc", forget)
    app.connect("doctree-read", link_sources)
    app.connect("html-collect-pages", make_pages)
    return {"parallel_read_safe": False}
