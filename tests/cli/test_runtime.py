"""Functions that commands share: the compile cache, the console, the settings that processes compare."""

import json
import logging

import jax
import pytest

from jaxformer.cli import runtime
from jaxformer.multihost import cluster, processes
from jaxformer.tasks.translation import TranslationConfig


@pytest.fixture
def _jax_settings():
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.usefixtures("_jax_settings")
def test_the_compile_cache_is_writable_by_its_owner_only(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jax.config.update("jax_compilation_cache_dir", None)
    runtime.start(compile_cache=False)
    assert jax.config.jax_compilation_cache_dir is None
    assert not list(tmp_path.iterdir())
    runtime.start()
    folder = tmp_path / "jaxformer" / "programs"
    assert jax.config.jax_compilation_cache_dir == str(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    jax.config.update("jax_compilation_cache_dir", "/mine")
    runtime.start()
    assert jax.config.jax_compilation_cache_dir == "/mine"
    folder.chmod(0o777)  # anyone could put programs there
    jax.config.update("jax_compilation_cache_dir", None)
    runtime.start()
    assert jax.config.jax_compilation_cache_dir is None


def test_processes_agree_on_settings_code_versions_and_place(tmp_path, monkeypatch, capsys):
    agreed = []
    monkeypatch.setattr(cluster, "initialize", lambda devices: f"{devices} devices")
    monkeypatch.setattr(cluster, "check_equal", agreed.append)
    monkeypatch.setenv("XLA_FLAGS", "--xla_some_flag=1")
    for config in (TranslationConfig(), TranslationConfig(seed=3)):
        runtime.join(config, tmp_path, devices=8)
    assert capsys.readouterr().err == "8 devices\n8 devices\n"
    first, second = agreed
    assert {name for name in first if first[name] != second[name]} == {"seed"}
    assert (first["model.d_model"], first["--out"]) == (json.dumps(512), str(tmp_path))
    assert (first["data.columns"], first["optimizer.b1"]) == ("[0, 1]", "0.9")
    assert all(isinstance(value, str) and not value.startswith("{") for value in first.values())
    assert (first["jax"], first["XLA_FLAGS"], len(first["code"])) == (jax.__version__, "--xla_some_flag=1", 64)


@pytest.mark.parametrize("first", [True, False])
def test_only_the_first_process_prints(monkeypatch, capsys, first):
    monkeypatch.setattr(processes, "is_first", lambda: first)
    runtime.console().print("hello")
    out, err = capsys.readouterr()
    assert (out, err) == ("", "hello\n" if first else "")


@pytest.mark.usefixtures("_jax_settings")
@pytest.mark.parametrize("library_was_first", [False, True])
def test_warnings_always_have_the_same_form(monkeypatch, capsys, library_was_first):
    """Python prints the first one without a prefix, and later ones with the module's name."""
    monkeypatch.setattr(logging.root, "handlers", [])
    if library_was_first:
        logging.basicConfig()
    runtime.start(compile_cache=False)
    logging.getLogger("jaxformer.somewhere").warning("no room in %s", "a\n\x1b[2J")  # of the name of a file
    assert capsys.readouterr().err == "WARNING: no room in a\\n\\x1b[2J\n"


def test_a_failed_save_is_one_line():
    """Orbax logs it with its traceback, of hundreds of lines, and raises it."""
    runtime.start(compile_cache=False)
    assert not logging.getLogger("absl").isEnabledFor(logging.ERROR)
