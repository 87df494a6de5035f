"""The site: the reference has every public name, its links are checked, and the README stays short."""

import importlib
import importlib.util
import inspect
import pathlib
import pkgutil
import re

import jaxformer

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "api").glob("*.rst"))]
LISTED = [
    (package, name)
    for page in PAGES
    for package, names in re.findall(r"^\.\. names:: ([\w.]+)\n\n((?:   .*\n)+)", page, re.MULTILINE)
    for name in names.split()
]
"""The names whose entries the pages ask for."""
LISTED_MODULES = {package for page in PAGES for package in re.findall(r"^\.\. modules:: ([\w.]+)$", page, re.MULTILINE)}
"""The packages whose modules have entries."""


def packages():
    """Yields the packages that say what is public."""
    yield jaxformer
    for found in pkgutil.walk_packages(jaxformer.__path__, "jaxformer."):
        if found.ispkg:
            package = importlib.import_module(found.name)
            if hasattr(package, "__all__"):
                yield package


def has_entry(package: str, name: str, value: object) -> bool:
    """Returns whether the reference has a name: itself, as a module of its package, or as the same object elsewhere."""
    if (package, name) in LISTED:
        return True
    if inspect.ismodule(value):
        return package in LISTED_MODULES or hasattr(value, "__all__")
    return package == "jaxformer" and ("jaxformer.modules", name) in LISTED


def test_every_public_name_has_an_entry():
    missing = [
        f"{package.__name__}.{name}"
        for package in packages()
        for name in package.__all__
        if not has_entry(package.__name__, name, getattr(package, name))
    ]
    assert not missing


def test_every_entry_exists_and_has_one_place():
    assert [name for name in LISTED if LISTED.count(name) > 1] == []
    assert [(package, name) for package, name in LISTED if not hasattr(importlib.import_module(package), name)] == []


def test_the_contents_name_pages_that_exist():
    text = (ROOT / "docs" / "contents.md").read_text(encoding="utf-8")
    named = re.findall(r"^(?:docs|examples|launch|benchmarks|CON|CHANGE)[\w/]*$", text, re.MULTILINE)
    assert len(named) > 15
    assert [name for name in named if not list(ROOT.glob(f"{name}.*"))] == []


def test_links_that_lead_nowhere_are_found(tmp_path):
    path = ROOT / "docs" / "check_links.py"
    spec = importlib.util.spec_from_file_location("check_links", path)
    checker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(checker)
    (tmp_path / "b.html").write_text('<p id="here"><a href="https://example.org/none"></a><a href="#here"></a></p>')
    links = ["b.html", "b.html#here", "b.html#there", "c.html", "#top"]
    (tmp_path / "a.html").write_text("".join(f'<a href="{link}"></a>' for link in links))
    assert checker.broken_links(tmp_path) == ["a.html: b.html#there", "a.html: c.html", "a.html: #top"]


def test_the_readme_is_short_and_has_one_placeholder_for_the_address():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count("\n") <= 220
    assert len(re.findall(r"git clone (\S+)", text)) == 1
    assert "git clone REPOSITORY " in text
