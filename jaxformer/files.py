"""Files and folders that are written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import pathlib
import re
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from jaxformer.errors import ConfigError

TEMPORARY = ".tmp-"
"""The prefix of incomplete files and folders, which a killed process may leave behind."""

_IS_TEMPORARY = re.compile(re.escape(TEMPORARY) + "[0-9a-f]{8}-")

ABANDONED = 24 * 3600.0
"""The age in seconds, since the last change, after which a temporary file or folder counts as left behind."""

JsonObject = dict[str, Any]
"""The object in a JSON file."""

_ENDINGS: list[Callable[[], object]] = []
os.register_at_fork(after_in_child=_ENDINGS.clear)  # a worker that reads data must not remove its parent's files


@contextlib.contextmanager
def ending(action: Callable[[], object]) -> Iterator[None]:
    """Calls `action` when the block ends, or when `end_all` ends the process in the middle of it."""
    _ENDINGS.append(action)
    try:
        yield
    finally:
        if action in _ENDINGS:  # `end_all` has not called it
            _end(action)


def _end(action: Callable[[], object]) -> None:
    """Calls an action, then forgets it, so that one that is interrupted by a signal is called again."""
    try:
        action()
    finally:
        with contextlib.suppress(ValueError):  # another thread was first
            _ENDINGS.remove(action)


def end_all() -> None:
    """Does what open blocks of `ending` would do, such as removing temporary files; for `os._exit`, which runs none."""
    while _ENDINGS:
        with contextlib.suppress(Exception):  # the process ends in any case
            _end(_ENDINGS[-1])


def use_utf8() -> None:
    """Replaces this process by the same command in Python's UTF-8 mode, if the locale is ASCII and the mode is off.

    Then arguments and file names that are UTF-8 would be taken for bytes without a meaning. Call this before doing
    anything else.
    """
    if sys.getfilesystemencoding() == "ascii":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606 - the same command


def local_path(path: str | os.PathLike[str]) -> pathlib.Path:
    """Returns the path of a local file or folder, with the home directory for ``~``, as in ``--out=~/run``.

    Raises:
      ConfigError: the path is a URL, such as ``gs://bucket/run``, or no file can have this name.
    """
    text = os.fspath(path)
    if "://" in text:
        raise ConfigError(f"{text!r} is not a path: mount the bucket first, and give the path of the mount")
    if "\0" in text:
        raise ConfigError(f"{text!r} is not a path: it holds a NUL")
    return pathlib.Path(os.path.expanduser(text))  # pathlib's own refuses a file named ~x


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """Yields a temporary path next to `path`, which replaces it when the block ends without an error.

    A symbolic link is followed, so that it remains a link, and a file keeps its permissions. A path that is not a
    regular file, such as ``/dev/stdout`` or a named pipe, is written to and not replaced. Missing folders are made;
    after an error no temporary file is left.

    Raises:
      OSError: the file cannot be written; the error names `path`.
    """
    target = _followed(pathlib.Path(path))
    folder, regular = pathlib.Path(tempfile.gettempdir()), not _is_stream(target)
    if regular:
        folder = target.parent
        folder.mkdir(parents=True, exist_ok=True)
    # matplotlib chooses a format by the suffix
    temporary = _temporary(folder, target.name[-40:])
    try:
        with ending(lambda: _remove_quietly(temporary)):
            yield temporary
            _put(temporary, target, regular=regular)
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(temporary)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _put(temporary: pathlib.Path, target: pathlib.Path, *, regular: bool) -> None:
    """Replaces a regular file by a temporary one; writes the contents to any other target."""
    if regular:
        if target.exists():
            shutil.copymode(target, temporary)
        _flush(temporary)  # otherwise a crash of the machine could leave an empty file
        os.replace(temporary, target)
    else:
        with temporary.open("rb") as source, _opened(target) as stream:
            shutil.copyfileobj(source, stream)


def _remove_quietly(path: pathlib.Path) -> None:
    with contextlib.suppress(OSError):  # it was renamed, or there is an earlier error, which matters more
        _remove(path)


def _flush(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raises an `OSError` if a file cannot be written, before any work is done; writes nothing."""
    target = _followed(pathlib.Path(path))
    if _is_stream(target):
        return
    folder = next(folder for folder in target.absolute().parents if os.path.lexists(folder))
    if not folder.is_dir():
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def check_new_folder(path: str | os.PathLike[str]) -> None:
    """Raises a `ConfigError` or an `OSError` if a folder cannot be created, before any work is done; writes nothing."""
    if os.path.lexists(path):
        raise ConfigError(f"{path} exists; name a new folder")
    check_writable(path)


def _followed(path: pathlib.Path) -> pathlib.Path:
    """Follows the symbolic links that a path ends with, but not an open file of a process, as ``/dev/stdout`` is."""
    for _ in range(40):
        if not path.is_symlink() or path.parent.resolve().is_relative_to("/proc"):
            return path
        path = path.parent / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def _is_stream(path: pathlib.Path) -> bool:
    """Returns True if a path can be written to but not replaced."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return path.is_symlink() or (path.exists() and not path.is_file())


def _opened(stream: pathlib.Path) -> BinaryIO:
    """Opens a device or pipe; an open file of this process continues at its position, which its other users share."""
    if stream.parent.resolve() == pathlib.Path(f"/proc/{os.getpid()}/fd"):
        return os.fdopen(os.dup(int(stream.name)), "wb")
    return stream.open("wb")


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes a file whole or not at all; see `replacing`."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a UTF-8 file whole or not at all; see `replacing`."""
    write_bytes(path, text.encode())


def plain(data: object) -> object:
    """Returns data as JSON can hold it: arrays of NumPy and JAX as lists, and None for NaN and infinity."""
    if isinstance(data, Mapping):
        return {name: plain(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [plain(value) for value in data]
    if tolist := getattr(data, "tolist", None):
        return plain(tolist())
    if isinstance(data, float) and not math.isfinite(data):
        return None
    return data


@contextlib.contextmanager
def creating_folder(
    path: str | os.PathLike[str], *, mode: int = 0o700, replaceable: bool = False
) -> Iterator[pathlib.Path]:
    """Yields a temporary folder next to `path`, which is renamed to `path` when the block ends without an error.

    If another process has created `path` in the meantime, its folder stays and this one is removed.

    Args:
      mode: the permissions, by default for this user only; the umask applies.
      replaceable: the other process's folder holds the same contents, as in a cache, so this is not an error.

    Raises:
      ConfigError: another process has created `path`, and it is not `replaceable`.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path.parent, path.name)
    temporary.mkdir(mode=mode)
    with ending(lambda: shutil.rmtree(temporary, ignore_errors=True)):
        yield temporary
        try:
            temporary.rename(path)
        except OSError:
            if not path.exists():
                raise
            if not replaceable:
                raise ConfigError(f"{path} exists now: another process created it in the meantime") from None


def remove_folder(path: str | os.PathLike[str]) -> None:
    """Removes a folder. It is renamed first, so that no other process finds it incomplete, or its name taken."""
    path = pathlib.Path(path)
    renamed = _temporary(path.parent, path.name)
    with contextlib.suppress(FileNotFoundError):  # another process was first
        path.rename(renamed)
        _remove(renamed)


def remove_abandoned(folder: str | os.PathLike[str], *, age: float = ABANDONED) -> None:
    """Removes temporary files and folders that killed processes left in a folder, after `age` seconds.

    No lock is needed: a running process changes its temporary folder more often than every `ABANDONED` seconds. With a
    lock that excludes other processes, `age` may be 0.
    """
    for path in pathlib.Path(folder).glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):  # another process was first, or the folder is read-only
            if _IS_TEMPORARY.match(path.name) and time.time() - path.lstat().st_mtime >= age:
                _remove(path)


def _temporary(folder: pathlib.Path, name: str) -> pathlib.Path:
    """Returns a new temporary path; it is random because processes in different containers may share a process id."""
    return folder / f"{TEMPORARY}{secrets.token_hex(4)}-{name}"


def _remove(path: pathlib.Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
