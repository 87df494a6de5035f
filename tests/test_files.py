"""Files are whole or absent, and what is no regular file is written to, not replaced."""

import os
import stat
import threading

import pytest

from jaxformer import files


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "new" / "a.txt"
    files.write_text(path, "one\n")
    files.write_text(path, "zwei é\n")
    assert path.read_bytes() == "zwei é\n".encode()
    assert os.listdir(path.parent) == ["a.txt"]


def test_after_an_error_the_old_file_stands(tmp_path):
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


def test_a_symbolic_link_stays_one(tmp_path):
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
    with files.creating_folder(path) as temporary:  # another process was first
        (temporary / "a").write_text("the same")
    assert (path / "a").read_text() == "all"
    assert os.listdir(path.parent) == ["folder"]
    files.remove_folder(path)
    files.remove_folder(path)  # another process was first
    assert os.listdir(path.parent) == []
