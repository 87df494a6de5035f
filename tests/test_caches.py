"""The user's cache: one place, for this user only; without one, a warning and no cache."""

import os
import pathlib

import pytest

from jaxformer import caches
from jaxformer.errors import ConfigError
from tests.permissions import read_only


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home directory without a cache; the working directory is another one."""
    for name in ("home", "work"):
        (tmp_path / name).mkdir(mode=0o755)
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("JAXFORMER_CACHE", raising=False)
    return tmp_path / "home"


@pytest.mark.parametrize("xdg", [None, "", "relative", "./a", "~/a"])
def test_an_empty_or_relative_variable_counts_as_unset(home, monkeypatch, xdg, caplog):
    if xdg is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    assert caches.user_cache("programs") == home / ".cache" / "jaxformer" / "programs"
    assert (home / ".cache" / "jaxformer" / "programs").stat().st_mode & 0o777 == 0o700
    assert os.listdir() == []
    assert caplog.text == ""


def test_the_nearer_variable_wins(home, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert caches.user_cache("data") == tmp_path / "xdg" / "jaxformer" / "data"
    monkeypatch.setenv("JAXFORMER_CACHE", str(tmp_path / "ours"))
    assert caches.user_cache("data") == tmp_path / "ours" / "data"
    assert caches.data_cache("") == tmp_path / "ours" / "data"
    assert caches.data_cache("here") == pathlib.Path("here")
    assert caches.data_cache("~/here") == home / "here"
    monkeypatch.setenv("JAXFORMER_CACHE", "~/mine")
    assert caches.user_cache("data") == home / "mine" / "data"


@pytest.mark.parametrize(
    ("text", "message"),
    [("gs://bucket/cache", "mount the bucket"), ("here", "absolute path"), ("~no-user/here", "absolute path")],
)
def test_an_unusable_jaxformer_cache_is_refused(home, monkeypatch, text, message):
    monkeypatch.setenv("JAXFORMER_CACHE", text)
    with pytest.raises(ConfigError, match=message):
        caches.user_cache("data")


@pytest.mark.parametrize("value", ["", "/", "relative", "/nowhere", "unknown"])
def test_without_a_home_there_is_no_cache(home, monkeypatch, value, caplog):
    monkeypatch.setenv("HOME", value)
    if value == "unknown":  # as of a user whom a container does not know
        monkeypatch.delenv("HOME")
        monkeypatch.setattr(os.path, "expanduser", lambda text: text)
    assert caches.user_cache("programs") is None
    assert "no cache of programs: there is no home directory; JAXFORMER_CACHE=" in caplog.text
    assert os.listdir() == []
    assert not pathlib.Path("/.cache/jaxformer").exists()


def test_a_folder_that_others_can_write_is_not_used(home, caplog):
    folder = caches.user_cache("programs")
    assert folder is not None
    for place, mode, message in (
        (folder, 0o777, f"other users can write in {folder}"),
        (folder, 0o1777, f"other users can write in {folder}"),
        (folder, 0o770, f"the group can write in {folder}"),
        (home, 0o777, f"other users can write in {home}"),
    ):
        caplog.clear()
        before = place.stat().st_mode
        place.chmod(mode)
        assert caches.user_cache("programs") is None
        assert message in caplog.text
        place.chmod(before)
    for mode in (0o775, 0o1777):  # a group of the user's own, and a folder such as /tmp
        home.chmod(mode)
        assert caches.user_cache("programs") == folder


@pytest.mark.parametrize("place", [".cache/jaxformer/programs", ".cache", "."])
def test_a_folder_of_another_user_is_not_used(home, monkeypatch, caplog, place):
    owner = os.geteuid() + 1
    assert caches.user_cache("programs") is not None
    stat, theirs = pathlib.Path.stat, (home / place).resolve()

    def of_another(path, **options):
        about = list(stat(path, **options))
        if path == theirs:
            about[4] = owner
        return os.stat_result(about)

    monkeypatch.setattr(pathlib.Path, "stat", of_another)
    assert caches.user_cache("programs") is None
    assert f"{theirs} belongs to another user" in caplog.text


def test_a_link_is_judged_by_its_end(home, tmp_path, caplog):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (home / ".cache").symlink_to(tmp_path / "open")
    assert caches.user_cache("programs") is None
    assert f"other users can write in {tmp_path / 'open'}" in caplog.text


def test_a_place_that_cannot_be_written(home, caplog):
    with read_only(home):
        assert caches.user_cache("programs") is None
    assert f"cannot make {home / '.cache'}" in caplog.text
    assert "Permission denied" in caplog.text
    folder = caches.user_cache("programs")
    assert folder is not None
    caplog.clear()
    with read_only(folder):
        assert caches.user_cache("programs") is None
    assert f"no permission to write in {folder}" in caplog.text
    caplog.clear()
    (home / ".cache" / "jaxformer" / "data").symlink_to("data")
    assert caches.user_cache("data") is None
    assert "cannot make" in caplog.text
