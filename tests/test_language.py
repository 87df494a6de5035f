"""Checks of prose and names: the openings of docstrings, and words and names that were retired."""

import ast
import io
import itertools
import pathlib
import re
import subprocess
import sys
import tokenize

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FOLDERS = ("jaxformer", "launch", "benchmarks", "experiments", "examples", "docs")
SUFFIXES = {".py", ".md", ".sh", ".yaml", ".txt", ".sbatch", ""}
FILES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"] + [
    path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*"))
    if path.is_file() and path.suffix in SUFFIXES and not {"__pycache__", "results"} & set(path.parts)
]
# Tables of English and French words, and functions whose docstrings quote the sentences that they make.
CORPUS = "jaxformer/demo/"

# A docstring opens with a verb or a noun phrase, not with a question word, a conjunction or a bare preposition.
OPENINGS = set(
    "what where whether how which who whom whose why when if that from of for to by in on with without at as like "
    "beside so thus such".split()
)
# "Returns" is followed by a noun phrase.
QUESTIONS = set("what where whether how which who whom whose why when if".split())

# Words and phrases that no sentence here needs; see "Style" in CONTRIBUTING.md.
RETIRED_WORDS = [
    *(
        "anew",
        "lest",
        "hence",
        "nobody",
        "whoever",
        "whomever",
        "whichever",
        "wherever",
        "thereof",
        "whereof",
        "makes so that",
    ),
    *("is none", "are none", "of which", "gone on with", "goes on with", "all that", "such as are", "such as is"),
    *("can say", "cannot say", "without a word", "so many", "kinds of token", "has each", "no slip of", "seldom"),
]

# Names that have been replaced by those of the field: num_encoder_layers, tokens_per_batch, n_best and so on.
RETIRED_NAMES = [
    *("encoder_depth", "decoder_depth", "token_budget", "num_best", "num_variants", "variant[_-]alpha", "make_plan"),
    *(
        "normali[sz]e_heads",
        "hidden_dropout(?!_prob)",  # Hugging Face has a setting of this name
        "num_key_heads",
        r"arrange=(?!=)",
        r"hidden=(?!=)",
        "tokeniser",
        "optimiser",
    ),
    *("make_trainer", "validation_figures", "expert_balance", r"train\.accumulate", r"accumulate=(?!=)"),
    *(r"no[_-]repeat(?![_-]ngram)", "mean_share", "save_seconds", "least_vocab_size"),
]


def phrase(text: str) -> str:
    """Returns the pattern of a phrase, which may run over the end of a line, also in a comment."""
    words = r"[\s#]+".join(text.split())
    return rf"(?<![A-Za-z_])[{words[0].upper()}{words[0]}]{words[1:]}(?![a-z_])"


NETS = {
    "two spaces after a full stop": re.compile(r"[a-z0-9`)\"]\.  (?=[A-Z`])"),
    "retired words": re.compile("|".join(map(phrase, RETIRED_WORDS))),
    "retired names": re.compile(rf"(?<![A-Za-z])(?:{'|'.join(RETIRED_NAMES)})"),
}


def quotes_sentences(node: ast.AST) -> bool:
    """Returns True for functions that make sentences: they take a source of random numbers."""
    first = node.args.args[:1] if isinstance(node, ast.FunctionDef) else []
    return [ast.unparse(argument.annotation) for argument in first if argument.annotation] == ["random.Random"]


def documented(tree: ast.Module, *, corpus: bool) -> list[tuple[int, str]]:
    """Returns the line and text of all docstrings: of modules, classes, functions and, below them, of attributes."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
    read = [node for node in nodes if not (corpus and quotes_sentences(node))]
    pairs = [(getattr(node, "lineno", 1), ast.get_docstring(node)) for node in read]
    for node in read:
        for attribute, text in itertools.pairwise([] if isinstance(node, ast.FunctionDef) else node.body):
            if isinstance(attribute, ast.Assign | ast.AnnAssign) and isinstance(text, ast.Expr):
                value = text.value.value if isinstance(text.value, ast.Constant) else None
                pairs.append((text.lineno, value if isinstance(value, str) else None))
    return sorted((line, text) for line, text in pairs if text)


def badly_opened(source: str, *, corpus: bool = False) -> list[str]:
    """Returns the docstrings that open with one of `OPENINGS`, as ``line: first words``."""
    found = []
    for line, text in documented(ast.parse(source), corpus=corpus):
        words = re.match(r"[^A-Za-z0-9]*([A-Za-z'-]*) ?([A-Za-z'-]*)", text)
        assert words is not None
        if words[1].lower() in OPENINGS or (words[1] == "Returns" and words[2] in QUESTIONS):
            found.append(f"{line}: {' '.join(text.split()[:6])}")
    return found


def caught(net: str, source: str) -> list[str]:
    """Returns the matches of a net in a text, as ``line: match``."""
    matches = NETS[net].finditer(source)
    return [f"{source.count(chr(10), 0, match.start()) + 1}: {match[0]!r}" for match in matches]


def without_corpus(source: str) -> str:
    """Returns a Python source without its string literals, except docstrings that quote no sentences."""
    docstrings = set()
    for node in ast.walk(ast.parse(source)):
        body = node.body if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) else []
        if body and isinstance(body[0], ast.Expr) and not quotes_sentences(node):
            docstrings.add((body[0].lineno, body[0].col_offset))
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    characters = list(source)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.STRING and token.start not in docstrings:
            for at in range(starts[token.start[0] - 1] + token.start[1], starts[token.end[0] - 1] + token.end[1]):
                characters[at] = "\n" if source[at] == "\n" else " "
    return "".join(characters)


def prose_of_tests(source: str) -> str:
    """Returns the names of the functions in a test file, as words, its docstrings and its comments."""
    pattern = r'def (\w+)|^ *"""((?:(?!""").)*)"""|(?<=# )([^\n]*)'
    found = re.findall(pattern, source, re.MULTILINE | re.DOTALL)
    return "\n".join(name.replace("_", " ") + docstring + comment for name, docstring, comment in found)


SOURCES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in FILES}
PROSE = {name: without_corpus(text) if name.startswith(CORPUS) else text for name, text in SOURCES.items()}


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('"""What a module does."""', ["1: What a module does."]),
        ('"""A module."""\n\ndef f():\n    """For each row."""', ["3: For each row."]),
        ('"""``In`` it."""', ["1: ``In`` it."]),
        ('class A:\n    """A thing."""\n    def f(self):\n        """If it fits."""', ["3: If it fits."]),
        ('"""A module."""\n\ndef _f():\n    """As it is."""', ["3: As it is."]),
        ('"""A module."""\nx = 1\n"""Where it is."""', ["3: Where it is."]),
        ('class A:\n    x: int = 1\n    """How many."""\n    y = "For"', ["3: How many."]),
        ('"""Returns whether it fits."""', ["1: Returns whether it fits."]),
        ('"""Returns a question: what it is."""\nx = 1\nf("for")', []),
        ('"""Form and whatnot: words that begin with one of the list."""', []),
        ('"""In-place updates."""', []),
        ("x = 1", []),
    ],
)
def test_the_net_of_openings(source, lines):
    assert badly_opened(source) == lines


@pytest.mark.parametrize(
    ("net", "text", "count"),
    [
        ("two spaces after a full stop", "It ends.  It begins. It is at 1.  `x` too.", 2),
        ("two spaces after a full stop", "x = 1.  # one", 0),
        ("retired words", "Made anew, lest it fail; hence nobody and whoever", 5),
        ("retired words", "there is none, of\n    # which it has gone on\nwith all that was", 4),
        ("retired words", "It is seldom said, has each\n# a kind; no family can say so many", 4),
        ("retired words", "a henchman, challenge, all those, x is None, none_of_which", 0),
        ("retired names", "f(arrange=x), hidden=3, encoder_depth, token_budget, num_best, tokeniser", 6),
        ("retired names", "arrangement=x, d_ff=3, tokenizer, n_best, if hidden==3", 0),
    ],
)
def test_the_other_nets(net, text, count):
    assert len(caught(net, text)) == count


def test_sentences_of_the_corpus_are_ignored():
    source = '''"""Hence."""
x = f("hence", r"""
    hence""")
# hence
hence = x
def ask(pick: random.Random):
    """What is hence?"""
def f(word: str):
    """Who is hence?"""
'''
    left = without_corpus(source)
    assert left.count("\n") == source.count("\n")
    assert [line.split(":")[0] for line in caught("retired words", left)] == ["1", "4", "5", "9"]
    assert badly_opened(source, corpus=True) == ["8: Who is hence?"]
    assert badly_opened(source) == ["6: What is hence?", "8: Who is hence?"]


def test_the_prose_of_tests():
    source = 'def test_it_is_seldom_so():\n    """It has each."""\n    check("hence")  # lest it fail\n'
    assert [line.split(": ")[1] for line in caught("retired words", prose_of_tests(source))] == [
        "'seldom'",
        "'has each'",
        "'lest'",
    ]


def test_make_lint_finds_misspellings(tmp_path):
    typos = pathlib.Path(sys.executable).with_name("typos")
    words = "recieve, colour, modelled, tokenisation, analysed, grey, Optimiser, artefact"
    (tmp_path / "a.md").write_text(f"{words}\nThe 55abd6f8 of Ba: arange, modeled, tokenizer, analyses, programmer")
    command = [typos, "--config", ROOT / "pyproject.toml", "--format", "brief", tmp_path / "a.md"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert re.findall(r"a.md:1:.*?`(\w+)` should", found.stdout) == words.split(", ")
    assert ":2:" not in found.stdout


def test_no_test_holds_retired_words():
    paths = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path != pathlib.Path(__file__)]
    offenders = {path.name: caught("retired words", prose_of_tests(path.read_text(encoding="utf-8"))) for path in paths}
    assert {name: lines for name, lines in offenders.items() if lines} == {}


def test_docstrings_open_with_a_verb_or_a_noun():
    sources = {name: text for name, text in SOURCES.items() if name.endswith(".py")}
    offenders = {name: badly_opened(text, corpus=name.startswith(CORPUS)) for name, text in sources.items()}
    assert {name: lines for name, lines in offenders.items() if lines} == {}


@pytest.mark.parametrize("net", NETS)
def test_no_file_holds_what_a_net_catches(net):
    offenders = {name: caught(net, text) for name, text in PROSE.items()}
    assert {name: lines for name, lines in offenders.items() if lines} == {}
