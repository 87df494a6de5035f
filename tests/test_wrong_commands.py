"""Wrong command lines and their messages, all in `wrong_commands.txt`.

The file is plain text: headings after ``#``, commands after ``$``, and below each command the exit code and everything
that it prints. All commands run in one folder, which `prepare` fills; its path is shown as FOLDER. To add a command,
write its line and rewrite the file; to change a message, rewrite the file; then review its diff:

    python -m tests.test_wrong_commands --write
"""

import contextlib
import io
import os
import pathlib
import shlex
import sys
import tempfile

import pytest

from jaxformer.cli.main import COMMANDS, main
from jaxformer.tasks import registry, rundir

FILE = pathlib.Path(__file__).parent / "wrong_commands.txt"

RUNS = {
    "run": "translation",
    "lm": "language_model",
    "bert": "masked_language_model",
    "classes": "classification",
    "tagger": "tagging",
    "animals": "vision",
    "captions": "captioning",
}
"""The runs in the folder, which were never trained, and their tasks."""

FILES = {
    "a.py": "from jaxformer.tasks.translation import TranslationConfig\n\ndef base() -> TranslationConfig:\n"
    "    return TranslationConfig()\n\ndef attend(query, key, value, *, mask=None):\n    return value\n\nnumber = 3\n",
    "bad.json": "{",
    "old.json": '{"task": "translation", "config": {"modle": 3}}',
    "hf/config.json": '{"model_type": "gpt2"}',
    "empty/note": "",
    "one.fr": "un\n",
    "two.en": "one\ntwo\n",
    "words.tsv": "a\tX\nb\n",
    "pairs.tsv": "yes\ta\tb\nno\ta\n",
}


def prepare(folder: pathlib.Path) -> None:
    for name, task in RUNS.items():
        rundir.claim(folder / name, task, registry.config_class(task)(), ())
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def outcome(command: str, folder: pathlib.Path) -> str:
    """Returns the exit code and the printed lines of a command, which must not write any file."""
    before = sorted(folder.rglob("*"))
    said, words = io.StringIO(), shlex.split(command)  # the prompt, the program, its arguments
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            code = main(words[2:])
    except SystemExit as stopped:
        code = stopped.code
    assert sorted(folder.rglob("*")) == before, command
    return f"{code}: " + said.getvalue().replace(str(folder), "FOLDER").rstrip()


def entries() -> list[str]:
    """Returns the paragraphs of the file: headings, and commands with their outcomes."""
    return FILE.read_text(encoding="utf-8").rstrip().split("\n\n")


def commands() -> list[str]:
    return [entry.splitlines()[0] for entry in entries() if entry.startswith("$ ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wrong")
    prepare(folder)
    return folder


def test_wrong_commands_give_these_messages(folder, monkeypatch):
    """Whole texts are compared, so that a failure shows every message that differs."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv(
        "JAXFORMER_DATA", raising=False
    )  # a missing file is also looked for there, and the message says so
    expected = [entry for entry in entries() if entry.startswith("$ ")]
    found = [f"{line}\n{outcome(line, folder)}" for line in commands()]
    assert found == expected


def test_every_command_has_wrong_lines():
    used = {line.split()[2] for line in commands() if len(line.split()) > 2}
    assert set(COMMANDS) <= used
    assert len(commands()) >= 60
    assert len(set(commands())) == len(commands())


def write() -> None:
    """Runs the commands of the file and writes their outcomes below them."""
    texts = []
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        folder = pathlib.Path(name)
        prepare(folder)
        for entry in entries():
            line = entry.splitlines()[0]
            texts.append(f"{line}\n{outcome(line, folder)}" if line.startswith("$ ") else entry)
    FILE.write_text("\n\n".join(texts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.test_wrong_commands --write")
    from tests import conftest  # noqa: F401  # eight devices, as in the test

    os.environ.pop("JAXFORMER_DATA", None)
    write()
    os._exit(0)
