"""A bucket's address is refused in every place that expects a path."""

import os
import pathlib

import pytest

import jaxformer
from jaxformer.cli import score
from jaxformer.cli.main import main
from jaxformer.cli.paths import local_path, output_file, save_besides
from jaxformer.errors import ConfigError
from jaxformer.files import write_text
from jaxformer.tasks.language_model import LanguageModelingConfig
from tests.permissions import read_only


@pytest.mark.parametrize(
    "command",
    [
        "train demo --out gs://bucket/run",
        "demo --out gs://bucket/run",
        "evaluate gs://bucket/run",
        "average gs://bucket/run",
        "translate gs://bucket/run text",
        "translate run text --out gs://bucket/run",
        "inspect gs://bucket/run --source text",
        "inspect run --source text --out gs://bucket/run",
        "data grammar --out gs://bucket/run",
    ],
)
def test_an_address_is_not_a_path(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 2
    assert "'gs://bucket/run' is not a path: mount the bucket first" in capsys.readouterr().err.splitlines()[-1]
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
    with pytest.raises(ConfigError, match="mount the bucket"):
        getattr(jaxformer, function)(*arguments, "gs://bucket/run")
    assert not list(tmp_path.iterdir())


def test_a_path_is_a_path():
    assert local_path("runs/a:b") == pathlib.Path("runs/a:b")


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


@pytest.mark.parametrize("exists", [True, False])
def test_a_result_is_not_written_through_a_link(exists, tmp_path):
    """A link in another user's run may point anywhere."""
    outside, inside = tmp_path / "outside", tmp_path / "run" / "scores-test-best.json"
    inside.parent.mkdir()
    inside.symlink_to(outside)
    if exists:
        outside.write_text("mine")
    assert save_besides(inside, lambda path: write_text(path, "theirs"))
    assert outside.exists() is exists
    assert not exists or outside.read_text() == "mine"
    assert inside.read_text() == "theirs"


def test_an_output_must_not_be_an_address():
    with pytest.raises(ConfigError, match="mount the bucket"):
        output_file("s3://bucket/out")


@pytest.mark.parametrize("command", ["train demo --out", "average", "translate run text --out"])
def test_an_empty_path_is_refused(command, capsys):
    """An unset shell variable gives an empty path, which would be the working directory."""
    assert main([*command.split(), ""]) == 2
    assert "the path is empty" in capsys.readouterr().err


def test_a_path_with_a_nul_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="it holds a NUL"):
        jaxformer.load(f"{tmp_path}/a\0b")
    with pytest.raises(ConfigError, match="it holds a NUL"):
        jaxformer.configure("demo", data={"cache": "a\0b"})


@pytest.mark.parametrize(
    ("command", "option"),
    [(command, "--file") for command in ("translate", "classify", "fill", "caption")]
    + [("score", "--source"), ("score", "--target"), ("evaluate", "--files")],
)
def test_files_to_read_are_checked_by_every_command(capsys, command, option):
    """Not read as the working directory, or looked for in a folder named ~."""
    for name, problem in (("", "the path is empty"), ("gs://bucket/texts", "is not a path: mount the bucket first")):
        assert main([command, "run", option, name]) == 2
        assert problem in capsys.readouterr().err


def test_the_home_directory_of_a_file_to_read(tmp_path, monkeypatch, capsys):
    """A shell does not expand ~ in --file=~/texts."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(score, "configured", lambda options, settings: LanguageModelingConfig())
    monkeypatch.setattr(score, "load_ensemble", lambda options, config: None)
    (tmp_path / "texts").touch()
    assert main(["score", "run", "--source=~/texts"]) == 0
    assert main(["score", "run", "--source=~/other"]) == 2
    assert f"cannot read {tmp_path / 'other'}" in capsys.readouterr().err
