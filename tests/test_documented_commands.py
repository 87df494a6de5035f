"""Every command in the documentation can be parsed: its options exist, and its settings have valid values.

Commands are the lines of fenced blocks and inline code in README.md, docs/, launch/, examples/, experiments/ and
benchmarks/, the docstrings of programs there, the examples of each `jaxformer COMMAND --help`, and .ci/run. They run in
this process up to the point at which work would begin: `begin` takes the place of that. A run that is not there has
the default settings of some task. To see all commands that are found, with the places:

    python -m tests.test_documented_commands
"""

import argparse
import ast
import contextlib
import dataclasses
import importlib
import io
import itertools
import pathlib
import re
import runpy
import shlex
import sys

import pytest

from jaxformer import demo
from jaxformer.cli import main as cli
from jaxformer.cli import runtime
from jaxformer.cli.arguments import override
from jaxformer.data import fetch, lines
from jaxformer.multihost import cluster
from jaxformer.planning import sizes
from jaxformer.tasks import comparison, planner, registry, runs
from jaxformer.tasks.translation import task as translation_task

ROOT = pathlib.Path(__file__).parents[1]
FOLDERS = ("docs", "launch", "examples", "experiments", "benchmarks")
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md")),
]
PROGRAMS = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".sbatch")]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
BEGINNINGS = ("jaxformer ", "python -m ", "python launch/", "python examples/", "sbatch ", "make ")

PLACEHOLDERS = {
    **{"COMMAND": "train", "CONFIG": "translation", "TASK": "translation", "NAME": "gpt2", "N": "3", "...": "data=1"},
    **{"sorting": "vision", "my_package.presets:tiny": "vision"},
}
"""Values for the words of a command that stand for something; others, such as RUN, are names of files."""


class Begun(BaseException):
    """The work would begin here."""


def begin(*_, **__):
    raise Begun


def code_of_page(text: str) -> list[str]:
    """Returns the lines of the fenced blocks of a page, except Python and cells, which are run, and its inline code."""
    blocks = re.findall(r"^```([^\n]*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for kind, block in blocks if kind != "python" and kind[:1] != "{" for line in joined(block)]
    return lines + inline(re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def code_of_program(path: pathlib.Path) -> list[str]:
    """Returns the lines of the docstring of a program, or of a script, and the inline code in them."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(text)) or ""
    return joined(text) + inline(text)


def code_of_help(name: str) -> list[str]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        cli.main([name, "--help"] if name else ["--help"])
    text = printed.getvalue()
    return joined(text.partition("examples:\n")[2]) + inline(text)


def joined(text: str) -> list[str]:
    """Returns the lines of a text; a backslash at the end of one continues it, also in a comment."""
    return [line.strip().removeprefix("# ") for line in re.sub(r"\s*\\+\n[#\s]*", " ", text).splitlines()]


def inline(text: str) -> list[str]:
    """Returns the inline code of a text; a command in it may lack what a reader knows, such as ``--out``."""
    found = [" ".join(code.replace(r"\|", "|").split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]
    incomplete = r"^((jaxformer train .|python -m (experiments|benchmarks.scaling))(?!.* --(out|settings)).*)"
    return [re.sub(incomplete, r"\1 --out run", code) for code in found]


def commands(code: list[str]) -> list[list[str]]:
    """Returns the words of the commands in lines of code; of a pipe, and after `&&`, each is one."""
    found = []
    for line in code:
        if any(beginning in line for beginning in BEGINNINGS):
            parts = shlex.shlex(
                line.replace("train ...", "train demo --out run"), posix=True, punctuation_chars="|&;<>"
            )
            parts.whitespace_split = True
            words = [";" if set(word) <= set("|&;<>") else word for word in parts]
            for is_end, part in itertools.groupby(words, key=";".__eq__):
                command = list(itertools.dropwhile(lambda word: re.match("[A-Z_]+=", word), [] if is_end else part))
                if f"{' '.join(command)} ".startswith(BEGINNINGS):
                    found.append(command)
    return found


def places() -> dict[str, list[list[str]]]:
    """Returns the commands of each place."""
    found = {path.relative_to(ROOT).as_posix(): code_of_page(path.read_text(encoding="utf-8")) for path in PAGES}
    found |= {path.relative_to(ROOT).as_posix(): code_of_program(path) for path in PROGRAMS}
    found |= {f"jaxformer {name} --help": code_of_help(name) for name in ("", *cli.COMMANDS)}
    found[".ci/run"] = joined((ROOT / ".ci/run").read_text(encoding="utf-8"))
    every = {place: commands(code) for place, code in found.items()}
    return {place: words for place, words in every.items() if words}


def check(words: list[str]) -> None:
    """Parses a command.

    Raises:
      AssertionError: a part of it does not exist.
    """
    words = [PLACEHOLDERS.get(word, word) for word in words]
    if "--" in words:
        rest = words[words.index("--") + 1 :]
        check(rest if rest[0] in ("python", "jaxformer") else ["jaxformer", "train", *rest])
    match words:
        case ["jaxformer", name] if name in cli.COMMANDS:  # as in prose
            pass
        case ["jaxformer", "data", "fetch"]:
            pass
        case ["jaxformer", *arguments]:
            check_ours(arguments)
        case ["make", *targets]:
            assert {word for word in targets if "=" not in word} <= TARGETS, "no such target"
        case ["sbatch", *_]:
            (script,) = (i for i, word in enumerate(words) if word.endswith(".sbatch"))
            assert (ROOT / words[script]).exists(), words[script]
            check_ours(["train", *words[script + 1 :]])
        case ["python", "examples/own_task.py", *arguments]:
            with pytest.MonkeyPatch.context() as patch:
                patch.syspath_prepend(str(ROOT / "examples"))
                patch.setitem(registry.TASKS, "truecase", "own_task")
                check_ours(arguments)
        case ["python", "-m", "pytest" | "jaxformer" | "benchmarks.worker", *_]:  # the last one has no options
            pass
        case ["python", "-m", module, *arguments]:
            check_program(module, arguments)
        case ["python", file, *arguments]:
            assert (ROOT / file).exists(), file
            check_program(file, arguments)


def check_ours(words: list[str]) -> None:
    """Parses a command of `jaxformer`; a run that is not there has, in turn, the settings of each task."""
    reasons = []
    own = registry.read_config
    # The first one is probably that of the run.
    for task in sorted(registry.CONFIGS, key=lambda name: words[0] not in registry.get(name).commands):
        default = dataclasses.replace(registry.config_class(task)(), attention="/mine.py:attend@0123456789abcdef")
        said = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            patch.setattr(registry, "read_config", lambda path, task=default: own(path) if path.exists() else task)
            try:
                code = cli.main(words)
            except Begun:
                return
            except SystemExit as stopped:
                code = stopped.code
        if not code:
            return
        reasons.append(said.getvalue().strip().splitlines()[-1])
    raise AssertionError("\n    ".join(dict.fromkeys(reasons)))


def check_program(program: str, words: list[str]) -> None:
    """Parses the arguments of a program; those of an experiment that are settings, too."""
    parsed = []
    own = argparse.ArgumentParser.parse_args

    def parse(self, *arguments, **options):
        parsed.append(own(self, *arguments, **options))
        raise Begun

    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        patch.setattr(argparse.ArgumentParser, "parse_args", parse)
        try:
            with contextlib.suppress(Begun):
                if program.endswith(".py"):
                    patch.syspath_prepend(str((ROOT / program).parent))
                    patch.setattr(sys, "argv", [program, *words])
                    runpy.run_path(program, run_name="__main__")
                else:
                    is_package = (ROOT / program.replace(".", "/")).is_dir()
                    importlib.import_module(f"{program}.__main__" if is_package else program).main(words)
        except SystemExit as stopped:
            raise AssertionError(said.getvalue().strip().splitlines()[-1]) from stopped
    if changes := getattr(parsed[0], "set", []):
        from experiments.translation import __main__ as translation

        override(translation.CONFIGS[parsed[0].config](), [f"--{change}" for change in changes])


@pytest.fixture(autouse=True)
def _no_work(monkeypatch):
    monkeypatch.chdir(ROOT)
    for module, name in (
        *((runtime, name) for name in ("start", "join")),
        *((fetch, "fetch"), (demo, "splits"), (runs, "read_run"), (runs, "find_runs"), (comparison, "groups")),
        *(
            (planner, "plan"),
            (planner, "load_program"),
            (sizes, "sizes"),
            (cluster, "initialize"),
            (translation_task, "read"),
        ),
    ):
        monkeypatch.setattr(module, name, begin)
    monkeypatch.setattr(lines, "read_lines", lambda path: [])
    own = pathlib.Path.is_dir
    folders = {pathlib.Path(name) for name in ("DIR", "runs")}
    monkeypatch.setattr(pathlib.Path, "is_dir", lambda path: path in folders or own(path))


EVERY = places()
CHECKED: set[tuple[str, ...]] = set()
"""The commands of earlier places."""


@pytest.mark.parametrize("place", EVERY)
def test_commands_parse(place):
    wrong = []
    for words in EVERY[place]:
        if tuple(words) in CHECKED:
            continue
        CHECKED.add(tuple(words))
        try:
            check(words)
        except (AssertionError, ValueError) as error:
            wrong.append(f"{shlex.join(words)}\n    {error}")
    assert not wrong, "\n" + "\n".join(wrong)


if __name__ == "__main__":
    for name, found in EVERY.items():
        print(f"{name}:", *map(shlex.join, found), sep="\n  ")
