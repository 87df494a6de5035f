"""Checks of prose: the openings of docstrings, and phrases that no sentence needs; `typos` finds misspellings."""

import ast
import itertools
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FOLDERS = ("jaxformer", "launch", "benchmarks", "experiments", "examples", "docs")
SUFFIXES = {".py", ".md", ".sh", ".yaml", ".txt", ".sbatch", ""}
FILES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"] + [
    path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*"))
    # The demo holds English and French sentences.
    if path.is_file() and path.suffix in SUFFIXES and not {"__pycache__", "results", "demo"} & set(path.parts)
]

# A docstring opens with a verb or a noun phrase, not with a question word, a conjunction or a bare preposition.
OPENINGS = set(
    "what where whether how which who whom whose why when if that from of for to by in on with without at as like "
    "beside so thus such".split()
)
# "Returns" is followed by a noun phrase.
QUESTIONS = set("what where whether how which who whom whose why when if".split())

# See "Style" in CONTRIBUTING.md.
RETIRED = (
    "anew, lest, hence, nobody, whoever, whomever, whichever, wherever, thereof, whereof, makes so that, is none, "
    "are none, of which, gone on with, goes on with, all that, such as are, such as is, can say, cannot say, "
    "without a word, so many, kinds of token, has each, no slip of, seldom"
).split(", ")


def phrase(text: str) -> str:
    """Returns the pattern of a phrase, which may run over the end of a line, also in a comment."""
    words = r"[\s#]+".join(text.split())
    return rf"(?<![A-Za-z_])[{words[0].upper()}{words[0]}]{words[1:]}(?![a-z_])"


NET = re.compile("|".join(map(phrase, RETIRED)))


def documented(tree: ast.Module) -> list[tuple[int, str]]:
    """Returns the line and text of all docstrings: of modules, classes, functions and, below them, of attributes."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
    pairs = [(getattr(node, "lineno", 1), ast.get_docstring(node)) for node in nodes]
    for node in nodes:
        for attribute, text in itertools.pairwise([] if isinstance(node, ast.FunctionDef) else node.body):
            if isinstance(attribute, ast.Assign | ast.AnnAssign) and isinstance(text, ast.Expr):
                value = text.value.value if isinstance(text.value, ast.Constant) else None
                pairs.append((text.lineno, value if isinstance(value, str) else None))
    return sorted((line, text) for line, text in pairs if text)


def badly_opened(source: str) -> list[str]:
    """Returns the docstrings that open with one of `OPENINGS`, as ``line: first words``."""
    found = []
    for line, text in documented(ast.parse(source)):
        words = re.match(r"[^A-Za-z0-9]*([A-Za-z'-]*) ?([A-Za-z'-]*)", text)
        assert words is not None
        if words[1].lower() in OPENINGS or (words[1] == "Returns" and words[2] in QUESTIONS):
            found.append(f"{line}: {' '.join(text.split()[:6])}")
    return found


def caught(source: str) -> list[str]:
    """Returns the retired phrases of a text, as ``line: phrase``."""
    return [f"{source.count(chr(10), 0, match.start()) + 1}: {match[0]!r}" for match in NET.finditer(source)]


def prose_of_tests(source: str) -> str:
    """Returns the names of the functions in a test file, as words, its docstrings and its comments."""
    pattern = r'def (\w+)|^ *"""((?:(?!""").)*)"""|(?<=# )([^\n]*)'
    found = re.findall(pattern, source, re.MULTILINE | re.DOTALL)
    return "\n".join(name.replace("_", " ") + docstring + comment for name, docstring, comment in found)


SOURCES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in FILES}


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('"""What a module does."""', ["1: What a module does."]),
        ('"""``In`` it."""\n\ndef f():\n    """For each row."""', ["1: ``In`` it.", "3: For each row."]),
        ('class A:\n    """A thing."""\n    def f(self):\n        """If it fits."""', ["3: If it fits."]),
        ('"""A module."""\nx = 1\n"""Where it is."""', ["3: Where it is."]),
        ('class A:\n    x: int = 1\n    """How many."""\n    y = "For"', ["3: How many."]),
        ('"""Returns whether it fits."""', ["1: Returns whether it fits."]),
        ('"""Returns a question: what it is."""\nx = 1\nf("for")', []),
        ('"""Form and whatnot: words that begin with one of the list."""', []),
    ],
)
def test_the_net_of_openings(source, lines):
    assert badly_opened(source) == lines


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Made anew, lest it fail; hence nobody and whoever", 5),
        ("there is none, of\n    # which it has gone on\nwith all that was", 4),
        ("a henchman, challenge, all those, x is None, none_of_which", 0),
        (prose_of_tests('def test_it_is_seldom():\n    """It has each."""\n    check("hence")  # lest it fail\n'), 3),
    ],
)
def test_the_net_of_phrases(text, count):
    assert len(caught(text)) == count


def test_make_lint_finds_misspellings(tmp_path):
    typos = pathlib.Path(sys.executable).with_name("typos")
    words = "recieve, colour, modelled, tokenisation, analysed, grey, Optimiser, artefact"
    (tmp_path / "a.md").write_text(f"{words}\nThe 55abd6f8 of Ba: arange, modeled, tokenizer, analyses, programmer")
    command = [typos, "--config", ROOT / "pyproject.toml", "--format", "brief", tmp_path / "a.md"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert re.findall(r"a.md:1:.*?`(\w+)` should", found.stdout) == words.split(", ")
    assert ":2:" not in found.stdout


def test_docstrings_open_with_a_verb_or_a_noun():
    offenders = {name: badly_opened(text) for name, text in SOURCES.items() if name.endswith(".py")}
    assert {name: lines for name, lines in offenders.items() if lines} == {}


def test_no_file_holds_retired_phrases():
    paths = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path != pathlib.Path(__file__)]
    prose = SOURCES | {path.name: prose_of_tests(path.read_text(encoding="utf-8")) for path in paths}
    offenders = {name: caught(text) for name, text in prose.items()}
    assert {name: lines for name, lines in offenders.items() if lines} == {}
