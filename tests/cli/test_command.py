"""Options as typed fields: the words that they take, messages about mistakes, settings among them, and paths."""

import dataclasses
import os
import pathlib
from typing import Annotated, Literal

import pytest

import jaxformer
from jaxformer.cli import command
from jaxformer.cli.command import REQUIRED, Options, Run, Text, Word, option, output_file, parsed, split_settings, word
from jaxformer.cli.main import main
from jaxformer.errors import ConfigError
from tests.permissions import read_only


@dataclasses.dataclass(frozen=True)
class Draw(Options):
    """Draws texts.

    examples:
      jaxformer draw run text
    """

    setting_prefix = "--decode."
    short = ("--top-p", "--sample")

    run: Run = word("A run.")
    inputs: tuple[Text, ...] = word("Texts.", ())
    n_best: int = option("A number.", 1)
    split: Literal["test", "validation"] | None = option("A part.")
    others: tuple[Run, ...] = option("More runs, 100 % of them.", ())
    json: bool = option("A flag.", False)


@dataclasses.dataclass(frozen=True)
class Learn(Options):
    """Learns."""

    setting_prefix = "--"

    config: Annotated[str, Word("CONFIG")] = word("A configuration.")
    out: Run = option("A run.", REQUIRED)


def test_words_become_fields():
    """Options may stand between positional words, and a text may look like an option."""
    words = ["--json", "run", "a", "--n-best", "3", "-1 is cold", "--others", "b", "c", "--split=test", "--", "--json"]
    options, settings = parsed(Draw, words)
    others = (pathlib.Path("b"), pathlib.Path("c"))
    texts = ("a", "-1 is cold", "--json")
    expected = Draw(pathlib.Path("run"), texts, n_best=3, split="test", others=others, json=True)
    assert (options, settings) == (expected, [])
    assert parsed(Draw, ["run"]) == (Draw(pathlib.Path("run")), [])


def test_all_settings_follow_their_configuration():
    words = "--train.steps=20 demo --data.columns 1 0 --out run --model.remat".split()
    settings = ["--train.steps=20", "--data.columns", "1", "0", "--model.remat"]
    assert parsed(Learn, words) == (Learn("demo", out=pathlib.Path("run")), settings)


def test_the_help_has_options_settings_and_examples(capsys):
    with pytest.raises(SystemExit, match="0"):
        parsed(Draw, ["--help"])
    said = " ".join(capsys.readouterr().out.split())
    for text in (
        "Draws texts.",
        "--others RUN [RUN ...] More runs, 100 % of them.",
        "examples: jaxformer draw run text",
    ):
        assert text in said
    assert f"--top-p X {command.SHORT['--top-p'][1]}" in said
    assert "--decode.NAME VALUE a setting of the search" in said


@pytest.mark.parametrize(
    ("arguments", "rest", "settings"),
    [
        (["run", "--decode.x", "2", "a"], ["run", "a"], ["--decode.x", "2"]),
        (["run", "--decode.x=2", "a"], ["run", "a"], ["--decode.x=2"]),
        (["run", "a", "--decode.x", "-1"], ["run", "a"], ["--decode.x", "-1"]),
        (["--decode.x", "--n-best", "3", "run"], ["--n-best", "3", "run"], ["--decode.x"]),
        (["run", "--", "--decode.x", "2"], ["run", "--", "--decode.x", "2"], []),
        ([], [], []),
    ],
)
def test_settings_are_split_off(arguments, rest, settings):
    assert split_settings(arguments) == (rest, settings)


@pytest.mark.parametrize(
    "words",
    [
        "train demo --out PATH",
        "demo --out PATH",
        "average PATH",
        "inspect PATH --source text",
        "inspect run --source text --out PATH",
        "data grammar --out PATH",
        "translate PATH text",
        "translate run text --out PATH",
        *(f"{name} run --file PATH" for name in ("translate", "classify", "fill", "caption")),
        "score run --source PATH",
        "score run --target PATH",
        "evaluate PATH",
        "evaluate run --files PATH",
    ],
)
def test_paths_are_checked_by_every_command(words, tmp_path, monkeypatch, capsys):
    """An unset shell variable gives an empty path, which would be the working directory; an address would be a folder
    named ``gs:``."""
    monkeypatch.chdir(tmp_path)
    address = "'gs://bucket/run' is not a path: mount the bucket first"
    for path, problem in (("", "the path is empty"), ("gs://bucket/run", address)):
        assert main([{"PATH": path}.get(word, word) for word in words.split()]) == 2
        assert problem in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("demo", "--data.cache"),
        ("language_model", "--data.cache"),
        ("language_model", "--data.text"),
        ("translation", "--data.source"),
        ("translation", "--data-dir"),
    ],
)
def test_data_at_an_address_is_refused(name, setting, tmp_path, monkeypatch, capsys):
    """It would be a folder named ``gs:``."""
    monkeypatch.chdir(tmp_path)
    settings = [] if setting != "--data-dir" else ["--data.source", "a"]
    assert main(["train", name, "--out", "run", setting, "gs://bucket/x", *settings]) == 2
    assert "'gs://bucket/x' is not a path: mount the bucket first" in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("function", ["train", "load", "average", "evaluate"])
def test_the_functions_of_python_refuse_an_address_too(function, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = (jaxformer.configure("demo"),) if function == "train" else ()
    for path, problem in (("gs://bucket/run", "mount the bucket"), ("a\0b", "it holds a NUL")):
        with pytest.raises(ConfigError, match=problem):
            getattr(jaxformer, function)(*arguments, path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder", "Is a directory"),
        (".", "Is a directory"),
        ("folder/", "Is a directory"),
        ("new/", "it names a folder"),
        ("new/.", "it names a folder"),
        ("new/..", "it names a folder"),
        ("circle", "Too many levels of symbolic links"),
        ("file/a/b", "Not a directory"),
        ("closed/a", "Permission denied"),
        ("closed/a/b", "Permission denied"),
        ("to-closed", "Permission denied"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_any_work(name, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "closed").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "to-closed").symlink_to("closed/new")
    with read_only(tmp_path / "closed"):
        assert main(["translate", "nowhere", "a", "--out", name]) == 2
    assert f"cannot write {name!r}: {message}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["file", "new", "a/b/new", "link", "dangling", "pipe", "/dev/null", "/dev/stdout"])
def test_an_output_that_can_be_written(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("a/new")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.iterdir())
    assert output_file(name) == pathlib.Path(name)
    assert sorted(tmp_path.iterdir()) == before
