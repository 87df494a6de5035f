"""Files are complete or absent; a file that is not regular is written to, not replaced."""

import contextlib
import errno
import os
import pathlib
import stat
import subprocess
import sys
import threading

import pytest

from jaxformer import files
from jaxformer.errors import ConfigError

ENVIRONMENT = os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[1])}


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "new" / "a.txt"
    files.write_text(path, "one\n")
    files.write_text(path, "zwei é\n")
    assert path.read_bytes() == "zwei é\n".encode()
    assert os.listdir(path.parent) == ["a.txt"]


def test_after_an_error_the_old_file_remains(tmp_path):
    path = tmp_path / "a.png"
    files.write_text(path, "old")

    def fail():
        with files.replacing(path) as temporary:
            assert temporary.suffix == ".png"
            temporary.write_text("half")
            raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        fail()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.png"]


def test_a_symbolic_link_stays_a_link(tmp_path):
    (tmp_path / "real").write_text("old")
    link = tmp_path / "link"
    link.symlink_to("real")
    files.write_text(link, "new")
    assert link.is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_devices_and_pipes_are_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()))
    reader.start()
    files.write_text(pipe, "through")
    reader.join(timeout=10)
    assert received == ["through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    files.write_text("/dev/null", "nothing")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_an_open_file_is_written_at_its_position(tmp_path):
    """Earlier contents and the output before and after stay."""
    program = "print('a', flush=True); files.write_text('/dev/stdout', 'b\\n'); print('c')"
    program = f"from jaxformer import files; {program}"
    (tmp_path / "out").write_text("old\n")
    for mode, expected in (("a", "old\na\nb\nc\n"), ("w", "a\nb\nc\n")):
        with (tmp_path / "out").open(mode) as out:
            subprocess.run([sys.executable, "-c", program], stdout=out, check=True, env=ENVIRONMENT)
        assert (tmp_path / "out").read_text() == expected
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert done.stdout == "a\nb\nc\n"


@pytest.mark.parametrize(
    ("name", "code"),
    [("/dev/full", errno.ENOSPC), ("folder", errno.EISDIR), ("circle", errno.ELOOP), ("file/x", errno.EEXIST)],
)
def test_an_error_names_the_requested_file(tmp_path, name, code):
    (tmp_path / "folder").mkdir()
    (tmp_path / "circle").symlink_to("back")
    (tmp_path / "back").symlink_to("circle")
    (tmp_path / "file").touch()
    path = tmp_path / name
    with pytest.raises(OSError, match=os.strerror(code)) as caught:
        files.write_text(path, "text")
    assert caught.value.errno == code
    assert str(caught.value.filename).startswith(str(path.parent))
    assert sorted(os.listdir(tmp_path)) == ["back", "circle", "file", "folder"]


def test_a_disk_that_is_full_is_named(tmp_path, monkeypatch):
    """The error of a write has no path."""

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pathlib.Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left") as caught:
        files.write_text(tmp_path / "a", "text")
    assert caught.value.filename == str(tmp_path / "a")


def test_a_file_keeps_its_permissions_and_may_have_a_long_name(tmp_path):
    path = tmp_path / ("é" * 127)
    files.write_text(path, "one")
    path.chmod(0o600)
    files.write_text(path, "two")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("two", 0o600)


def test_the_end_of_a_process_removes_temporary_files(tmp_path):
    def end():
        with files.replacing(tmp_path / "a") as a, files.creating_folder(tmp_path / "b") as b:
            a.write_text("half")
            (b / "half").touch()
            files.end_all()
            assert os.listdir(tmp_path) == []
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        end()
    assert not files._ENDINGS


@pytest.mark.parametrize("ends", [contextlib.nullcontext, files.end_all])
def test_an_interrupted_end_is_done_again(ends):
    """A signal, or a second one, comes while a large folder is being removed."""
    done = []

    def remove():
        done.append("begun")
        if len(done) == 1:
            files.end_all()  # as the handler does
            done.append("end of the process")

    with files.ending(remove):
        ends()
    assert done[:3] == ["begun", "begun", "end of the process"]
    assert not files._ENDINGS


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_fork_does_not_remove_the_files_of_its_parent(tmp_path):
    """As a worker that reads data, when it is stopped."""
    with files.creating_folder(tmp_path / "a") as folder:
        if not (process := os.fork()):
            files.end_all()
            os._exit(0)
        os.waitpid(process, 0)
        assert folder.exists()


def test_a_tilde_is_the_home_directory(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    paths = "~", "~/run", pathlib.Path("~/run"), "~no-user", "a/~"
    assert [str(files.local_path(path)) for path in paths] == ["/home/me", *["/home/me/run"] * 2, "~no-user", "a/~"]


def test_a_folder_appears_complete_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "folder"

    def fail():
        with files.creating_folder(path) as temporary:
            (temporary / "a").write_text("half")
            raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        fail()
    assert os.listdir(path.parent) == []
    with files.creating_folder(path) as temporary:
        (temporary / "a").write_text("all")
        assert not path.exists()
    assert (path / "a").read_text() == "all"
    with files.creating_folder(path, replaceable=True) as temporary:  # another process was first
        (temporary / "a").write_text("the same")
    with pytest.raises(ConfigError, match="another process created it"), files.creating_folder(path) as temporary:
        (temporary / "a").write_text("something else")
    assert (path / "a").read_text() == "all"
    assert os.listdir(path.parent) == ["folder"]
    files.remove_folder(path)
    files.remove_folder(path)  # another process was first
    assert os.listdir(path.parent) == []


def test_old_files_of_killed_processes_are_removed(tmp_path):
    """Recent ones, which another process may be writing, and files with other names stay."""

    def left_behind(make):
        with contextlib.suppress(RuntimeError), make as temporary:
            if temporary.is_dir():
                (temporary / "half").touch()
            else:
                temporary.touch()
            copy = tmp_path / f"{temporary.name}"
            kept = copy.rename(tmp_path / "saved")
            raise RuntimeError
        kept.rename(copy)
        return copy

    old = [left_behind(files.creating_folder(tmp_path / "a")), left_behind(files.replacing(tmp_path / "b"))]
    new = left_behind(files.creating_folder(tmp_path / "a"))
    mine = tmp_path / ".tmp-of-mine"
    mine.mkdir()
    for path in (*old, mine):
        os.utime(path, (0, 0))
    files.remove_abandoned(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([new, mine])


def test_a_new_folder_has_a_free_name_and_a_writable_place(tmp_path):
    files.check_new_folder(tmp_path / "new" / "folder")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for taken in (tmp_path, tmp_path / "link"):
        with pytest.raises(ConfigError, match="exists; name a new folder"):
            files.check_new_folder(taken)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        files.check_new_folder(tmp_path / "file" / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]
