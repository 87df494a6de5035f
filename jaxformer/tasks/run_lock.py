"""The lock of a run directory: only one training at a time may write there.

It is an operating-system lock (flock) on the file ``.lock``, so it ends with the process that holds it, even if that
is killed. On a network filesystem it holds for all hosts if the filesystem passes locks on, as NFS and Lustre usually
do. Without locks in the filesystem, a warning replaces the protection. Locks that hold on one host only, as on
filesystems of buckets, are noticed only if the lock file of another host is found.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import json
import logging
import os
import pathlib
import shlex
import socket
import sys
import textwrap
import time
from collections.abc import Iterator

from jaxformer.errors import ConfigError
from jaxformer.files import ending
from jaxformer.multihost import processes
from jaxformer.tasks.rundir import LOCK

logger = logging.getLogger(__name__)

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_SUFFIXES, _FOLDERS = (".json", ".jsonl", ".model"), ("checkpoints", "tensorboard", "profile")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


@contextlib.contextmanager
def held(out: pathlib.Path) -> Iterator[None]:
    """Holds the lock of a run directory, which is created if missing; the first process holds it for all.

    At the end, the lock file is removed, and so are folders that were created for it and are still empty.

    Raises:
      ConfigError: another process holds the lock, the directory cannot be written, or a file in it is a link.
      OSError: the disk is full or broken.
    """
    problem: OSError | ConfigError | None = None
    with contextlib.ExitStack() as stack:
        if processes.is_first():
            try:
                stack.enter_context(_held_here(out))
            except (OSError, ConfigError) as error:
                problem = error
        processes.raise_together(problem, f"process 0 cannot use {out}: see its message")
        yield


@contextlib.contextmanager
def _held_here(out: pathlib.Path) -> Iterator[None]:
    missing = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        _check_entries(out)
        descriptor = _acquired(out / LOCK)
    except OSError as error:
        _remove_empty(missing)
        if error.errno in _NO_SPACE:
            raise OSError(error.errno, error.strerror, str(out)) from error
        reason = "it is below a file or a broken link" if isinstance(error, FileExistsError) else error.strerror
        raise ConfigError(f"cannot write in {out}: {reason}; choose another directory") from error

    def end() -> None:
        _release(descriptor, out / LOCK)
        _remove_empty(missing)

    with ending(end):
        yield


def _check_entries(out: pathlib.Path) -> None:
    """Checks, before anything is written, the files and folders of a run.

    A file may not be a link: in someone else's run, it may point to any of this user's files. A folder may be a link,
    as to a larger disk, but not to a folder of another run, which has that run's checkpoints.
    """
    for path in (out, *out.iterdir()):
        if path.suffix in _SUFFIXES and path != out and not path.is_file() and not path.is_symlink():
            raise ConfigError(f"{path} must be a file; remove it, or choose another directory")
        if path.name in _FOLDERS and not path.is_dir() and not path.is_symlink():
            raise ConfigError(f"{path} must be a folder; remove it, or choose another directory")
        if not path.is_symlink():
            continue
        if not path.is_dir():
            raise ConfigError(f"{path} is a link, through which training would write; put the file in its place")
        other = path.resolve().parent
        if (other / "config.json").exists() and other != out.resolve():
            raise ConfigError(f"{path} is a link to a folder of another run, {other}; remove it")


def _release(descriptor: int, path: pathlib.Path) -> None:
    """Removes the lock file before releasing its lock, so that it cannot be the next holder's file."""
    with contextlib.suppress(OSError):  # already removed, or the filesystem has become read-only
        if _is_at(descriptor, path):
            path.unlink()
    os.close(descriptor)


def _is_at(descriptor: int, path: pathlib.Path) -> bool:
    return path.exists() and os.path.samestat(os.fstat(descriptor), path.stat())


def _remove_empty(folders: list[pathlib.Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):  # not empty
            folder.rmdir()


def _acquired(path: pathlib.Path) -> int:
    """Returns the descriptor of the lock file, locked and with the facts about this process in it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock(descriptor, path)
        except BaseException:
            os.close(descriptor)
            raise
        if _is_at(descriptor, path):
            break
        os.close(descriptor)  # its last holder removed it in the meantime
    try:
        _warn_of_another_host(descriptor, path)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(_this_process()).encode(), 0)
    except BaseException:
        _release(descriptor, path)
        raise
    return descriptor


def _lock(descriptor: int, path: pathlib.Path) -> None:
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.1)  # listing runs takes the lock for a moment, to see whether it is free
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = _holder(descriptor)
        raise ConfigError(
            f"{path.parent} is in use by {holder}; wait for its end, or choose another directory"
        ) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        logger.warning("the filesystem of %s has no locks: make sure that no other training writes there", path.parent)


def _warn_of_another_host(descriptor: int, path: pathlib.Path) -> None:
    holder = _read(descriptor)
    if holder.get("host") not in (None, socket.gethostname()):
        logger.warning(
            "%s was in use by %s, which was killed, or this filesystem does not pass locks on to other hosts: make "
            "sure that it has ended",
            path.parent,
            _holder(descriptor),
        )


def _this_process() -> dict[str, str | int]:
    command = shlex.join([pathlib.Path(sys.argv[0]).name, *sys.argv[1:]])
    since = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    return {"host": socket.gethostname(), "process": os.getpid(), "since": since, "command": command}


def _holder(descriptor: int) -> str:
    holder = _read(descriptor)
    if not holder:
        return "another process"
    command = textwrap.shorten(str(holder["command"]), 200, placeholder=" ...")
    return f"process {holder['process']} on {holder['host']} since {holder['since']} ({command})"


def _read(descriptor: int) -> dict[str, str | int]:
    """Returns the facts about the holder; an empty dictionary if they are incomplete."""
    try:
        facts = json.loads(os.pread(descriptor, 1 << 20, 0))
        return {name: facts[name] for name in ("host", "process", "since", "command")}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
