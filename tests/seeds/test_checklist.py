"""The checklist and the tests that cite it name the same items."""

import ast
import functools
import pathlib
import re

TESTS = pathlib.Path(__file__).parents[1]
PAGE = (TESTS / "seeds" / "CHECKLIST.md").read_text(encoding="utf-8")
LISTED = re.findall(r"^- ([A-Z]\d+): \S", PAGE, re.MULTILINE)

# Names of models that look like items: `test_t5_bias` is about T5.
MODELS = {"T5"}


@functools.cache
def trees():
    return [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(TESTS.rglob("test_*.py"))]


@functools.cache
def functions():
    return [node for tree in trees() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def in_name(name: str) -> set[str]:
    """The items that open the name of a test: ``test_b2_b9_x8_equations`` cites B2, B9 and X8."""
    match = re.match(r"test_((?:[a-z]\d+_)+)", name)
    return {item.upper() for item in match[1].split("_") if item} - MODELS if match else set()


def test_items_are_read_off_names():
    assert in_name("test_b2_b9_x8_equations") == {"B2", "B9", "X8"}
    assert in_name("test_a_empty_query_rows") == in_name("test_t5_bias") == set()


def test_items_are_listed_once():
    assert len(LISTED) == len(set(LISTED)) > 100
    assert len(LISTED) == len(re.findall(r"^- ", PAGE, re.MULTILINE))


def test_cited_items_are_listed():
    cited = set().union(*(in_name(function.name) for function in functions()))
    assert cited - set(LISTED) == set()


def test_listed_items_are_cited():
    cited = set().union(*(in_name(function.name) for function in functions()))
    for node in (*trees(), *functions()):
        cited |= set(re.findall(r"\b[A-Z]\d{1,2}\b", ast.get_docstring(node) or ""))
    assert set(LISTED) - cited == set()
